"""Dr. GRPO: neither the group's deviation nor the length of a response divides.

Command: python -m jaxrl_single.run.local --config=configs/tiny_dr_grpo.py --workdir=runs/dr_grpo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """On the task of tiny_sao_hard; `tiny` as in tiny_sao."""
    config = presets.hard_task()
    config.algorithm = ConfigDict(
        {
            "name": "dr_grpo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "fixed_length",  # sum over tokens / (trajectories x fixed_length)
            "fixed_length": 60,  # tokens: env.max_turns x env.max_turn_tokens, the longest response
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass
            "objective": {
                "low": 0.2,  # no step below 1 - low where the advantage is negative
                "high": 0.2,  # no step above 1 + high where it is positive
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.rl.group_size = 8  # of one task; SAO's baselines: 16 tasks x 8
    return common.finish(config, arg)
