"""GRPO with SAO's double-sided mask on the sampler's log-probs instead of a clip.

Command: python -m jaxrl_single.run.local --config=configs/tiny_grpo_dis.py --workdir=runs/grpo_dis
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "grpo_dis",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "advantage": {
                "eps": 1e-6,  # added to the deviation of the group's rewards
            },
            "keep_rule": {
                "low": 0.3,  # ratios are kept in the open interval (1 - low, 1 + high)
                "high": 5.0,  # published for mathematics, as 0.3; for coding 0.8 and 3.0
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
