"""RLOO: the baseline is the mean reward of the others of the group.

Command: python -m jaxrl_single.run.local --config=configs/tiny_rloo.py --workdir=runs/rloo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "rloo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_sum",  # mean over trajectories of the sum over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
