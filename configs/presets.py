"""What several experiments start from, beside `common.base()`."""

from ml_collections import ConfigDict

from configs import common


def hard_task() -> ConfigDict:
    """The config of tiny_sao_hard: it leaves room at the top, so algorithms can be told apart."""
    config = common.base()
    config.env.max_result = 999_999  # copying six digits is what the model finds hard
    config.rl.num_steps = 120
    return config


def qwen3_30b_a3b() -> ConfigDict:
    """What the published settings on Qwen3-30B-A3B share; no source states these values.

    Not measured. As it stands the weights are random, and the calculator with its character
    vocabulary stands in for the tasks; give model.path, and env.name or env.tasks_file and
    env.eval_tasks_file.
    """
    config = common.base()
    config.model.update({"size": "qwen3_30b_a3b", "dtype": "bfloat16", "remat": True})
    config.warm_start.num_steps = 0  # published weights (model.path) take its place
    config.value_pretraining.update({"max_steps": 500, "learning_rate": 5e-6})
    config.policy_optimizer.update(
        {"learning_rate": 1e-6, "decay_steps": 0, "final_fraction": 1.0, "b2": 0.999}
    )
    config.critic_optimizer.update({"learning_rate": 5e-6, "b2": 0.999})
    config.critic.rules = ((".*", "train"),)
    # 64 chips for the trainer. A micro-batch must be a multiple of data x fsdp rows; 8 divides the
    # width 2048, the 128 experts and their width 768.
    config.trainer.mesh.update({"fsdp": 8, "expert": 8})
    config.batch.rows_per_micro_batch = 8
    config.sampler.update({"num_slots": 256, "decode_chunk": 32, "page_size": 128})
    config.sampler.update({"cache_sizes": (0.25, 0.5, 0.75), "prefill_pages": (4, 32)})
    # In bfloat16 sampler and trainer round differently, and their routers then choose differently.
    config.sampler.record_experts = True
    config.rollout.max_in_flight = 256
    config.gate.update({"max_difference": 0.5, "mean_difference": 0.02})  # bfloat16
    return config
