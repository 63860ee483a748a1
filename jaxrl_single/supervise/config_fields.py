"""What each field of a config may be, alone. Fields that contradict: check_config.py.

Here are all numbers but those of the environment, which checks its own, and of the algorithm,
whose row does (algorithms/allowed.py).
"""

from jaxrl_single import ranges

CHOICES = {
    "mode": ("local", "sync"),
    "sampler.swap": ("keep", "recompute"),
    "sampler.prefix_cache": ("off", "prompts", "all"),
    "rollout.client": ("in_process", "http", "vllm"),
    "rollout.on_limit": ("terminal", "bootstrap", "mask"),
    "trajectories.keep": ("all", "every_nth", "none"),
    "model.dtype": ("float32", "bfloat16"),
    "model.on_rewrite": ("segment", "append"),
    "policy_optimizer.decay": ("linear", "cosine"),
    "critic_optimizer.decay": ("linear", "cosine"),
}
_OPTIMIZER = {
    "learning_rate": ranges.NOT_NEGATIVE,
    "warmup_steps": ranges.NOT_NEGATIVE,
    "decay_steps": ranges.NOT_NEGATIVE,
    "final_fraction": ranges.NOT_NEGATIVE,
    "b1": ranges.BELOW_ONE,
    "b2": ranges.BELOW_ONE,
    "weight_decay": ranges.NOT_NEGATIVE,
    "clip_norm": ranges.NOT_NEGATIVE,
}
_AXES = ("data", "fsdp", "tensor", "expert", "context")

RANGES: dict[str, ranges.Range] = {
    "seed": ranges.Range(0, 2**32 - 1),  # the sampler takes it modulo 2^32
    "env.num_train_tasks": ranges.NOT_NEGATIVE,
    "env.max_turns": ranges.FROM_ONE,
    "env.max_turn_tokens": ranges.FROM_ONE,
    "env.max_tokens": ranges.FROM_ONE,
    "env.step_timeout_s": ranges.NOT_NEGATIVE,
    "warm_start.num_demonstrations": ranges.FROM_ONE,
    "warm_start.mistake_rate": ranges.FRACTION,
    "warm_start.num_steps": ranges.NOT_NEGATIVE,
    "warm_start.batch_size": ranges.FROM_ONE,
    "warm_start.learning_rate": ranges.NOT_NEGATIVE,
    "warm_start.weight_decay": ranges.NOT_NEGATIVE,
    "value_pretraining.num_trajectories": ranges.FROM_ONE,
    "value_pretraining.held_out_fraction": ranges.INSIDE,
    "value_pretraining.max_steps": ranges.NOT_NEGATIVE,
    "value_pretraining.eval_every": ranges.FROM_ONE,
    "value_pretraining.patience": ranges.FROM_ONE,
    "value_pretraining.learning_rate": ranges.NOT_NEGATIVE,
    "rl.num_steps": ranges.NOT_NEGATIVE,
    "rl.critic_only_steps": ranges.NOT_NEGATIVE,
    "rl.group_size": ranges.FROM_ONE,
    "rl.kl_budget": ranges.NOT_NEGATIVE,
    "rl.kl_max_scale": ranges.POSITIVE,
    "rl.max_staleness": ranges.NOT_NEGATIVE,
    **{f"policy_optimizer.{name}": allowed for name, allowed in _OPTIMIZER.items()},
    **{f"critic_optimizer.{name}": allowed for name, allowed in _OPTIMIZER.items()},
    "batch.num_trajectories": ranges.FROM_ONE,
    "batch.row_length": ranges.FROM_ONE,
    "batch.rows_per_micro_batch": ranges.FROM_ONE,
    "sampler.num_slots": ranges.FROM_ONE,
    "sampler.decode_chunk": ranges.FROM_ONE,
    "sampler.page_size": ranges.FROM_ONE,
    "sampler.cache_tokens": ranges.NOT_NEGATIVE,
    "sampler.max_fed_tokens": ranges.NOT_NEGATIVE,
    "sampler.num_aux_draws": ranges.NOT_NEGATIVE,
    "sampler.top_k": ranges.NOT_NEGATIVE,
    "sampler.memory_fraction": ranges.PART,
    "sampler.num_processes": ranges.NOT_NEGATIVE,
    "sampler.port": ranges.Range(0, 2**16 - 1),
    "sampler.top_logprobs": ranges.NOT_NEGATIVE,
    "sampler.max_waiting": ranges.FROM_ONE,
    "sampler.idle_s": ranges.POSITIVE,
    "rollout.temperature": ranges.POSITIVE,
    "rollout.max_in_flight": ranges.FROM_ONE,
    "rollout.open_batches": ranges.NOT_NEGATIVE,
    "rollout.sampler_patience_s": ranges.POSITIVE,
    "rollout.max_attempts": ranges.FROM_ONE,
    "rollout.max_consecutive_errors": ranges.FROM_ONE,
    "sync.lag": ranges.NOT_NEGATIVE,
    "eval.num_tasks": ranges.FROM_ONE,
    "eval.every_steps": ranges.NOT_NEGATIVE,
    "eval.periodic_num_tasks": ranges.FROM_ONE,
    **{f"trainer.mesh.{axis}": ranges.FROM_ONE for axis in _AXES},
    "trainer.memory_fraction": ranges.PART,
    "trainer.log_every": ranges.FROM_ONE,
    "trainer.no_progress_s": ranges.POSITIVE,
    "checkpoint.every_steps": ranges.FROM_ONE,
    "checkpoint.keep": ranges.FROM_ONE,
    "trajectories.every_steps": ranges.FROM_ONE,
    "trajectories.max_gb": ranges.NOT_NEGATIVE,
    "weights.keep": ranges.FROM_ONE,
    "gate.max_difference": ranges.NOT_NEGATIVE,
    "gate.mean_difference": ranges.NOT_NEGATIVE,
    "supervisor.max_restarts": ranges.NOT_NEGATIVE,
    "supervisor.heartbeat_s": ranges.POSITIVE,
    "supervisor.stop_timeout_s": ranges.POSITIVE,
}
# Fields that hold several numbers.
EACH: dict[str, ranges.Range] = {
    "batch.row_buckets": ranges.FROM_ONE,
    "sampler.decode_slots": ranges.FROM_ONE,
    "sampler.cache_sizes": ranges.PART,
    "sampler.prefill_pages": ranges.FROM_ONE,
}
ASCENDING = ("batch.row_buckets", "sampler.prefill_pages")  # and not empty
LABELS = ("train", "frozen")  # of critic.rules
