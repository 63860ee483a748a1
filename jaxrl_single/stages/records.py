"""What the trainer leaves for people: status.json, metrics.jsonl, TensorBoard, evals.jsonl."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from jaxrl_single import types, workdir
from jaxrl_single.data import batching, token_batch
from jaxrl_single.metrics import alarms, success
from jaxrl_single.metrics import writer as writer_lib
from jaxrl_single.stages import best as best_lib
from jaxrl_single.stages import rollouts as rollouts_lib

# Their checkpoints are of stages that were stopped.
UNFINISHED = {stage: f"{stage}.unfinished" for stage in ("warm_start", "value_pretraining")}
_LENGTH_BINS = 12
_log = logging.getLogger(__name__)


class Records:
    """Writes for one run; one metrics writer per stage, opened at its first line."""

    def __init__(
        self, paths: workdir.Workdir, rollouts: rollouts_lib.Rollouts, best: best_lib.Best
    ):
        self._paths = paths
        self._rollouts = rollouts
        self._best = best
        self._alarms = alarms.Watcher()
        self._writers: dict[str, writer_lib.MetricsWriter] = {}
        self._resume: dict[str, int] = {}

    def resume(self, steps: Mapping[str, int | None]) -> list[str]:
        """Forgets what was written of later steps, and of stages that are not named.

        Call it before the first line.

        Args:
          steps: by stage, those that the checkpoint covers from which the run continues.

        Returns:
          The evaluations that stay, as "STAGE@STEP": their weights are of the checkpoint's lineage.
        """
        self._resume = {stage: step for stage, step in steps.items() if step is not None}
        # The policy of step 0 is evaluated in value pretraining, which ends with a checkpoint.
        last = self._resume.get("rl", 0) if "value_pretraining" in self._resume else -1
        lost = workdir.filter_jsonl(self._paths.evals, lambda line: line.get("step", 0) <= last)
        for row in workdir.read_jsonl(self._paths.metrics):
            if row.get("stage") == "rl" and row.get("step", 0) <= last:
                self._alarms.take(row)  # told by an earlier start
        kept = workdir.read_evals(self._paths)
        if kept:
            self._resume["eval"] = max(evaluation.step for evaluation in kept)
        lost += workdir.filter_jsonl(
            self._paths.metrics,
            lambda line: line.get("step", 0) <= self._resume.get(line.get("stage"), -1),
        )
        for board in self._paths.tensorboard.glob("*"):
            if board.name not in self._resume:
                shutil.rmtree(board)
        if lost:
            _log.warning("removed %d records of steps that no checkpoint covers", lost)
        return [f"{evaluation.stage}@{evaluation.step}" for evaluation in kept]

    def metrics(
        self,
        stage: str,
        step: int,
        scalars: Mapping[str, Any],
        histograms: Mapping[str, Any] | None = None,
    ) -> None:
        """One line of metrics.jsonl and the same to TensorBoard."""
        if stage not in self._writers:
            self._writers[stage] = writer_lib.MetricsWriter(
                self._paths, stage, resume_step=self._resume.get(stage)
            )
        self._writers[stage].write(step, scalars, histograms)
        if stage == "rl":
            for raised in self._alarms.take({"step": step, **workdir.plain(dict(scalars))}):
                _log.warning("%s", alarms.sentence(raised))

    def status(self, stage: str, step: int, num_steps: int, text: str = "") -> None:
        """Replaces status.json."""
        workdir.write_status(
            self._paths,
            workdir.Status(
                stage=stage,
                step=step,
                num_steps=num_steps,
                policy_version=self._rollouts.version,
                text=text,
                trajectories=self._rollouts.book.counts(),
                params_sha256=self._rollouts.params_sha256,
            ),
        )

    def evaluation(
        self,
        stage: str,
        step: int,
        version: int,
        episodes: Sequence[types.Trajectory],
        extra: Mapping[str, float],
    ) -> success.Success:
        """Records one evaluation; `extra` are metrics beside those of the episodes."""
        verdicts = [None if e.error is not None else bool(e.success) for e in episodes]
        result = success.measure(verdicts)
        sound = [episode for episode in episodes if episode.error is None]
        scalars = {
            "eval/success": result.success,
            "eval/ci_low": result.ci_low,
            "eval/ci_high": result.ci_high,
            "eval/n": result.n,
            "eval/errors": result.errors,
            "eval/reward": _mean([e.reward for e in sound]),
            "eval/turns": _mean([len(e.finish_reasons) for e in sound]),
            "eval/length": _mean([e.num_actions for e in sound]),
            "eval/truncated": _mean([e.truncated for e in sound]),
            **fact_metrics(sound),
        }
        self.metrics("eval", step, scalars | dict(extra))
        outcomes = {episode.task_id: bool(episode.success) for episode in sound}
        fields = (result.n, result.success, result.ci_low, result.ci_high, outcomes)
        found = workdir.Eval(stage, step, version, *fields)
        workdir.record_eval(self._paths, found)
        self._best.consider(found)
        return result

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def covered(paths: workdir.Workdir, config: ml_collections.ConfigDict) -> dict[str, int | None]:
    """By stage, the steps that the checkpoint covers from which the run continues.

    A critic whose warm policy is gone is of no use; its checkpoint is removed.
    """

    def newest(stage: str) -> tuple[int, dict[str, Any]] | None:
        return workdir.newest_checkpoint(paths.stage_checkpoints(stage))

    if found := newest("rl"):
        return found[1]["steps"]
    if not newest("warm_start"):
        for stage in ("value_pretraining", UNFINISHED["value_pretraining"]):
            shutil.rmtree(paths.stage_checkpoints(stage), ignore_errors=True)
        found = newest(UNFINISHED["warm_start"])
        return {"warm_start": found[0]} if found else {}
    if found := newest("value_pretraining"):
        return found[1]["steps"]
    return {"warm_start": config.warm_start.num_steps}


def episode_metrics(trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
    """What the agent did, over the trajectories of a batch."""
    by_outcome: dict[bool, list[int]] = {True: [], False: []}
    for trajectory in trajectories:
        if trajectory.success is not None:
            by_outcome[trajectory.success].append(trajectory.num_actions)
    known = [t.success for t in trajectories if t.success is not None]
    return {
        "episode/reward": _mean([t.reward for t in trajectories]),
        "episode/success": _mean(known),
        "episode/turns": _mean([len(t.finish_reasons) for t in trajectories]),
        "episode/length": _mean([t.num_actions for t in trajectories]),
        "episode/length_success": _mean(by_outcome[True]),
        "episode/length_failure": _mean(by_outcome[False]),
        "episode/truncated": _mean([t.truncated for t in trajectories]),
        "episode/segments": _mean([len(np.unique(t.segment_ids)) for t in trajectories]),
        **fact_metrics(trajectories),
    }


def fact_metrics(trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
    """Means of what the environment told by name, of the first types.MAX_FACTS names."""
    found: dict[str, float] = {}
    every = sorted({name for trajectory in trajectories for name in trajectory.facts})
    for name in every[: types.MAX_FACTS]:
        told = [(t.facts[name], t.success) for t in trajectories if name in t.facts]
        found[f"env/{name}"] = _mean([value for value, _ in told])
        for verdict, outcome in ((True, "success"), (False, "failure")):
            found[f"env/{name}_{outcome}"] = _mean([v for v, s in told if s is verdict])
    return found


def staleness_metrics(
    taken: rollouts_lib.Taken, *, trainer_version: int, max_length: int
) -> tuple[dict[str, float], dict[str, tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Asynchrony of a batch at its consumption: scalars, and histograms of lengths."""
    of_batch = batching.staleness_statistics(taken.trajectories, trainer_version=trainer_version)
    width = max(1, math.ceil(max_length / _LENGTH_BINS))
    edges = tuple(range(1, max_length + 1, width))
    trained = batching.length_statistics(taken.trajectories, edges=edges)
    dropped = batching.length_statistics(taken.dropped, edges=edges)
    num_dropped, num_trained = len(taken.dropped), len(taken.trajectories)
    spans = [_span(trajectory) for trajectory in taken.trajectories]
    scalars = {
        "staleness/mean": of_batch.mean,
        "staleness/max": of_batch.maximum,
        "staleness/spans_versions": of_batch.spans_versions / max(1, num_trained),
        "staleness/within_episode": _mean(spans),
        "staleness/dropped": num_dropped,
        "staleness/dropped_fraction": num_dropped / max(1, num_dropped + num_trained),
        "staleness/length_trained": trained.mean,
        "staleness/length_dropped": dropped.mean,
    }
    histograms = {
        "staleness/lengths_trained": (trained.edges, trained.counts),
        "staleness/lengths_dropped": (dropped.edges, dropped.counts),
    }
    return scalars, histograms


def batch_metrics(
    trajectories: Sequence[types.Trajectory], batch: token_batch.TokenBatch
) -> dict[str, float]:
    """Sizes of a packed batch."""
    used = np.asarray(batch.segment_ids) > 0
    return {
        "train/trajectories": len(trajectories),
        "train/tokens": int(used.sum()),
        "train/rows": used.shape[0] * used.shape[1],
        "train/padding": 1 - float(used.mean()),
    }


def error_metrics(errors: Mapping[str, int], rejected: int) -> dict[str, float]:
    """Failed episodes by kind, and files that were not used."""
    kinds = {
        f"errors/{kind}": errors.get(kind, 0)
        for kind in ("env", "tool", "reward", "sampler", "limit")
    }
    return {"errors/total": sum(errors.values()), "errors/rejected_files": rejected, **kinds}


def describe(result: success.Success) -> str:
    """An evaluation for people."""
    text = f"{result.success:.3f} [{result.ci_low:.3f}, {result.ci_high:.3f}] of {result.n} tasks"
    return f"{text}, {result.errors} errors" if result.errors else text


def _span(trajectory: types.Trajectory) -> int:
    versions = trajectory.policy_versions[trajectory.action_mask]
    return int(versions.max() - versions.min())


def _mean(values: Sequence[float | bool | None]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
