"""From a loss per token to a scalar: four reductions, and the denominator of each.

A reduction returns the share of one micro-batch: its numerator over a GLOBAL denominator, counted
over all micro-batches and devices of the update before anything is divided. The shares add up to
the loss of the whole batch, whichever way it was split. Tokens that a keep rule dropped are zeros
in `per_token` and stay in the denominator; tokens outside the loss mask count nowhere.

    token_mean     sum over tokens / number of tokens            long trajectories weigh more
    sequence_mean  mean over trajectories of the mean over tokens   all trajectories weigh the same
    sequence_sum   mean over trajectories of the sum over tokens
    fixed_length   sum over tokens / (trajectories x a constant)    Dr.GRPO, arXiv 2503.20783
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def token_mean(
    per_token: jax.Array,
    mask: jax.Array,
    *,
    trajectory_lengths: jax.Array,
    denominator: jax.Array,
) -> jax.Array:
    """Sum over counted tokens / denominator (the number of tokens), a float32 scalar.

    Args:
      per_token: any shape, of the micro-batch.
      mask: bool, the shape of `per_token`: which tokens count.
      trajectory_lengths: the shape of `per_token`: how many tokens of the token's trajectory count
        in the whole batch. Read by `sequence_mean` only; all reductions share one signature.
      denominator: scalar from `denominator`, of the whole batch.
    """
    del trajectory_lengths
    return masked.total(per_token, mask) / denominator


def sequence_mean(
    per_token: jax.Array,
    mask: jax.Array,
    *,
    trajectory_lengths: jax.Array,
    denominator: jax.Array,
) -> jax.Array:
    """Sum over trajectories of the mean over their tokens / denominator (their number).

    Arguments as for `token_mean`.
    """
    lengths = jnp.maximum(masked.clean(trajectory_lengths, mask), 1.0)
    return masked.total(masked.clean(per_token, mask) / lengths, mask) / denominator


def sequence_sum(
    per_token: jax.Array,
    mask: jax.Array,
    *,
    trajectory_lengths: jax.Array,
    denominator: jax.Array,
) -> jax.Array:
    """Sum over trajectories of the sum over their tokens / denominator (their number).

    Arguments as for `token_mean`.
    """
    del trajectory_lengths
    return masked.total(per_token, mask) / denominator


def fixed_length(
    per_token: jax.Array,
    mask: jax.Array,
    *,
    trajectory_lengths: jax.Array,
    denominator: jax.Array,
) -> jax.Array:
    """Sum over counted tokens / denominator (trajectories x fixed_length).

    Arguments as for `token_mean`.
    """
    del trajectory_lengths
    return masked.total(per_token, mask) / denominator


REDUCTIONS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "fixed_length": fixed_length,
}


def denominator(
    name: str,
    *,
    num_tokens: jax.Array,
    num_trajectories: jax.Array,
    fixed_length: int | None = None,
) -> jax.Array:
    """What the reduction `name` divides by, a float32 scalar of at least 1.

    Args:
      name: a key of REDUCTIONS.
      num_tokens: tokens of the loss mask in the whole batch.
      num_trajectories: trajectories with at least one such token, in the whole batch.
      fixed_length: tokens; the constant of "fixed_length", needed there only.

    Raises:
      ValueError: unknown name, or "fixed_length" without a positive `fixed_length`.
    """
    if name not in REDUCTIONS:
        raise ValueError(f"unknown reduction {name!r}; known are {sorted(REDUCTIONS)}")
    if name == "token_mean":
        size = num_tokens
    elif name == "fixed_length":
        if fixed_length is None or fixed_length <= 0:
            raise ValueError(
                f"reduction 'fixed_length' needs fixed_length > 0 (tokens), got {fixed_length}"
            )
        size = num_trajectories * fixed_length
    else:
        size = num_trajectories
    return jnp.maximum(jnp.asarray(size, jnp.float32), 1.0)
