"""The last words of a run: what was reached, how asynchronous it was, where to look next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxrl_single import workdir
from jaxrl_single.report import wording


def text(paths: workdir.Workdir) -> str:
    """Several lines for people, from the files of a run that has ended.

    Raises:
      workdir.BrokenFile: a file of the workdir is broken.
    """
    blocks = [
        f"Run {workdir.run_id_of(paths)}",
        _evaluations(workdir.read_evals(paths)),
        _asynchrony(paths),
        _next(paths),
    ]
    return "\n\n".join(filter(None, blocks))


def _evaluations(evaluations: Sequence[workdir.Eval]) -> str:
    if not evaluations:
        return ""
    lines = ["Held-out success (95 % interval)"]
    chosen = evaluations if len(evaluations) <= 2 else (evaluations[0], evaluations[-1])
    for evaluation in chosen:
        if evaluation.stage == "warm_start":
            when = "after warm start"
        else:
            when = f"after {evaluation.step} steps of RL"
        lines.append(
            f"  {when:24} {wording.success(evaluation)}, version {evaluation.policy_version}"
        )
    return "\n".join(lines)


def _asynchrony(paths: workdir.Workdir) -> str:
    records = [r for r in workdir.read_jsonl(paths.metrics) if r.get("stage") == "rl"]
    if not records:
        return ""
    largest = max((r.get("staleness/max") or 0 for r in records), default=0)
    spans = _mean(records, "staleness/spans_versions", "train/trajectories")
    staleness = _mean(records, "staleness/mean", "train/action_tokens")
    lines = [
        f"Asynchrony, over {len(records)} logged steps of RL",
        f"  {_processes(paths)}",
        f"  staleness {wording.number(staleness)} versions in the mean, {largest:.0f} at most; "
        f"{_percent(spans)} of the trajectories were sampled by more than one version",
        f"  {_percent(_mean(records, 'keep/fraction', 'train/action_tokens'))} of the tokens kept",
        f"  time: {_times(records)}",
    ]
    status = workdir.read_status(paths)
    if status is not None:
        counts = status.trajectories
        lines.insert(
            3,
            f"  trajectories: {counts.get('written', 0)} written, {counts.get('trained', 0)} "
            f"trained, {counts.get('dropped_stale', 0)} dropped as too stale, "
            f"{counts.get('errors', 0)} errors",
        )
    return "\n".join(lines)


def _processes(paths: workdir.Workdir) -> str:
    record = workdir.read_json(paths.processes)
    if record is None:
        return "one process (mode sync)"
    words = []
    for name, child in record["children"].items():
        restarts = child.get("restarts", 0)
        times = f" (restarted {restarts} times)" if restarts else ""
        words.append(f"{name}: process {child['pid']}{times}")
    return ", ".join(words)


def _times(records: Sequence[dict[str, Any]]) -> str:
    total = sum(record.get("time/step_s") or 0.0 for record in records)
    if not total:
        return "-"
    names = {"training": "train", "waiting for trajectories": "wait", "publishing": "publish"}
    shares = [
        f"{100 * sum(r.get(f'time/{short}_s') or 0.0 for r in records) / total:.0f} % {name}"
        for name, short in names.items()
    ]
    return f"{wording.duration(total)}, of it {', '.join(shares)}"


def _next(paths: workdir.Workdir) -> str:
    root = os.path.relpath(paths.root)
    root = str(paths.root) if root.startswith("..") else root
    return "\n".join(
        [
            "Where to look next",
            f"  python -m jaxrl_single.run.inspect {root}",
            f"  tensorboard --logdir {root}/tensorboard    (pip install tensorboard)",
            f"  {root}/metrics.jsonl    every name is explained in jaxrl_single/metrics/names.py",
            f"  {root}/logs    what each process has printed",
        ]
    )


def _mean(records: Sequence[dict[str, Any]], name: str, weight: str) -> float | None:
    """Mean over all steps, each weighted by the number that its own mean was taken over."""
    pairs = [(r[name], r.get(weight) or 1.0) for r in records if r.get(name) is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
