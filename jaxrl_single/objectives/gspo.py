"""GSPO: PPO's clip of one ratio per trajectory, the geometric mean of its tokens' ratios."""

import jax
import jax.numpy as jnp

from jaxrl_single.objectives import ppo_clip
from jaxrl_single.ops import masked, segments


def gspo(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    low: float,
    high: float,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """-sg(keep) min(s A, clip(s, 1 - low, 1 + high) A) on each token, s = exp(mean log ratio).

    See "Group Sequence Policy Optimization" (arXiv 2507.18071), §4.1; published are low 3e-4 and
    high 4e-4, with the reduction "sequence_mean". Each token holds the value of s and, as in §4.3
    (GSPO-token), its own share of the gradient, s A grad log pi. With one advantage for all tokens
    of a trajectory and nothing dropped, this is the gradient through the mean. It also stays
    defined with an advantage per token, and a dropped token has no gradient at all.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs: per token, of the distribution in the denominator of the ratio.
      advantages: per token; stop-gradient.
      keep: per token in [0, 1], from a keep rule; stop-gradient. Dropped tokens stay in the mean.
      action_mask: bool per token: the tokens of the mean. Where False the floats above may hold
        anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      num_trajectories: N, static. Whole trajectories only: a part has another mean.
      low, high: >= 0, the clip range is [1 - low, 1 + high].

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: s x keep per token where the clip is not active, else 0; stop-gradient.
      metrics: (sum, weight) pairs by name.
    """
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    stopped = jax.lax.stop_gradient(log_ratio)
    where = (trajectory_index, num_trajectories)
    lengths = jnp.maximum(segments.lengths(action_mask, *where), 1.0)
    means = segments.trajectory_sums(stopped, action_mask, *where) / lengths
    shared = masked.clean(segments.spread(means, trajectory_index), action_mask)
    # The difference is 0: it adds the gradient of the token's own log-prob and no value. Outside
    # the exponential's limit, so that the shared value alone decides what is limited.
    ratio = masked.ratio(shared) * jnp.exp(log_ratio - stopped)
    return ppo_clip.clipped(ratio, advantages, keep, action_mask, low=low, high=high)
