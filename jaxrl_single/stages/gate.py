"""The parity gate: sampler and trainer must give the same log-probs at the same weights.

An off-policy method reads the ratio of the two. If they differ at equal weights, every ratio is
wrong from the first step on, and nothing later can tell that from staleness.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import ml_collections

from jaxrl_single import types
from jaxrl_single.data import token_batch
from jaxrl_single.models import api

Mismatch = Callable[[api.Params, token_batch.TokenBatch], dict[str, jax.Array]]


class GateFailed(RuntimeError):
    """Sampler and trainer disagree; the message says by how much and what is allowed."""


def measure(
    mismatch: Mismatch,
    params: api.Params,
    episodes: Sequence[types.Trajectory],
    pack: Callable[[list[types.Trajectory]], token_batch.TokenBatch],
    *,
    limit: int,
) -> dict[str, float]:
    """Re-scores at most `limit` episodes that `params` sampled; metrics `mismatch/...`."""
    sound = [episode for episode in episodes if episode.error is None][:limit]
    # Packed to be scored, not to be trained; packing refuses held-out episodes otherwise.
    batch = pack([dataclasses.replace(episode, split="train") for episode in sound])
    found = jax.device_get(mismatch(params, batch))
    return {
        "mismatch/kl": float(found["kl"]),
        "mismatch/mean": float(found["mean"]),
        "mismatch/max": float(found["maximum"]),
        "mismatch/tokens": float(found["tokens"]),
    }


def check(
    metrics: dict[str, float],
    section: ml_collections.ConfigDict,
    *,
    temperature: float,
    error: str = "",
) -> None:
    """Compares with `config.gate`; a low temperature stretches logits, so it widens the bounds.

    Args:
      error: of an episode that was to be compared, "" if all were.

    Raises:
      GateFailed: a bound is exceeded, or nothing was compared.
    """
    if not metrics["mismatch/tokens"]:
        raise GateFailed(
            "nothing to compare: no episode of the gate ended without an error"
            + (f"; one says {error}" if error else "")
        )
    scale = 1 / min(1.0, temperature)
    for name, field in (("max", "max_difference"), ("mean", "mean_difference")):
        found, allowed = metrics[f"mismatch/{name}"], section[field] * scale
        if not math.isfinite(found):
            raise GateFailed(
                f"the {name} difference of log-probs of sampler and trainer is {found}: finite "
                "weights give logits that are not. Look for a weight that is much too large, or "
                "compute in float32 (model.dtype)"
            )
        if not found <= allowed:
            raise GateFailed(
                f"sampler and trainer disagree at equal weights: {name} difference of log-probs "
                f"{found:.3g} over {metrics['mismatch/tokens']:.0f} tokens, allowed is "
                f"{allowed:.3g} (gate.{field} x 1 / min(1, temperature)). Training on such "
                "ratios is not sound: look for a difference between models/transformer.py's "
                "hidden and decode paths, or raise the bound for this dtype and model size"
            )
