"""Bellman Policy Optimization in its exact form: one Bellman equation per trajectory.

The name BPO is also that of Branching Policy Optimization, which is another method.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import divergences, masked, segments


def bellman_bpo_exact(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    full_policy_logprobs: jax.Array,
    full_rollout_logprobs: jax.Array,
    *,
    eta: float,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """delta^2 / (2 eta) of the token's trajectory, divided by the number of its tokens.

    delta = eta A - sum of keep (log pi / mu + KL(mu || pi)) over the tokens, where A = R - V(x).
    The gradient flows through delta. In an environment without chance delta is 0 for every
    trajectory only at pi = mu exp(eta A_mu) / Z, the step of mirror descent with size eta. Use the
    reduction "sequence_sum". See "Bellman Policy Optimization" (arXiv 2609.15987), with the weight
    phi of every prompt 1.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs: per token, as recorded by the sampler.
      advantages: per token, R - V(x), the same on all tokens of a trajectory (their mean is
        used); stop-gradient.
      keep: per token, multiplies the token's term of the sum, so 0 takes it out; stop-gradient.
      action_mask: bool per token. Where False the floats may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      num_trajectories: N, static. Trajectories must be whole.
      full_policy_logprobs: [..., V], finite wherever mu > 0; carries the gradient.
      full_rollout_logprobs: [..., V], -inf where mu = 0.
      eta: > 0, step size; 1 / beta of KLPO.

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: keep, stop-gradient.
      metrics: (sum, weight) pairs by name.
    """
    keep = jax.lax.stop_gradient(masked.clean(keep, action_mask))
    where = (action_mask, trajectory_index, num_trajectories)
    log_mu = masked.clean(jax.lax.stop_gradient(full_rollout_logprobs), action_mask[..., None])
    log_pi = masked.clean(full_policy_logprobs, action_mask[..., None])
    kl = divergences.full_kl(log_mu, log_pi)
    log_ratio = masked.safe_log_ratio(
        policy_logprobs, jax.lax.stop_gradient(rollout_logprobs), action_mask
    )
    lengths = segments.lengths(*where)
    per_length = 1.0 / jnp.maximum(lengths, 1.0)
    advantage = jax.lax.stop_gradient(segments.trajectory_sums(advantages, *where) * per_length)
    delta = eta * advantage - segments.trajectory_sums(keep * (log_ratio + kl), *where)
    loss = jnp.square(delta) / (2.0 * eta)
    trained = lengths > 0
    size = masked.count(trained)
    metrics = {
        "policy/residual": (masked.total(delta, trained), size),
        "policy/residual_abs": (masked.total(jnp.abs(delta), trained), size),
        "policy/regression_loss": (masked.total(loss, trained), size),
        "policy/sequence_kl": (
            masked.total(segments.trajectory_sums(keep * kl, *where), trained),
            size,
        ),
    }
    per_token = masked.clean(segments.spread(loss * per_length, trajectory_index), action_mask)
    return per_token, keep, jax.lax.stop_gradient(metrics)
