"""The critic's updates on one batch, all towards the same fixed targets."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.objectives import value
from jaxrl_single.ops import masked, reduce
from jaxrl_single.trainer import accumulate, forward, optim


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Targets:
    """What the critic regresses to, and how its loss is reduced: as the policy's.

    Attributes:
      returns: [M, B, T].
      trajectory_lengths: f32 [M, B, T], tokens of the loss in the token's trajectory.
      denominator: f32 scalar, of the whole batch.
      reduction: a key of `reduce.REDUCTIONS`.
    """

    returns: jax.Array
    trajectory_lengths: jax.Array
    denominator: jax.Array
    reduction: str = dataclasses.field(metadata={"static": True})


def critic_updates(
    critic: api.Critic,
    optimizer: optim.Optimizer,
    params: optim.Params,
    opt_state: optim.OptState,
    batch: token_batch.TokenBatch,
    targets: Targets,
    *,
    num_steps: int,
) -> tuple[optim.Params, optim.OptState, accumulate.Gradients]:
    """`num_steps` updates in one `lax.scan`, so the program does not grow with their number.

    Returns:
      params, opt_state: after the updates.
      found: what each update found, without the gradients themselves: loss [K], norm [K].
    """
    frozen = optim.frozen(params, optimizer.labels)
    num_tokens = accumulate.loss_tokens(batch)

    def share(params, micro, arrays, carry):
        values, _ = forward.critic_forward(critic, params, micro)
        returns, lengths = arrays
        loss = reduce.REDUCTIONS[targets.reduction](
            value.value_loss(values, returns, micro.loss_mask),
            micro.loss_mask,
            trajectory_lengths=lengths,
            denominator=targets.denominator,
        )
        return loss, accumulate.Aux(carry=carry)

    def one(carry, _):
        trained, opt_state = carry
        params = optim.merge(trained, frozen)
        arrays = (targets.returns, targets.trajectory_lengths)
        found = accumulate.gradients(share, params, optimizer, batch, arrays=arrays)
        params, opt_state = accumulate.update(
            params, opt_state, optimizer, found, num_tokens=num_tokens
        )
        trained = optim.trainable(params, optimizer.labels)
        return (trained, opt_state), dataclasses.replace(found, trained={})

    start = (optim.trainable(params, optimizer.labels), opt_state)
    (trained, opt_state), found = jax.lax.scan(one, start, length=num_steps)
    return optim.merge(trained, frozen), opt_state, found


def values(
    critic: api.Critic, params: optim.Params, batch: token_batch.TokenBatch
) -> tuple[jax.Array, jax.Array]:
    """Values of the whole batch without gradient.

    Returns:
      values: [M, B, T], of the prefix before each token.
      bootstrap_values: [N], what follows after the last token; 0 where terminated.
    """
    before, after = accumulate.forward(
        lambda micro: forward.critic_forward(critic, params, micro), batch
    )
    return jax.lax.stop_gradient((before, forward.bootstrap_values(after, batch)))


def metrics(
    values_before: jax.Array,
    targets: Targets,
    found: accumulate.Gradients,
    opt_state: optim.OptState,
    batch: token_batch.TokenBatch,
) -> dict[str, jax.Array]:
    """How good the critic was on a batch that it had not seen, and how its updates went."""
    mask = batch.loss_mask
    empty = ~jnp.any(mask)
    means = {
        "critic/explained_variance": masked.explained_variance(
            values_before, targets.returns, mask
        ),
        "critic/value_mean": jnp.where(empty, jnp.nan, masked.mean(values_before, mask)),
        "critic/return_mean": jnp.where(empty, jnp.nan, masked.mean(targets.returns, mask)),
    }
    return means | {
        "critic/loss": found.loss[0],
        "critic/loss_last": found.loss[-1],
        "critic/gradient_norm": found.norm[0],
        "critic/learning_rate": optim.last_learning_rate(opt_state),
    }
