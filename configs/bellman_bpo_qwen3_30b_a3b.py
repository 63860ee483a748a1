"""Bellman BPO, practical form, as published, on Qwen3-30B-A3B (arXiv 2609.15987).

That the authors train this model is not stated; it is the model of the SAO paper.

Command: python -m jaxrl_single.run.local --config=configs/bellman_bpo_qwen3_30b_a3b.py
  --workdir=runs/bellman_bpo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """Lines without a source say so; `tiny` as in tiny_sao."""
    config = presets.qwen3_30b_a3b()
    config.algorithm = ConfigDict(
        {
            "name": "bellman_bpo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "sequence_mean",  # mean over trajectories of the mean over their tokens
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 8,  # policy updates per pass; published: 8 of 512 trajectories
            "advantage": {
                "eps": 1e-6,  # not stated
            },
            "keep_rule": {
                "eps": 0.1,  # published; 0.05 to 0.3 were tried
                "low": 0.2,  # published: dropped below 1 - low where the advantage is negative
                "high": 0.28,  # published: and above 1 + high where it is positive
            },
            "objective": {
                "eps": 0.1,  # as in the keep rule
                "cap": 3.0,  # published; 2 to 4 were tried
            },
        }
    )
    config.rl.critic_only_steps = 0  # there is no critic
    config.policy_optimizer.update(
        {"learning_rate": 1e-6, "b2": 0.98, "weight_decay": 0.1}
    )  # published
    config.rl.group_size = 16  # published: 256 tasks x 16
    config.rl.num_steps = 500  # not stated
    config.rl.max_staleness = 1  # not stated
    config.batch.num_trajectories = 4096  # published: 256 tasks x 16
    config.batch.row_length = 16_384  # published
    config.batch.row_buckets = (2048, 4096)  # not stated: a matter of memory
    config.env.max_turns = 16  # not stated
    config.env.max_turn_tokens = 16_384  # not stated
    config.env.max_tokens = 16_384  # as batch.row_length
    config.batch.rows_per_micro_batch = 32  # 64 or 128 micro-batches, dealt to 8 minibatches
    return common.finish(config, arg)
