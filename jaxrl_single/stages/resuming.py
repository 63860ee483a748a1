"""Rollouts at the start of the trainer: as a checkpoint left them, or from the beginning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from jaxrl_single import workdir
from jaxrl_single.models import api
from jaxrl_single.stages import keeping, rollouts, trainer_parts
from jaxrl_single.weights import filesystem

_log = logging.getLogger(__name__)


class Resuming:
    """What a start makes of tickets, trajectories, evidence and weights of earlier ones.

    Args:
      sync: numbers of tickets name the randomness; sync mode repeats them, local mode never does.
    """

    def __init__(
        self,
        paths: workdir.Workdir,
        collected: rollouts.Rollouts,
        weights: filesystem.FileWeights,
        keeper: keeping.Keeper,
        *,
        sync: bool,
    ):
        self._paths = paths
        self._rollouts = collected
        self._weights = weights
        self._keeper = keeper
        self._sync = sync

    def restore(
        self,
        metadata: dict[str, Any],
        params: api.Params,
        known_evaluations: Iterable[str],
        *,
        held: Sequence[str] = (),
    ) -> None:
        """Goes on from a checkpoint: forgets what came after it, and serves its policy again.

        Args:
          metadata: of the checkpoint.
          params: of its policy.
          known_evaluations: "STAGE@STEP", those that are recorded.
          held: keys of trajectories that the caller has taken.
        """
        step = metadata["steps"].get("rl") or 0
        self._keeper.forget_after(step)
        used = trainer_parts.withdraw_tickets(self._paths, self._rollouts.store)
        used = () if self._sync else used
        lost = self._rollouts.restore(metadata["rollouts"], used=used, held=held)
        self._rollouts.forget_evaluations(known_evaluations)
        if lost:
            _log.warning(
                "%d trajectories of steps after the checkpoint were forgotten with those steps",
                lost,
            )
        if self._sync:
            self._weights.forget_after(self._rollouts.version)
            self._rollouts.serve_again(jax.device_get(params))
        else:
            restored = self._rollouts.version
            self._rollouts.publish(jax.device_get(params), step=step)
            for purpose in self._rollouts.renew_evaluations(restored):
                _log.warning(
                    "evaluation %s is given up: the weights it asked for are gone", purpose
                )
        self._rollouts.resend()

    def reset(self) -> None:
        """Begins without a checkpoint of rollouts: nothing of a killed start is used."""
        self._keeper.forget_after(-1)
        used = trainer_parts.withdraw_tickets(self._paths, self._rollouts.store)
        if self._sync:
            self._weights.forget_after(-1)
        else:
            self._rollouts.book.restore(self._rollouts.book.state(), used=used)
        self._rollouts.forget_strangers()
