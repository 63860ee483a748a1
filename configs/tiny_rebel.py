"""REBEL: regresses the difference of two log-ratios on the difference of their rewards.

Command: python -m jaxrl_single.run.local --config=configs/tiny_rebel.py --workdir=runs/rebel
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "rebel",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_sum",  # mean over trajectories of the sum over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "objective": {
                "eta": 1.0,  # step size: reward difference x eta is the log-ratio asked for
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 2  # a pair
    return common.finish(config, arg)
