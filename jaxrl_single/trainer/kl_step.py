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
    optimizer: optim.Optimizer,
    before: tuple[optim.Params, optim.OptState],
    proposed: tuple[optim.Params, optim.OptState],
    batch: token_batch.TokenBatch,
    *,
    budget: Budget,
    chunk: int,
) -> tuple[tuple[optim.Params, optim.OptState], dict[str, jax.Array]]:
    """Parameters on the line from `before` to `proposed`, as far as the budget allows.

    Two forward passes over the batch.

    Args:
      before, proposed: parameters and the optimiser's state around the update.
      batch: per-token arrays [M, B, T]; its loss tokens count.
      chunk: tokens per row whose logits exist at one time.

    Returns:
      (params, opt_state), and metrics ("policy/predicted_kl" of the whole step in nats per token,
      "policy/step_scale").
    """
    denominator = accumulate.loss_tokens(batch)

    def share(micro):
        per_token = forward.position_kl(policy, before[0], proposed[0], micro, chunk=chunk)
        return masked.mean(per_token, micro.loss_mask, denominator=denominator)

    predicted = accumulate.forward(share, batch).sum()
    scale = kl_budget.step_scale(predicted, budget=budget.nats, max_scale=budget.max_scale)
    # What the parameters cannot show yet, for they are narrow, is kept: it adds up.
    scale = jnp.where((predicted == 0) & (denominator > 0), 1.0, scale)
    old, new = (optim.values(*state, optimizer) for state in (before, proposed))
    step = kl_budget.scaled_step(jax.tree.map(jnp.subtract, new, old), scale)
    moved = optim.with_values(*proposed, optimizer, jax.tree.map(jnp.add, old, step))
    return moved, {"policy/predicted_kl": predicted, "policy/step_scale": scale}
