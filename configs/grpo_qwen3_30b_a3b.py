"""GRPO, the baseline of the SAO paper, on Qwen3-30B-A3B (arXiv 2607.07508 §4).

Command: python -m jaxrl_single.run.local --config=configs/grpo_qwen3_30b_a3b.py
  --workdir=runs/grpo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """Lines without a source say so; `tiny` as in tiny_sao."""
    config = presets.qwen3_30b_a3b()
    config.algorithm = ConfigDict(
        {
            "name": "grpo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass; one is inferred
            "advantage": {
                "eps": 1e-6,  # not stated
            },
            "objective": {
                "low": 0.2,  # §4.2 says clip-higher; the numbers are those of DAPO
                "high": 0.28,  # the same
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.model.size = "qwen3_30b_a3b_2507"  # fine-tuned on tool use before RL
    config.policy_optimizer.learning_rate = 1e-6  # §4.1; optimiser and decay: not stated
    config.rl.group_size = 8  # §4.1: 16 tasks x 8
    config.rl.num_steps = 400  # not stated; §4.2 tells of a collapse near step 160
    config.rl.max_staleness = 8  # not stated
    config.batch.num_trajectories = 128  # §4.1
    config.batch.row_length = 131_072  # §4.1: 128k tokens
    config.batch.row_buckets = (64, 128)  # not stated: a matter of memory
    config.env.max_turns = 50  # §4.1, for mathematics
    config.env.max_turn_tokens = 32_768  # not stated
    config.env.max_tokens = 131_072  # §4.1: 128k tokens
    return common.finish(config, arg)
