"""Regressions of the log-ratio of whole responses: REBEL, SPPO, GPO.

ell is the sum of keep x log(policy / rollout) over the tokens of a trajectory; keep 0 takes a token
out of its trajectory. Each function returns

    per_token_loss: the loss of the token's trajectory divided by the number of its tokens, so that
      the reduction "sequence_sum" gives the mean over trajectories. 0 where action_mask is False.
    weights: keep, stop-gradient.
    metrics: (sum, weight) pairs by name.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import grouping, masked, segments

Loss = tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]


def rebel(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    reward: jax.Array,
    group: jax.Array,
    *,
    eta: float,
) -> Loss:
    """Mean over the others y' of the group of ((ell - ell') / eta - (R - R'))^2.

    See "REBEL" (arXiv 2404.16767), over all ordered pairs of a group. A trajectory without
    another one in its group has loss 0.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs, keep: per token; stop-gradient.
      action_mask: bool per token. Where False the floats above may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      num_trajectories: N, static. Groups and their trajectories must be whole.
      reward: [N]; stop-gradient. Anything for a trajectory without tokens in the mask.
      group: i32 [N], responses to the same prompt share a number.
      eta: > 0, step size.
    """
    ell, keep, lengths = _sequence_log_ratio(
        policy_logprobs, rollout_logprobs, keep, action_mask, trajectory_index, num_trajectories
    )
    trained = lengths > 0
    gap = ell / eta - jax.lax.stop_gradient(masked.clean(reward, trained))
    labels, _ = grouping.label((group,), trained)
    deviation = grouping.centred(gap, labels, trained)
    size = jax.ops.segment_sum(masked.as_float(trained), labels, num_trajectories)[labels]
    total = jax.ops.segment_sum(jnp.square(deviation), labels, num_trajectories)[labels]
    # Deviations add up to 0, so the sum over j of (d_i - d_j)^2 is size d_i^2 + total.
    loss = masked.clean(size * jnp.square(deviation) + total, trained)
    loss /= jnp.maximum(size - 1.0, 1.0)
    return _shared(loss, lengths, action_mask, trajectory_index), keep, _metrics(loss, trained)


def sppo(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    preference: jax.Array,
    *,
    eta: float,
) -> Loss:
    """(ell - eta (P - 1/2))^2, P the probability that the response beats one of the sampler's.

    See "Self-Play Preference Optimization" (arXiv 2405.00675); 1/2 stands for its
    normaliser, the mean of P under the sampler.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs, keep: per token; stop-gradient.
      action_mask: bool per token. Where False the floats above may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      num_trajectories: N, static. Trajectories must be whole.
      preference: [N], P in [0, 1]; stop-gradient. Anything for a trajectory without tokens in the
        mask.
      eta: > 0, step size.
    """
    target = eta * (preference - 0.5)
    tokens = (policy_logprobs, rollout_logprobs, keep, action_mask)
    return _fit(target, *tokens, trajectory_index, num_trajectories)


def gpo(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    preference: jax.Array,
    *,
    beta: float,
) -> Loss:
    """(ell - s / beta)^2, s a skew-symmetric score of the response against the sampler's.

    General preference optimization, see arXiv 2410.02197. The mean of s under the sampler is 0.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs, keep: per token; stop-gradient.
      action_mask: bool per token. Where False the floats above may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      num_trajectories: N, static. Trajectories must be whole.
      preference: [N], s of any sign; stop-gradient. Anything for a trajectory without tokens in
        the mask.
      beta: > 0, weight of the KL.
    """
    tokens = (policy_logprobs, rollout_logprobs, keep, action_mask)
    return _fit(preference / beta, *tokens, trajectory_index, num_trajectories)


def _fit(target, policy, rollout, keep, mask, trajectory_index, num_trajectories) -> Loss:
    """(ell - target)^2 of each trajectory that has tokens."""
    ell, keep, lengths = _sequence_log_ratio(
        policy, rollout, keep, mask, trajectory_index, num_trajectories
    )
    trained = lengths > 0
    target = jax.lax.stop_gradient(masked.clean(target, trained))
    loss = masked.clean(jnp.square(ell - target), trained)
    return _shared(loss, lengths, mask, trajectory_index), keep, _metrics(loss, trained)


def _sequence_log_ratio(policy, rollout, keep, mask, trajectory_index, num_trajectories):
    """ell [N], keep per token, and the number of tokens of each trajectory [N]."""
    keep = jax.lax.stop_gradient(masked.clean(keep, mask))
    log_ratio = masked.safe_log_ratio(policy, jax.lax.stop_gradient(rollout), mask)
    where = (mask, trajectory_index, num_trajectories)
    return segments.trajectory_sums(keep * log_ratio, *where), keep, segments.lengths(*where)


def _shared(loss, lengths, mask, trajectory_index):
    """The loss of each trajectory [N] in equal shares on its tokens."""
    shares = loss / jnp.maximum(lengths, 1.0)
    return masked.clean(segments.spread(shares, trajectory_index), mask)


def _metrics(loss, trained):
    pair = masked.total(loss, trained), masked.count(trained)
    return jax.lax.stop_gradient({"policy/regression_loss": pair})
