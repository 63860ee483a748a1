"""Starts a run from a config: checks everything that needs no device, then supervises."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import sys
from collections.abc import Collection, Iterator

import ml_collections

from jaxrl_single import types, workdir
from jaxrl_single.envs import own_code, user_code
from jaxrl_single.envs import table as env_table
from jaxrl_single.models import pretrained
from jaxrl_single.report import progress, summary
from jaxrl_single.run import child_process, command_line
from jaxrl_single.stages import addresses, demonstrations
from jaxrl_single.stages import world as world_lib
from jaxrl_single.supervise import (
    beginning,
    check_config,
    child,
    devices,
    lock,
    processes,
    provenance,
    workdir_config,
)

_FOR_PEOPLE = (
    check_config.ConfigError,
    devices.DeviceError,
    lock.WorkdirBusy,
    workdir.BrokenFile,
    workdir.CannotWrite,
    workdir_config.WorkdirConflict,
)


def run(
    config: ml_collections.ConfigDict, root: str, *, accept_changed: Collection[str] = ()
) -> int:
    """Runs all stages in `root`; returns the exit code.

    That is 2 when nothing was started, 128 + SIGNAL when a signal has stopped it.

    Args:
      accept_changed: of provenance.PARTS; may differ from what the run was made of.
    """
    try:
        plan, told = _prepare(config, root, accept_changed)
        paths, _ = workdir.create(root)
        with lock.hold(paths) as reclaimed:
            _check_ports(config)
            provenance.check(paths, config.to_dict(), accepted=accept_changed)
            if not workdir.has_checkpoint(paths):
                weights = workdir.weights_directory(paths, config.weights.directory)
                told += beginning.begin_anew(paths, weights)
            for line in [*reclaimed, *told]:
                print(line, flush=True)
            config.mode = plan.mode
            code = (
                _run_sync(config, paths)
                if config.mode == "sync"
                else _run_local(config, paths, plan)
            )
            if code == 0:
                print(summary.text(paths))
            elif code > 128:
                print(summary.stopped(paths))
            return code
    except _FOR_PEOPLE as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before anybody took signals
        print("stopped before anything was started, the same command begins again")
        return command_line.INTERRUPTED


def dry_run(
    config: ml_collections.ConfigDict,
    root: str | None = None,
    *,
    accept_changed: Collection[str] = (),
) -> int:
    """Prints what `run` would do, or refuses what it would refuse; makes and changes nothing."""
    try:
        _, told = _prepare(config, root, accept_changed)
        if root is not None:
            lock.check_free(workdir.Workdir(root))
        _check_ports(config)
        from jaxrl_single.stages import plan  # imports jax

        print(plan.describe(config))
        for line in told:
            print(f"  {line}")
    except _FOR_PEOPLE as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _prepare(
    config: ml_collections.ConfigDict, root: str | None, accept_changed: Collection[str]
) -> tuple[devices.DevicePlan, list[str]]:
    """All checks that come before anything is made; returns who gets what, and lines for people.

    Args:
      root: the workdir; None = only what does not depend on it.
    """
    notices, plan = _check(config)
    devices.check_mesh(plan, config.trainer.mesh.to_dict())
    changed, started_from = [], _check_warm_start(config, root)
    if root is not None:
        paths = workdir.Workdir(root)
        workdir_config.check_place(paths)
        changed, _ = provenance.compare(paths, config.to_dict(), accepted=accept_changed)
    told = [*changed, *notices, *started_from, plan.message]
    return plan, list(filter(None, told))


def _check(config: ml_collections.ConfigDict) -> tuple[list[str], devices.DevicePlan]:
    """All that can be told without a device: notices of the tasks, and who gets which device."""
    check_config.check(config)
    notices = _check_world(config)
    _check_model(config)
    plan = _plan_devices(config)
    if plan.mode == "sync":
        # This process will train, and what comes next imports jax, which reads some of them then.
        os.environ.update({**child_process.cache_env(), **plan.trainer_env})
    _check_algorithm(config)
    return notices, plan


def _check_world(config: ml_collections.ConfigDict) -> list[str]:
    """Environment, options and tasks files, before any device is touched; returns notices."""
    try:
        spec = env_table.get(config.env.name)
        section = config.env.to_dict()
        spec.make_env(section)
        spec.make_chat()
        if spec.make_script:
            spec.make_script(section)
        tasks = {split: spec.make_tasks(section, split, config.seed) for split in types.SPLITS}
        firsts = [some[0] for some in tasks.values()]
        spec.trial(section, firsts[0])
        return [spec.notice(section), *_of_counts(config, {s: len(t) for s, t in tasks.items()})]
    except (ValueError, OSError) as error:
        raise check_config.ConfigError(f"env: {command_line.sentence(error)}") from error
    except BaseException as error:
        if not own_code.is_own(config.env.name) or isinstance(error, KeyboardInterrupt):
            raise
        raise check_config.ConfigError(
            f"env: env.name is {config.env.name!r}, and it failed: {user_code.place(error)}"
        ) from error


def _of_counts(config: ml_collections.ConfigDict, counts: dict[str, int]) -> Iterator[str]:
    """Where fewer tasks are there than the config asks for."""
    asked = {
        "train": ("env.num_train_tasks", config.env.num_train_tasks),
        "eval": ("eval.num_tasks", config.eval.num_tasks),
    }
    for split, (field, wanted) in asked.items():
        if wanted > counts[split]:
            kind = "training" if split == "train" else "held-out"
            yield f"{field} is {wanted}, and there are {counts[split]} {kind} tasks: it takes these"


def _check_ports(config: ml_collections.ConfigDict) -> None:
    """That the run's own samplers can listen where the config says; call it with the lock held."""
    section = config.sampler
    if config.rollout.client != "http" or not section.port:
        return
    for port in range(section.port, section.port + len(addresses.sampler_names(config))):
        try:
            with socket.create_server((section.host, port)):
                pass
        except (OSError, OverflowError) as error:
            raise check_config.refusal(
                [
                    f"sampler.port: nothing can listen on {section.host}:{port} ({error}); choose "
                    "another, or 0 for any that is free"
                ]
            ) from error


def _check_model(config: ml_collections.ConfigDict) -> None:
    """The checkpoint that the run starts from: its family, tensors and text; nothing is loaded."""
    if not config.model.path:
        return
    try:
        checkpoint = pretrained.open_checkpoint(config.model.path, dtype=config.model.dtype)
        world_lib.make_language(config)
    except (ValueError, OSError) as error:
        raise check_config.ConfigError(f"model.path: {command_line.sentence(error)}") from error
    if config.env.max_tokens > checkpoint.description.context_length:
        raise check_config.ConfigError(
            f"env.max_tokens is {config.env.max_tokens}, and {checkpoint.path} was made for "
            f"{checkpoint.description.context_length} tokens"
        )
    if config.sampler.record_experts and not checkpoint.config.num_experts:
        raise check_config.ConfigError(
            f"sampler.record_experts is on, but {checkpoint.path} has no experts; turn it off"
        )


def _check_algorithm(config: ml_collections.ConfigDict) -> None:
    from jaxrl_single.stages import build  # imports jax, and touches no device

    try:
        algorithm = build.algorithm(config)
    except ValueError as error:
        raise check_config.refusal(str(error).splitlines()) from error
    check_config.check_algorithm(
        config,
        algorithm.name,
        needs=algorithm.needs,
        num_minibatches=algorithm.num_minibatches,
        least_draws=algorithm.least_draws,
    )
    vocab_size = world_lib.make_language(config)[0].vocab_size
    check_config.refuse(_of_vocabulary(config, algorithm.needs, vocab_size))
    if algorithm.needs_critic:
        try:
            build.check_critic_rules(config, vocab_size)
        except ValueError as error:
            raise check_config.refusal([f"critic.rules: {error}"]) from error


def _of_vocabulary(
    config: ml_collections.ConfigDict, needs: tuple[str, ...], vocab_size: int
) -> Iterator[str]:
    read = {"top_k": "topk" in needs, "top_logprobs": config.rollout.client == "http"}
    for field, is_read in read.items():
        if is_read and config.sampler[field] > vocab_size:
            yield (
                f"sampler.{field} is {config.sampler[field]}, and the vocabulary has {vocab_size} "
                "tokens"
            )


def _check_warm_start(config: ml_collections.ConfigDict, root: str | None) -> list[str]:
    """What the first stage starts from, unless it is done already; lines for people."""
    if root is not None and _has_warm_start(root):
        return []
    warm = config.warm_start
    if warm.workdir and not _has_warm_start(warm.workdir):
        raise check_config.ConfigError(
            f"warm_start.workdir is {warm.workdir!r}, where no warm start is finished"
        )
    if warm.workdir:
        other = provenance.other_tokenizer(workdir.Workdir(warm.workdir), config.to_dict())
        if other:
            raise check_config.ConfigError(
                f"warm_start.workdir is {warm.workdir!r}, of another {'; '.join(other)}"
            )
    try:
        return demonstrations.check(config)
    except (ValueError, OSError) as error:
        raise check_config.ConfigError(str(error)) from error


def _has_warm_start(root: str) -> bool:
    directory = workdir.Workdir(root).stage_checkpoints("warm_start")
    return workdir.newest_checkpoint(directory) is not None


def _plan_devices(config: ml_collections.ConfigDict) -> devices.DevicePlan:
    unusable = devices.unusable()
    if unusable and (config.trainer.devices or config.sampler.devices not in ("", "cpu")):
        raise devices.DeviceError(unusable)
    platform, chips = ("cpu", ("0",)) if unusable else devices.detect()
    plan = devices.plan(
        config.mode,
        platform,
        chips,
        trainer_devices=config.trainer.devices,
        sampler_devices=config.sampler.devices,
        trainer_memory=config.trainer.memory_fraction,
        sampler_memory=config.sampler.memory_fraction,
        num_samplers=len(addresses.sampler_names(config)),
    )
    return dataclasses.replace(plan, message=f"{plan.message}; {unusable}") if unusable else plan


def _run_local(
    config: ml_collections.ConfigDict, paths: workdir.Workdir, plan: devices.DevicePlan
) -> int:
    section = config.supervisor
    display = progress.Display(paths)
    supervisor = processes.Supervisor(
        paths,
        _programs(config, paths, plan),
        heartbeat_s=section.heartbeat_s,
        stop_timeout_s=section.stop_timeout_s,
        tick=display.tick,
        say=display.say,
    )
    with display:
        outcome = supervisor.run()
    if outcome.message:
        print(outcome.message, file=sys.stderr)
    return outcome.exit_code


def _programs(
    config: ml_collections.ConfigDict, paths: workdir.Workdir, plan: devices.DevicePlan
) -> list[processes.Program]:
    """The trainer, the samplers of this run, and the rollout if it is not beside the sampler."""
    max_restarts = config.supervisor.max_restarts

    def program(name: str, module: str, *flags: str, **fields) -> processes.Program:
        argv = (sys.executable, "-m", f"jaxrl_single.run.{module}", f"--workdir={paths.root}")
        env = {**child_process.cache_env(), **fields.pop("env", {})}
        return processes.Program(name, (*argv, *flags), env=env, **fields)

    programs = [program("trainer", "trainer", env=plan.trainer_env, main=True)]
    for name, env in zip(addresses.sampler_names(config), plan.sampler_envs, strict=True):
        flag = f"--name={name}"
        programs.append(program(name, "sampler", flag, env=env, max_restarts=max_restarts))
    if config.rollout.client == "http":
        programs.append(program("rollout", "rollout", max_restarts=max_restarts))
    return programs


def _run_sync(config: ml_collections.ConfigDict, paths: workdir.Workdir) -> int:
    from jaxrl_single.stages import trainer_process

    # The screen belongs to the display; there is no second process with a log file of its own.
    for name in (None, "absl"):
        logging.getLogger(name).setLevel(logging.WARNING)
    display = progress.Display(paths)
    with display:
        return child_process.guarded(
            trainer_process.run,
            config,
            paths,
            for_people=trainer_process.FOR_PEOPLE,
            stopping=child.stop_on_signals(),
            beat=display.tick,
        )
