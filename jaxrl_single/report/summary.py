"""The last words of a run: what was reached, how asynchronous it was, where to look next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxrl_single import workdir
from jaxrl_single.metrics import alarms, success
from jaxrl_single.report import inspect, wording


def text(paths: workdir.Workdir) -> str:
    """Several lines for people, from the files of a run that has ended.

    Raises:
      workdir.BrokenFile: a file of the workdir is broken.
    """
    evaluations = sorted(workdir.read_evals(paths), key=lambda evaluation: evaluation.step)
    records = [r for r in workdir.read_jsonl(paths.metrics) if r.get("stage") == "rl"]
    raised = alarms.scan(records)
    blocks = [
        f"Run {workdir.run_id_of(paths)}",
        _evaluations(evaluations),
        "\n".join(filter(None, [verdict(evaluations, raised), _best(paths)])),
        _accepted(paths),
        _alarms(raised),
        _asynchrony(paths, records),
        _next(paths),
    ]
    return "\n\n".join(filter(None, blocks))


def stopped(paths: workdir.Workdir) -> str:
    """One line about a run that a signal has stopped: where it was, and where it continues.

    Raises:
      workdir.BrokenFile: a file of the workdir is broken.
    """
    status = workdir.read_status(paths)
    if status is None:
        return "stopped before the first step, the same command begins again"
    where = f"stopped at step {status.step} of {status.num_steps}"
    if status.stage not in ("rl", "final", "done"):
        saved = workdir.newest_checkpoint(paths.stage_checkpoints(f"{status.stage}.unfinished"))
        if saved is None:
            return (
                f"{where} of {wording.stage(status.stage)}, the same command continues: it begins "
                "this stage again, and keeps the stages before it"
            )
        rest = "" if status.stage == "warm_start" else " with the rollouts that it has taken"
        return f"{where} of {wording.stage(status.stage)}, the same command continues{rest}"
    saved = workdir.newest_checkpoint(paths.stage_checkpoints("rl"))
    step = 0 if saved is None else saved[0]
    if step != status.step:
        return f"{where}, the same command continues from step {step}, which was saved last"
    return f"{where}, the same command continues"


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


def verdict(evaluations: Sequence[workdir.Eval], raised: Sequence[alarms.Raised]) -> str:
    """What RL has changed, on the tasks evaluated before and after it; "" if one is missing.

    Without a gain it names the likely cause, that of the first alarm in the order of their table.
    """
    before = next((e.outcomes for e in evaluations if e.stage == "warm_start"), None)
    after = evaluations[-1].outcomes if evaluations and evaluations[-1].step else None
    change = success.change(before, after) if before and after else None
    if change is None:
        return ""
    words = {
        "better": "better than before RL",
        "worse": "WORSE than before RL",
        "unchanged": "unchanged by RL, as far as these tasks can tell",
    }
    interval = f"{change.ci_low:+.3f} to {change.ci_high:+.3f}"
    text = (
        f"Verdict: {words[change.verdict]}: {change.difference:+.3f} ({interval}) on the same "
        f"{change.n} tasks, {change.gained} gained and {change.lost} lost"
    )
    if change.verdict != "better" and raised:
        cause = raised[0].alarm
        text += f"\n  likely cause: {cause.causes} ({cause.name})\n  what to try: {cause.advice}"
    return text


def _best(paths: workdir.Workdir) -> str:
    best = workdir.read_best(paths)
    if best is None:
        return ""
    root = _shown(paths)
    return (
        f"Best: version {best.policy_version}, RL step {best.step}, {wording.success(best)}, is "
        f"kept in {root}/best\n"
        f"  python -m jaxrl_single.run.convert --from={root} --version=best --to=DIR"
    )


def _accepted(paths: workdir.Workdir) -> str:
    """What the run is made of that changed while it went on."""
    accepted = (workdir.read_json(paths.provenance) or {}).get("accepted", [])
    lines = [
        f"  {wording.stage(one['stage'] or 'the beginning')}, step {one['step'] or 0}: {change}"
        for one in accepted
        for change in one["changes"]
    ]
    head = "Changed while the run went on (--accept_changed): what is before and after is not alike"
    return "\n".join([head, *lines]) if lines else ""


def _alarms(raised: Sequence[alarms.Raised]) -> str:
    if not raised:
        return ""
    lines = ["Alarms (docs/troubleshooting.md)"]
    for one in raised:
        until = f"since RL step {one.first_step}" if one.now else _steps(one)
        lines.append(f"  {one.alarm.name}, {until}: {one.alarm.meaning}")
        lines.append(f"    what to try: {one.alarm.advice}")
    return "\n".join(lines)


def _steps(raised: alarms.Raised) -> str:
    if raised.first_step == raised.last_step:
        return f"RL step {raised.first_step}"
    return f"RL steps {raised.first_step} to {raised.last_step}"


def _asynchrony(paths: workdir.Workdir, records: Sequence[dict[str, Any]]) -> str:
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
    counts = inspect.inspect(paths)["trajectories"]
    lines.insert(
        3,
        "  trajectories, those of value pretraining included: "
        f"{counts['written']} written, {counts['trained']} trained, {counts['dropped_stale']} "
        f"dropped as too stale, {counts['errors']} errors, {counts['pending']} left over",
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
    root = _shown(paths)
    return "\n".join(
        [
            "Where to look next",
            f"  python -m jaxrl_single.run.inspect {root}",
            f"  tensorboard --logdir {root}/tensorboard    (pip install tensorboard)",
            f"  {root}/metrics.jsonl    every name is explained in jaxrl_single/metrics/names.py",
            f"  {root}/logs    what each process has printed",
        ]
    )


def _shown(paths: workdir.Workdir) -> str:
    root = os.path.relpath(paths.root)
    return str(paths.root) if root.startswith("..") else root


def _mean(records: Sequence[dict[str, Any]], name: str, weight: str) -> float | None:
    """Mean over all steps, each weighted by the number that its own mean was taken over."""
    pairs = [(r[name], r.get(weight) or 1.0) for r in records if r.get(name) is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
