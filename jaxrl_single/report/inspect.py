"""The state of a run as one JSON object, from the files of its workdir. No jax."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl_single import workdir

_BEFORE_RL = ("warm_start", "value_pretraining")  # stages whose steps are no policy updates


def inspect(paths: workdir.Workdir) -> dict[str, Any]:
    """What the run is now, or, when it does not run, what a rerun would continue from.

    A running run says it in status.json. A run that was killed had gone further than its newest
    checkpoint, but a rerun continues there, so then the checkpoint speaks; it does for a run that
    is done as well, whose sampler had played on while the last evaluation was made.

    Returns:
      {"run_id", "step", "policy_version", "params_sha256", "trajectories", "evals"}; `step`
      counts policy updates of RL, `params_sha256` is None before the first published version,
      `trajectories` counts written, trained, dropped_stale, errors, pending.

    Raises:
      workdir.BrokenFile: no run lives here, or a file of it is broken.
    """
    run_id = workdir.run_id_of(paths)
    status = workdir.read_status(paths)
    live = (
        status is not None
        and status.params_sha256 is not None
        and status.stage != "done"
        and workdir.is_running(paths)
    )
    facts = _of_status(status) if live else _of_checkpoint(paths) or _of_status(status)
    evals = [_plain(evaluation) for evaluation in workdir.read_evals(paths)]
    return {"run_id": run_id, **facts, "evals": evals}


def _plain(evaluation: workdir.Eval) -> dict[str, Any]:
    """All of it but the outcome of each task, for which there is evals.jsonl."""
    record = dataclasses.asdict(evaluation)
    del record["outcomes"]
    return record


def _of_status(status: workdir.Status | None) -> dict[str, Any]:
    if status is None:
        status = workdir.Status(stage=_BEFORE_RL[0], step=0, num_steps=0)
    return {
        "step": 0 if status.stage in _BEFORE_RL else status.step,
        "policy_version": status.policy_version,
        "params_sha256": status.params_sha256,
        "trajectories": _counts(status.trajectories),
    }


def _of_checkpoint(paths: workdir.Workdir) -> dict[str, Any] | None:
    for stage in ("rl", "value_pretraining"):
        newest = workdir.newest_checkpoint(paths.stage_checkpoints(stage))
        if newest is not None:
            step, metadata = newest
            return {
                "step": step if stage == "rl" else 0,
                "policy_version": metadata.get("policy_version", -1),
                "params_sha256": metadata.get("params_sha256"),
                "trajectories": _counts(metadata.get("counts", {})),
            }
    return None


def _counts(found: dict[str, int]) -> dict[str, int]:
    return {name: found.get(name, 0) for name in workdir.NOBODY}
