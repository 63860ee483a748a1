"""VAPO with its own settings (arXiv 2504.05118), on Qwen3-30B-A3B.

The authors train a dense model of 32B; the SAO paper has VAPO without DIS as an ablation.

Command: python -m jaxrl_single.run.local --config=configs/vapo_qwen3_30b_a3b.py
  --workdir=runs/vapo
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """Lines without a source say so; `tiny` as in tiny_sao."""
    config = presets.qwen3_30b_a3b()
    config.algorithm = ConfigDict(
        {
            "name": "vapo",  # the row of jaxrl_single/algorithms/table.py
            "reduction": "token_mean",  # mean over all tokens: long trajectories weigh more
            "ratio_reference": "rollout",  # the ratio is to what the sampler recorded
            "num_policy_epochs": 1,  # passes over a batch
            "num_minibatches": 16,  # policy updates per pass; not stated: as in DAPO
            "num_critic_steps": 1,  # critic updates per batch; not stated
            "advantage": {
                "discount": 1.0,  # not stated; per action token
                "lambda_alpha": 0.05,  # published: lambda = 1 - 1 / (alpha x l); at least 0: ours
                "critic_lambda": 1.0,  # published
            },
            "objective": {
                "low": 0.2,  # published
                "high": 0.28,  # published
            },
            "terms": {
                "positive_nll": {
                    "coefficient": 0.1,  # published: of -log pi on right answers
                },
            },
        }
    )
    config.policy_optimizer.learning_rate = 1e-6  # published
    config.critic_optimizer.learning_rate = 2e-6  # published
    config.value_pretraining.learning_rate = 2e-6  # that of the critic; not stated for this stage
    config.rl.critic_only_steps = 0  # the critic is pretrained on returns of the first policy
    config.rl.group_size = 16  # published: 512 tasks x 16; the advantage does not compare them
    config.rl.num_steps = 500  # not stated
    config.rl.max_staleness = 1  # not stated: synchronous in the paper
    config.batch.num_trajectories = 8192  # published: 512 tasks x 16
    config.batch.row_length = 32_768  # not stated here
    config.batch.row_buckets = (4096, 8192)  # not stated: a matter of memory
    config.env.max_turns = 16  # not stated
    config.env.max_turn_tokens = 32_768  # not stated
    config.env.max_tokens = 32_768  # as batch.row_length
    config.batch.rows_per_micro_batch = 32  # 128 or 256 micro-batches, dealt to 16 minibatches
    return common.finish(config, arg)
