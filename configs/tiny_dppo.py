"""DPPO: drops steps that lead away from the sampler by the change of probability, not the ratio.

Command: python -m jaxrl_single.run.local --config=configs/tiny_dppo.py --workdir=runs/dppo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "dppo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "eps": 1e-6,  # added to the deviation of the group's rewards
            },
            "keep_rule": {
                "low": 0.15,  # largest fall of the probability where the advantage is negative
                "high": 0.15,  # largest rise where it is positive
            },
            "objective": {
                "low": 1.0,  # the ratio as weight has no lower bound
                "high": 19.0,  # and is at most 1 + high
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
