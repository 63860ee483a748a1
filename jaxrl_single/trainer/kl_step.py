"""Shortens an update of the policy to a budget of KL divergence on its own batch.

The change of the logits at every loss token is measured by forward passes before and after the
proposed update; objectives/kl_budget.py turns it into a factor on the step.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.objectives import kl_budget
from jaxrl_single.ops import masked
from jaxrl_single.trainer import accumulate, forward, optim


@dataclasses.dataclass(frozen=True)
class Budget:
    """How far an update may move the policy.

    Attributes:
      nats: mean KL(before || after) per loss token of the batch; > 0.
      max_scale: largest factor on the step; 1 never lengthens it.
    """

    nats: float
    max_scale: float = 1.0


def shorten(
    policy: api.Policy,
    before: optim.Params,
    proposed: optim.Params,
    batch: token_batch.TokenBatch,
    *,
    budget: Budget,
    chunk: int,
) -> tuple[optim.Params, dict[str, jax.Array]]:
    """Parameters on the line from `before` to `proposed`, as far as the budget allows.

    Two forward passes over the batch.

    Args:
      before, proposed: parameters around the update.
      batch: per-token arrays [M, B, T]; its loss tokens count.
      chunk: tokens per row whose logits exist at one time.

    Returns:
      params, metrics ("policy/predicted_kl" of the whole step in nats per token,
      "policy/step_scale").
    """
    denominator = accumulate.loss_tokens(batch)

    def share(micro):
        per_token = forward.position_kl(policy, before, proposed, micro, chunk=chunk)
        return masked.mean(per_token, micro.loss_mask, denominator=denominator)

    predicted = accumulate.forward(share, batch).sum()
    scale = kl_budget.step_scale(predicted, budget=budget.nats, max_scale=budget.max_scale)
    step = jax.tree.map(_difference, proposed, before)
    step = kl_budget.scaled_step(step, scale)
    params = jax.tree.map(lambda old, by: (old + by).astype(old.dtype), before, step)
    return params, {"policy/predicted_kl": predicted, "policy/step_scale": scale}


def _difference(new: jax.Array, old: jax.Array) -> jax.Array:
    return new.astype(jnp.float32) - old.astype(jnp.float32)
