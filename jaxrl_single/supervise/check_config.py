"""Checks of a config that need no device: values that are not allowed, fields that contradict.

Unknown field names never get this far: the config is locked and the flag parser names the
nearest valid one.
"""

import math
from collections.abc import Iterator

from ml_collections import ConfigDict

from jaxrl_single.models import sizes
from jaxrl_single.sampler.service import access
from jaxrl_single.supervise import workdir_config

CHOICES = {
    "mode": ("local", "sync"),
    "sampler.swap": ("keep", "recompute"),
    "sampler.prefix_cache": ("off", "prompts", "all"),
    "rollout.client": ("in_process", "http", "vllm"),
    "rollout.on_limit": ("terminal", "bootstrap", "mask"),
    "model.dtype": ("float32", "bfloat16"),
    "model.on_rewrite": ("segment", "append"),
    "policy_optimizer.decay": ("linear", "cosine"),
    "critic_optimizer.decay": ("linear", "cosine"),
}
POSITIVE = (
    "env.max_turns",
    "env.max_turn_tokens",
    "env.max_tokens",
    "rl.group_size",
    "batch.num_trajectories",
    "batch.row_length",
    "batch.rows_per_micro_batch",
    "sampler.num_slots",
    "sampler.decode_chunk",
    "sampler.page_size",
    "rollout.temperature",
    "rollout.max_in_flight",
    "rollout.sampler_patience_s",
    "sampler.max_waiting",
    "sampler.idle_s",
    "rollout.max_attempts",
    "rollout.max_consecutive_errors",
    "eval.num_tasks",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "weights.keep",
    "rl.kl_max_scale",
)
NOT_NEGATIVE = (
    "env.num_train_tasks",
    "warm_start.num_steps",
    "value_pretraining.max_steps",
    "rl.num_steps",
    "rl.critic_only_steps",
    "rl.kl_budget",
    "rl.max_staleness",
    "rollout.open_batches",
    "sync.lag",
    "eval.every_steps",
    "supervisor.max_restarts",
    "sampler.cache_tokens",
    "sampler.num_processes",
    "sampler.port",
)


# What a row may need, and no rollout of this package gives.
NOT_SAMPLED = ("preference", "prompt value", "gold answer", "forks", "states")


class ConfigError(ValueError):
    """The config can't be run; the message lists every problem, one a line."""


def check(config: ConfigDict) -> None:
    """Raises ConfigError with all problems at once, each with the field and what is allowed."""
    parts = (_finite, _ranges, _batch_sizes, _processes, _contradictions)
    problems = [problem for part in parts for problem in part(config)]
    if problems:
        raise ConfigError("the config can't be run:\n" + "\n".join(f"  {p}" for p in problems))


def check_algorithm(
    config: ConfigDict, name: str, *, needs: tuple[str, ...], num_minibatches: int
) -> None:
    """The same for what an algorithm asks of the rest.

    Args:
      name: of its row.
      needs: of algorithms/row.py, NEEDS.
      num_minibatches: policy updates of a pass over a batch.
    """
    problems = list(_of_algorithm(config, name, needs, num_minibatches))
    if problems:
        raise ConfigError("the config can't be run:\n" + "\n".join(f"  {p}" for p in problems))


def check_service(config: ConfigDict) -> None:
    """The same for what a sampler needs to listen."""
    problems = list(_service(config))
    if problems:
        raise ConfigError("the sampler can't listen:\n" + "\n".join(f"  {p}" for p in problems))


def _field(config: ConfigDict, path: str):
    for name in path.split("."):
        config = config[name]
    return config


def _of_algorithm(
    config: ConfigDict, name: str, needs: tuple[str, ...], num_minibatches: int
) -> Iterator[str]:
    rl, batch = config.rl, config.batch
    if rl.critic_only_steps and "critic" not in needs:
        yield (
            f"rl.critic_only_steps is {rl.critic_only_steps}, and algorithm {name!r} has no "
            "critic; set it to 0"
        )
    if missing := [need for need in needs if need in NOT_SAMPLED]:
        yield (
            f"algorithm.name is {name!r}, which needs {', '.join(missing)}: rollouts are "
            "independent or in groups only; python -m jaxrl_single.run.score scores its losses"
        )
    if "groups" in needs and rl.group_size < 2:
        yield (
            f"rl.group_size is {rl.group_size}, and algorithm {name!r} compares the trajectories "
            "of a group; use 2 or more"
        )
    for rows in batch.row_buckets:
        if rows % (batch.rows_per_micro_batch * num_minibatches):
            yield (
                f"batch.row_buckets holds {rows}, not a multiple of batch.rows_per_micro_batch "
                f"({batch.rows_per_micro_batch}) x algorithm.num_minibatches ({num_minibatches})"
            )


def _finite(config: ConfigDict) -> Iterator[str]:
    for path, value in workdir_config.flatten(config.to_dict()).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{path} is {value}, must be a finite number; JSON, which saves it, has no other"


def _ranges(config: ConfigDict) -> Iterator[str]:
    for path, allowed in CHOICES.items():
        value = _field(config, path)
        if value not in allowed:
            yield f"{path} is {value!r}, allowed are {', '.join(allowed)}"
    for path in POSITIVE:
        if not _field(config, path) > 0:
            yield f"{path} is {_field(config, path)}, must be greater than 0"
    for path in NOT_NEGATIVE:
        if _field(config, path) < 0:
            yield f"{path} is {_field(config, path)}, must not be negative"
    if not 0 <= config.warm_start.mistake_rate <= 1:
        yield f"warm_start.mistake_rate is {config.warm_start.mistake_rate}, must be in [0, 1]"
    if not 0 < config.value_pretraining.held_out_fraction < 1:
        yield "value_pretraining.held_out_fraction must lie between 0 and 1"


def _batch_sizes(config: ConfigDict) -> Iterator[str]:
    batch, env = config.batch, config.env
    if env.max_tokens > batch.row_length:
        yield (
            f"env.max_tokens ({env.max_tokens}) exceeds batch.row_length ({batch.row_length}): "
            "the longest episode would not fit a row"
        )
    for rows in batch.row_buckets:
        if rows % batch.rows_per_micro_batch:
            yield (
                f"batch.row_buckets holds {rows}, not a multiple of "
                f"batch.rows_per_micro_batch ({batch.rows_per_micro_batch})"
            )
    sizes = {
        "batch.num_trajectories": batch.num_trajectories,
        "warm_start.batch_size": config.warm_start.batch_size,
    }
    for name, size in sizes.items():
        if max(batch.row_buckets) < size:
            yield (
                f"the largest of batch.row_buckets ({max(batch.row_buckets)}) is below "
                f"{name} ({size}): long episodes would not fit"
            )
    mesh = config.trainer.mesh
    if batch.rows_per_micro_batch % max(1, mesh.data * mesh.fsdp):
        yield (
            f"batch.rows_per_micro_batch is {batch.rows_per_micro_batch}, not a multiple of "
            f"trainer.mesh.data x fsdp ({mesh.data} x {mesh.fsdp}), over which rows are split"
        )
    if mesh.context != 1:
        yield f"trainer.mesh.context is {mesh.context}: nothing is split over it yet; use 1"
    if config.rl.group_size > 0 and batch.num_trajectories % config.rl.group_size:
        yield "batch.num_trajectories must be a multiple of rl.group_size"


def _processes(config: ConfigDict) -> Iterator[str]:
    rollout, sampler = config.rollout, config.sampler
    http = rollout.client == "http"
    if rollout.client != "in_process" and config.mode == "sync":
        yield (
            f"rollout.client is {rollout.client}, and mode=sync is one process; "
            "use rollout.client=in_process"
        )
    if not http and (sampler.num_processes != 1 or rollout.sampler_urls):
        yield (
            f"sampler.num_processes is {sampler.num_processes} and rollout.sampler_urls "
            f"{list(rollout.sampler_urls)}, which need rollout.client=http"
        )
    for url in rollout.sampler_urls:
        if not str(url).startswith(("http://", "https://")):
            yield f"rollout.sampler_urls holds {url!r}, expected http://HOST:PORT"
    if rollout.client == "vllm":
        yield from _vllm(config)
    # Without a number of samplers, or with samplers of others, nobody knows the slots.
    count = 0 if rollout.sampler_urls else sampler.num_processes
    if http and count:
        yield from _service(config)
    if count and rollout.max_in_flight > sampler.num_slots * count:
        yield (
            f"rollout.max_in_flight ({rollout.max_in_flight}) exceeds sampler.num_slots "
            f"({sampler.num_slots}) of {count} sampler(s): an episode keeps its slot between turns"
        )


def _vllm(config: ConfigDict) -> Iterator[str]:
    if config.sampler.swap != "recompute":
        yield (
            f"sampler.swap is {config.sampler.swap}, but after a swap vLLM reads what is in flight "
            "again; say so with sampler.swap=recompute"
        )
    if config.sampler.record_experts:
        yield "sampler.record_experts is on, but experts are not recorded from vLLM; turn it off"
    if not config.vllm.url.startswith(("http://", "https://")):
        yield f"vllm.url is {config.vllm.url!r}, expected http://HOST:PORT"


def _service(config: ConfigDict) -> Iterator[str]:
    host, path = config.sampler.host, config.sampler.token_file
    try:
        token = access.read_token(path)
    except (OSError, ValueError) as error:
        yield f"sampler.token_file is {path!r}: {error}"
        return
    if token is None and not access.is_loopback(host):
        yield (
            f"sampler.host is {host!r}, which others can reach, so it needs a secret: put one into "
            f"sampler.token_file or {access.TOKEN_VARIABLE}, or listen on 127.0.0.1"
        )


def _open_batches(config: ConfigDict) -> Iterator[str]:
    count, most = config.rollout.open_batches, config.rl.max_staleness + 1
    if config.mode != "sync" and count > most:
        yield (
            f"rollout.open_batches ({count}) exceeds rl.max_staleness + 1 ({most}): what comes "
            "last would be too old"
        )


def _contradictions(config: ConfigDict) -> Iterator[str]:
    env, sampler = config.env, config.sampler
    if config.sync.lag > config.rl.max_staleness:
        yield (
            f"sync.lag ({config.sync.lag}) exceeds rl.max_staleness ({config.rl.max_staleness}): "
            "every trajectory would be dropped"
        )
    yield from _open_batches(config)
    if config.mode == "local" and config.rl.max_staleness == 0:
        yield "rl.max_staleness is 0, which asynchronous training can't meet; use mode=sync"
    shape = None if config.model.path else sizes.SIZES.get(config.model.size)
    if sampler.record_experts and shape is not None and not shape.num_experts:
        yield (
            f"sampler.record_experts is on, but model.size {config.model.size!r} has no experts; "
            "turn it off or choose a mixture of experts"
        )
    if bool(env.tasks_file) != bool(env.eval_tasks_file):
        yield "env.tasks_file and env.eval_tasks_file are needed together (training, held-out)"
