"""Checks of a config that need no device: values that are not allowed, fields that contradict.

Unknown field names never get this far: the config is locked and the flag parser names the
nearest valid one.
"""

import math
import re
from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from jaxrl_single.models import sizes
from jaxrl_single.sampler.service import access
from jaxrl_single.supervise import config_fields, config_shape, workdir_config

# What a row may need, and no rollout of this package gives.
NOT_SAMPLED = ("preference", "prompt value", "gold answer", "forks", "states")


class ConfigError(ValueError):
    """The config can't be run; the message lists every problem, one a line."""


def check(config: ConfigDict) -> None:
    """Raises ConfigError with all problems at once, each with the field and what is allowed.

    Whether fields contradict is asked when each of them is allowed alone.
    """
    refuse(config_shape.problems(config))
    alone = (_finite, _choices, _ranges, _several, _critic_rules)
    refuse(problem for part in alone for problem in part(config))
    together = (_batch_sizes, _stages, _processes, _contradictions)
    refuse(problem for part in together for problem in part(config))


def refuse(problems: Iterable[str]) -> None:
    """Raises ConfigError if there are any."""
    if found := list(problems):
        raise refusal(found)


def refusal(problems: Iterable[str]) -> ConfigError:
    """The error that lists them."""
    return ConfigError("\n  ".join(["the config can't be run:", *problems]))


def check_algorithm(
    config: ConfigDict,
    name: str,
    *,
    needs: tuple[str, ...],
    num_minibatches: int,
    least_draws: int = 0,
) -> None:
    """The same for what an algorithm asks of the rest.

    Args:
      name: of its row.
      needs: of algorithms/row.py, NEEDS.
      num_minibatches: policy updates of a pass over a batch.
      least_draws: auxiliary draws per token.
    """
    refuse(
        [
            *_of_algorithm(config, name, needs, num_minibatches),
            *_of_recording(config, name, needs, least_draws),
        ]
    )


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
    if num_minibatches > 1 and "num_minibatches" not in config.algorithm:
        yield (
            f"algorithm.num_minibatches is not in the config, and algorithm {name!r} has "
            f"{num_minibatches}; put it there, because the length of episodes depends on it"
        )
    for rows in batch.row_buckets:
        if rows % (batch.rows_per_micro_batch * num_minibatches):
            yield (
                f"batch.row_buckets holds {rows}, not a multiple of batch.rows_per_micro_batch "
                f"({batch.rows_per_micro_batch}) x algorithm.num_minibatches ({num_minibatches})"
            )


def _of_recording(
    config: ConfigDict, name: str, needs: tuple[str, ...], least_draws: int
) -> Iterator[str]:
    least = {"num_aux_draws": least_draws, "top_k": int("topk" in needs)}
    for field, count in least.items():
        if config.sampler[field] < count:
            yield (
                f"sampler.{field} is {config.sampler[field]}, and algorithm {name!r} needs at "
                f"least {count}"
            )


def _finite(config: ConfigDict) -> Iterator[str]:
    for path, value in workdir_config.flatten(config.to_dict()).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{path} is {value}, must be a finite number; JSON, which saves it, has no other"


def _choices(config: ConfigDict) -> Iterator[str]:
    for path, allowed in config_fields.CHOICES.items():
        value = _field(config, path)
        if value not in allowed:
            yield f"{path} is {value!r}, allowed are {', '.join(allowed)}"
    size = config.model.size
    if not config.model.path and size not in sizes.SIZES:
        yield f"model.size is {size!r}, allowed are {', '.join(sorted(sizes.SIZES))}"


def _ranges(config: ConfigDict) -> Iterator[str]:
    for path, allowed in config_fields.RANGES.items():
        value = _field(config, path)
        if value not in allowed:
            yield f"{path} is {value}, must be {allowed}"


def _several(config: ConfigDict) -> Iterator[str]:
    for path, allowed in config_fields.EACH.items():
        values = tuple(_field(config, path))
        wrong = [v for v in values if not isinstance(v, (int, float)) or v not in allowed]
        for value in wrong:
            yield f"{path} holds {value!r}, must be {allowed}"
        if path not in config_fields.ASCENDING:
            continue
        if not values:
            yield f"{path} is empty, give one number at least"
        elif not wrong and list(values) != sorted(set(values)):
            yield f"{path} is {values}, must be ascending"


def _critic_rules(config: ConfigDict) -> Iterator[str]:
    if not config.critic.rules:
        yield "critic.rules is empty; the critic would not be trained"
    for rule in config.critic.rules:
        if not isinstance(rule, (tuple, list)) or len(rule) != 2:
            yield f"critic.rules holds {rule!r}, but each is a pair of regex and label"
            continue
        pattern, label = rule
        if label not in config_fields.LABELS:
            yield (
                f"critic.rules gives {pattern!r} the label {label!r}, allowed are "
                f"{', '.join(config_fields.LABELS)}"
            )
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            yield f"critic.rules holds {pattern!r}, which is no regular expression: {error}"


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
    for name in ("batch.num_trajectories", "warm_start.batch_size"):
        size = _field(config, name)
        if max(batch.row_buckets) < size:
            yield (
                f"the largest of batch.row_buckets ({max(batch.row_buckets)}) is below "
                f"{name} ({size}): long episodes would not fit"
            )
    mesh = config.trainer.mesh
    if batch.rows_per_micro_batch % (mesh.data * mesh.fsdp):
        yield (
            f"batch.rows_per_micro_batch is {batch.rows_per_micro_batch}, not a multiple of "
            f"trainer.mesh.data x fsdp ({mesh.data} x {mesh.fsdp}), over which rows are split"
        )
    if mesh.context != 1:
        yield f"trainer.mesh.context is {mesh.context}: nothing is split over it yet; use 1"
    if batch.num_trajectories % config.rl.group_size:
        yield "batch.num_trajectories must be a multiple of rl.group_size"


def _stages(config: ConfigDict) -> Iterator[str]:
    warm, value, rl = config.warm_start, config.value_pretraining, config.rl
    if warm.num_steps and not warm.workdir and warm.num_demonstrations < warm.batch_size:
        yield (
            f"warm_start.num_demonstrations is {warm.num_demonstrations}, fewer than "
            f"warm_start.batch_size ({warm.batch_size}); each step takes as many different ones"
        )
    held_out = max(1, round(value.held_out_fraction * value.num_trajectories))
    if value.max_steps and held_out >= value.num_trajectories:
        yield (
            f"value_pretraining.num_trajectories is {value.num_trajectories}, {held_out} of them "
            "held out (value_pretraining.held_out_fraction), and none is left to train"
        )
    if rl.num_steps and rl.critic_only_steps >= rl.num_steps:
        yield (
            f"rl.critic_only_steps is {rl.critic_only_steps}, must be below rl.num_steps "
            f"({rl.num_steps}), or the policy is never trained"
        )


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
    if 0 < sampler.cache_tokens < env.max_tokens:
        yield (
            f"sampler.cache_tokens is {sampler.cache_tokens}, below env.max_tokens "
            f"({env.max_tokens}): one episode would not fit; 0 = all slots full"
        )
    if bool(env.tasks_file) != bool(env.eval_tasks_file):
        yield "env.tasks_file and env.eval_tasks_file are needed together (training, held-out)"
