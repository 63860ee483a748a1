"""How numbers of a run are put into words."""

from __future__ import annotations

from typing import Any

from jaxrl_single import workdir
from jaxrl_single.report import snapshot as snapshot_lib

STAGES = {
    "warm_start": "warm start",
    "value_pretraining": "value pretraining",
    "rl": "RL",
    "final": "final evaluation",
    "done": "done",
}


def stage(name: str) -> str:
    return STAGES.get(name, name)


def number(value: Any, digits: int = 2) -> str:
    """A dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """ "1 h 05 min", "3 min 20 s", "12 s", or a dash."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def success(evaluation: workdir.Eval) -> str:
    """ "0.946 (0.923 to 0.962), 512 tasks"; the interval is the 95 % one."""
    interval = f"{number(evaluation.ci_low, 3)} to {number(evaluation.ci_high, 3)}"
    return f"{number(evaluation.success, 3)} ({interval}), {evaluation.n} tasks"


def rows(snapshot: snapshot_lib.Snapshot) -> list[tuple[str, str]]:
    """(label, value) pairs of the present stage, for the display."""
    status, metrics = snapshot.status, snapshot.metrics
    progress = f"{status.step}/{status.num_steps}" if status.num_steps else str(status.step)
    pairs = [("step", progress), *_measured(status.stage, metrics)]
    if snapshot.evaluations and status.stage in ("rl", "final", "done"):
        newest = snapshot.evaluations[-1]
        pairs.append(("held-out", f"{number(newest.success)} (step {newest.step})"))
    if names := [raised.alarm.name for raised in snapshot.alarms if raised.now]:
        pairs.append(("alarms", ", ".join(names)))
    if snapshot.seconds_left:
        pairs.append(("left", duration(snapshot.seconds_left)))
    return pairs


def _measured(stage_name: str, metrics: dict[str, Any]) -> list[tuple[str, str]]:
    def get(name: str, digits: int = 2) -> str:
        return number(metrics.get(name), digits)

    if not metrics:
        return []
    if stage_name == "warm_start":
        return [("loss", get("warm_start/loss", 3))]
    if stage_name == "value_pretraining":
        return [
            ("loss", get("value_pretraining/loss", 3)),
            ("explained variance", get("value_pretraining/explained_variance")),
        ]
    staleness = f"{get('staleness/mean', 1)} (max {get('staleness/max', 0)})"
    trainer, sampler = get("speed/trainer_tokens_per_s", 0), get("speed/sampler_tokens_per_s", 0)
    return [
        ("reward", get("episode/reward")),
        ("staleness", staleness),
        ("kept", get("keep/fraction", 3)),
        ("explained variance", get("critic/explained_variance")),
        ("tokens/s", f"{trainer} trained, {sampler} sampled"),
    ]
