"""Keeps the policy of the best evaluation, however the run goes on."""

from __future__ import annotations

import logging

from jaxrl_single import workdir
from jaxrl_single.metrics import success
from jaxrl_single.weights import base as weights_base
from jaxrl_single.weights import filesystem

_log = logging.getLogger(__name__)


class Best:
    """Keeps one version in WORKDIR/best, laid out like a version in WORKDIR/weights.

    Args:
      weights: where the versions are published; an evaluated one is there until its evaluation is
        recorded.
      enabled: `checkpoint.keep_best` of the config.
    """

    def __init__(self, paths: workdir.Workdir, weights: filesystem.FileWeights, *, enabled: bool):
        self._paths = paths
        self._weights = weights
        self._enabled = enabled

    def consider(self, evaluation: workdir.Eval) -> None:
        """Keeps the policy of this evaluation, recorded just now, if it is the best so far.

        Raises:
          workdir.CannotWrite: the disk is full; what was kept before is still there.
        """
        if not self._enabled or evaluation.success is None or evaluation.policy_version < 0:
            return
        best = self._so_far()
        if best is not None and not is_better(evaluation, best):
            return
        kept = open_store(self._paths)
        try:
            kept.take_only(evaluation.policy_version, self._weights)
        except weights_base.MissingVersion as error:
            _log.warning("the best version so far can't be kept: %s", error)
            return
        workdir.record_best(self._paths, evaluation)

    def _so_far(self) -> workdir.Eval | None:
        best = workdir.read_best(self._paths)
        if best is None or best.policy_version not in open_store(self._paths).versions():
            return None
        recorded = workdir.read_evals(self._paths)
        return next(e for e in recorded if (e.stage, e.step) == (best.stage, best.step))


def open_store(paths: workdir.Workdir) -> filesystem.FileWeights:
    """The store in WORKDIR/best, with one version or none."""
    return filesystem.FileWeights(paths.best, workdir.run_id_of(paths))


def is_better(candidate: workdir.Eval, best: workdir.Eval) -> bool:
    """By the tasks that both have tried, for some evaluations are of fewer; a tie goes to the new.

    Without outcomes by task, by the success of each.
    """
    if candidate.outcomes and best.outcomes:
        change = success.change(best.outcomes, candidate.outcomes)
        if change is not None:
            return change.difference >= 0
    return candidate.success >= best.success
