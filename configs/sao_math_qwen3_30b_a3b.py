"""SAO as published for mathematics with a Python tool, on Qwen3-30B-A3B (arXiv 2607.07508 §4.1).

Command: python -m jaxrl_single.run.local --config=configs/sao_math_qwen3_30b_a3b.py
  --workdir=runs/sao_math
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """Lines without a source say so; `tiny` as in tiny_sao."""
    config = presets.qwen3_30b_a3b()
    config.algorithm = ConfigDict(
        {
            "name": "sao",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 1,  # policy updates per pass; one is inferred
            "num_critic_steps": 2,  # critic updates per batch, §4.1: K = 2
            "advantage": {
                "discount": 1.0,  # not stated; per action token
                "lambda_alpha": 1.5,  # §4.1: lambda = 1 - 1 / (alpha x l); l (actions): inferred
                "critic_lambda": 1.0,  # §4.1
            },
            "keep_rule": {
                "low": 0.3,  # §4.1; that it is the distance below 1 is inferred
                "high": 5.0,  # §4.1; that it is the distance above 1 is inferred
            },
        }
    )
    # The base model: Qwen3-30B-A3B-Thinking-2507, fine-tuned on tool use before RL
    config.model.size = "qwen3_30b_a3b_2507"
    config.critic.rules = (  # §3.2: attention frozen, the MoE projections train
        ("value_head/.*", "train"),  # not stated, but it is new and must learn
        (".*/experts/.*", "train"),
        (".*", "frozen"),  # the router, norms and embeddings too: not stated
    )
    config.critic_optimizer.learning_rate = 5e-6  # §4.1; optimiser and decay: not stated
    config.policy_optimizer.learning_rate = 1e-6  # §4.1; optimiser and decay: not stated
    config.rl.critic_only_steps = 10  # §4.1 "warmup": that the critic trains alone is inferred
    config.rl.num_steps = 1000  # §1: "around one thousand"
    config.rl.max_staleness = 8  # not stated
    config.batch.num_trajectories = 128  # §4.1, one per task
    config.batch.row_length = 131_072  # §4.1: 128k tokens
    config.batch.row_buckets = (64, 128)  # not stated: a matter of memory
    config.env.max_turns = 50  # §4.1, for mathematics
    config.env.max_turn_tokens = 32_768  # not stated
    config.env.max_tokens = 131_072  # §4.1: 128k tokens
    return common.finish(config, arg)
