"""Alarms: what can go wrong while a policy is trained, told from the rows of metrics.jsonl alone.

One table says for each alarm what it means, where it usually comes from, and what to try. The
display, the log, the summary and docs/troubleshooting.md read it; nothing here stops a run.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]  # a line of metrics.jsonl of the stage "rl"
_WINDOW = 10  # rows that most conditions look at: one odd batch is no alarm
_HISTORY = 60  # rows that are remembered, for what has fallen or shrunk


@dataclasses.dataclass(frozen=True)
class Alarm:
    """A condition with a name.

    Attributes:
      name: as it stands in records and in the docs.
      meaning: what is so when it is raised, as a sentence without its full stop.
      causes: where it usually comes from.
      advice: what to try.
      holds: takes the newest rows, `least` to _HISTORY of them, oldest first.
      least: rows before which it is never raised.
    """

    name: str
    meaning: str
    causes: str
    advice: str
    holds: Callable[[Sequence[Row]], bool]
    least: int = _WINDOW


@dataclasses.dataclass(frozen=True)
class Raised:
    """An alarm and the steps of RL at which it held, from the first to the last of them.

    `now` is true when it holds at the newest row.
    """

    alarm: Alarm
    first_step: int
    last_step: int
    now: bool


class Watcher:
    """Follows the rows of a run as they come."""

    def __init__(self) -> None:
        self._rows: collections.deque[Row] = collections.deque(maxlen=_HISTORY)
        self._raised: dict[str, Raised] = {}

    def take(self, row: Row) -> list[Raised]:
        """Looks at the next row; returns the alarms that it raises for the first time.

        A row of an earlier step than the last one means that the run went back to a checkpoint.
        """
        step = row["step"]
        if self._rows and step <= self._rows[-1]["step"]:
            self._forget(step)
        self._rows.append(row)
        rows, new = list(self._rows), []
        for alarm in TABLE:
            before = self._raised.get(alarm.name)
            if len(rows) >= alarm.least and alarm.holds(rows):
                first = before.first_step if before else step
                self._raised[alarm.name] = Raised(alarm, first, step, now=True)
                if before is None:
                    new.append(self._raised[alarm.name])
            elif before:
                self._raised[alarm.name] = dataclasses.replace(before, now=False)
        return new

    def raised(self) -> list[Raised]:
        """All alarms so far, in the order of the table."""
        return [self._raised[alarm.name] for alarm in TABLE if alarm.name in self._raised]

    def _forget(self, step: int) -> None:
        kept = [row for row in self._rows if row["step"] < step]
        self._rows = collections.deque(kept, maxlen=_HISTORY)
        self._raised = {n: one for n, one in self._raised.items() if one.first_step < step}


def sentence(raised: Raised) -> str:
    """An alarm for the log, at the step at which it was raised."""
    alarm = raised.alarm
    return (
        f"alarm {alarm.name} at RL step {raised.first_step}: {alarm.meaning}. Likely cause: "
        f"{alarm.causes}. What to try: {alarm.advice}. See docs/troubleshooting.md"
    )


def scan(rows: Iterable[Row]) -> list[Raised]:
    """The alarms of a run: see `Watcher.raised`."""
    watcher = Watcher()
    for row in rows:
        watcher.take(row)
    return watcher.raised()


def _values(rows: Sequence[Row], name: str, last: int = _WINDOW) -> list[float]:
    """Of the last rows; [] unless each of them has a number there."""
    found = [row.get(name) for row in rows[-last:]]
    known = [float(value) for value in found if value is not None and math.isfinite(value)]
    return known if len(known) == last else []


def _mean(rows: Sequence[Row], name: str, last: int = _WINDOW) -> float | None:
    values = _values(rows, name, last)
    return statistics.fmean(values) if values else None


def _below(rows: Sequence[Row], name: str, limit: float, last: int = _WINDOW) -> bool:
    mean = _mean(rows, name, last)
    return mean is not None and mean < limit


def _above(rows: Sequence[Row], name: str, limit: float) -> bool:
    mean = _mean(rows, name)
    return mean is not None and mean > limit


def _all_are(rows: Sequence[Row], name: str, value: float) -> bool:
    values = _values(rows, name)
    return bool(values) and all(one == value for one in values)


def _best_mean(rows: Sequence[Row], name: str) -> float | None:
    """The largest mean of _WINDOW rows in a line."""
    ends = range(_WINDOW, len(rows) + 1)
    return max((m for end in ends if (m := _mean(rows[:end], name)) is not None), default=None)


def _succeeds(rows: Sequence[Row], at_least: float) -> bool:
    mean = _mean(rows, "episode/success")
    return mean is not None and mean >= at_least


def _constant_reward(rows: Sequence[Row]) -> bool:
    # Where the environment calls some episodes a success, other alarms tell of it.
    no_verdicts = all(row.get("episode/success", 0.0) is None for row in rows[-_WINDOW:])
    return no_verdicts and len(set(_values(rows, "episode/reward"))) == 1


def _ratios_wide(rows: Sequence[Row]) -> bool:
    # Three in a row: where steps are far too long, a policy is destroyed within five.
    low, high = (_values(rows, f"policy/log_ratio_{q}", 3) for q in ("q05", "q95"))
    return bool(low and high) and min(h - w for h, w in zip(high, low, strict=True)) > 1.0


def _nothing_kept(rows: Sequence[Row]) -> bool:
    return _below(rows, "keep/fraction", 0.05) or _above(rows, "train/empty_update", 0.5)


def _entropy_gone(rows: Sequence[Row]) -> bool:
    return _below(rows, "policy/entropy", 0.01) and not _succeeds(rows, 0.9)


def _length_collapse(rows: Sequence[Row]) -> bool:
    best = _best_mean(rows, "episode/length")
    return (
        best is not None
        and _below(rows, "episode/length", best / 2)
        and not _succeeds(rows, _best_mean(rows, "episode/success") or 0.0)
    )


def _critic_useless(rows: Sequence[Row]) -> bool:
    # Where nearly all episodes end alike there is nothing to explain, and the ratio is noise.
    success = _mean(rows, "episode/success", 20)
    undecided = success is None or 0.1 < success < 0.9
    return undecided and _below(rows, "critic/explained_variance", 0.0, 20)


def _success_fell(rows: Sequence[Row]) -> bool:
    best = _best_mean(rows, "episode/success") or 0.0
    return best > 0.1 and _below(rows, "episode/success", best / 2)


def _episodes_fail(rows: Sequence[Row]) -> bool:
    failed, trained = _mean(rows, "errors/total"), _mean(rows, "train/trajectories")
    return failed is not None and trained is not None and failed > 0.2 * (failed + trained)


# Causes come before what they cause: the summary names the first that was raised.
TABLE: tuple[Alarm, ...] = (
    Alarm(
        "episodes_fail",
        "more than a fifth of the episodes end with an error instead of a reward",
        "an exception or a timeout in the environment, the reward or a tool",
        "read the first error in WORKDIR/logs, and mend the environment before training on",
        _episodes_fail,
    ),
    Alarm(
        "ratios_wide",
        "the middle 90 % of the importance ratios span more than a factor of e, three logged steps "
        "in a row: the policy has moved far from what sampled",
        "the learning rate is too high, the trajectories are too old, or the sampler computes "
        "other numbers than the trainer (mismatch/mean)",
        "lower policy_optimizer.learning_rate (a third of it), or rl.max_staleness",
        _ratios_wide,
        least=3,
    ),
    Alarm(
        "nothing_kept",
        "hardly a token is trained on: the keep rule masks more than 95 % of them, or updates are "
        "empty",
        "the policy has moved far from what sampled, or the limits of the keep rule are too narrow",
        "lower policy_optimizer.learning_rate, or widen algorithm.keep_rule",
        _nothing_kept,
    ),
    Alarm(
        "entropy_gone",
        "the policy has become deterministic (entropy below 0.01 nats per token) before it "
        "succeeds, so it tries nothing new",
        "the learning rate is too high, or too many steps on too few tasks",
        "lower policy_optimizer.learning_rate, go back to the best version, or use more tasks",
        _entropy_gone,
    ),
    Alarm(
        "length_collapse",
        "episodes have become less than half as long, without more success",
        "the reward pays for short answers, or the policy has forgotten to call its tools",
        "read some episodes (run.export --form=messages); lower policy_optimizer.learning_rate",
        _length_collapse,
    ),
    Alarm(
        "episodes_cut",
        "more than half of the episodes are ended by a limit of turns or tokens",
        "env.max_turns, env.max_turn_tokens or env.max_tokens is too small for the task, or the "
        "policy never ends its turn",
        "raise the limit, or start from a policy that knows the format (warm_start)",
        lambda rows: _above(rows, "episode/truncated", 0.5),
    ),
    Alarm(
        "no_success",
        "no episode has succeeded for 10 logged steps, so there is nothing to learn from",
        "the task is too hard for the policy, the answer check never agrees, or training has "
        "destroyed the policy",
        "read some episodes (run.export --form=messages); use easier tasks, a longer warm start, "
        "or go back to the best version",
        lambda rows: _all_are(rows, "episode/success", 0.0),
    ),
    Alarm(
        "all_success",
        "every episode has succeeded for 10 logged steps, so there is nothing left to learn from",
        "the task is solved or too easy, or the answer check accepts anything",
        "stop here, use harder tasks, or look at what the answer check accepts",
        lambda rows: _all_are(rows, "episode/success", 1.0),
    ),
    Alarm(
        "constant_reward",
        "the mean reward has been the same number for 10 logged steps, so there is nothing to "
        "learn from",
        "the reward does not depend on what the policy does",
        "test the reward function on a good and on a bad answer",
        _constant_reward,
    ),
    Alarm(
        "staleness_at_bound",
        "more than a quarter of the trajectories are dropped because they are older than "
        "rl.max_staleness",
        "the sampler plays ahead of the trainer, or some episodes take much longer than others",
        "lower rollout.open_batches or rollout.max_in_flight, or raise rl.max_staleness",
        lambda rows: _above(rows, "staleness/dropped_fraction", 0.25),
    ),
    Alarm(
        "critic_useless",
        "the critic explains nothing: its values are worse than a constant (explained variance "
        "below 0 for 20 logged steps)",
        "too little value pretraining, a learning rate that is too high or too low, or frozen "
        "parameters that it needs (critic.rules)",
        "raise value_pretraining.max_steps or algorithm.num_critic_steps, or change "
        "critic_optimizer.learning_rate",
        _critic_useless,
        least=20,
    ),
    Alarm(
        "success_fell",
        "episodes succeed less than half as often as they did",
        "the learning rate is too high, or the policy exploits something in the reward",
        "go back to the best version with a lower policy_optimizer.learning_rate",
        _success_fell,
        least=20,
    ),
)
