"""FlashREINFORCE with its published settings, on Qwen3-30B-A3B.

The authors train other models; this is their common setting on the model of the SAO paper.

Command: python -m jaxrl_single.run.local --config=configs/flash_qwen3_30b_a3b.py
  --workdir=runs/flash
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """Lines without a source say so; `tiny` as in tiny_sao."""
    config = presets.qwen3_30b_a3b()
    config.algorithm = ConfigDict(
        {
            "name": "flash_reinforce",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass; published: one
            "keep_rule": {
                "delta": 3e-3,  # published for mathematics; 1e-3 for tools (7B) and ALFWorld
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.policy_optimizer.learning_rate = 1e-6  # published
    config.policy_optimizer.update(
        {"weight_decay": 0.1, "warmup_steps": 15, "decay": "cosine", "decay_steps": 500}
    )  # published: 0.1, 3 % of the steps, and a cosine to 10 %
    config.policy_optimizer.final_fraction = 0.1
    config.rl.num_steps = 500  # not stated
    config.rl.max_staleness = 8  # not stated
    config.batch.num_trajectories = 128  # published; 64 for ALFWorld
    config.batch.row_length = 32_768  # not stated for this model
    config.batch.row_buckets = (64, 128)  # not stated: a matter of memory
    config.env.max_turns = 16  # not stated
    config.env.max_turn_tokens = 32_768  # not stated
    config.env.max_tokens = 32_768  # as batch.row_length
    return common.finish(config, arg)
