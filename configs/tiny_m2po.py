"""M2PO: clips only as much as a second-moment budget of the log-ratio asks for.

Command: python -m jaxrl_single.run.local --config=configs/tiny_m2po.py --workdir=runs/m2po
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "m2po",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "eps": 1e-6,  # added to the deviation of the group's rewards
            },
            "keep_rule": {
                "budget": 0.04,  # allowed mean of log-ratio^2 over tokens that move further away
                "low": 0.3,  # ratios above 1 - low are never dropped
                "high": 0.5,  # nor those below 1 + high
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
