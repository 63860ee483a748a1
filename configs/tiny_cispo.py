"""CISPO: clips the weight on the score, so that no token loses its gradient.

Command: python -m jaxrl_single.run.local --config=configs/tiny_cispo.py --workdir=runs/cispo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "cispo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "eps": 1e-6,  # added to the deviation of the group's rewards
            },
            "objective": {
                "low": 1.0,  # the weight is at least 1 - low; 1 switches the bound off
                "high": 4.0,  # the weight is at most 1 + high; ScaleRL: 4 to 8 in all are alike
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
