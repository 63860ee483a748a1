"""DPPO: PPO's one-sided clip with a divergence in place of the ratio.

See "Rethinking the Trust Region in LLM Reinforcement Learning" (arXiv 2602.04879). A clip of the
ratio is too tight on unlikely tokens and too loose on likely ones. A token is dropped where its
divergence is beyond the limit AND the update would push it further out. In the paper the weight
min(ratio, cap) multiplies the rest: `objectives.cispo` with high = cap - 1.

Common arguments: log-probs and advantages per token, anything where `action_mask` is False; `high`
limits tokens with A > 0, `low` all others. All return keep in {0, 1} per token, float32,
stop-gradient, 0 where `action_mask` is False. The top-K forms compare the sampler's K likeliest
tokens and the rest of the vocabulary, so they see how the other tokens moved too.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import divergences, masked

EPS = 1e-8  # bounds the probabilities inside the logarithms
TAIL_FLOOR = 1e-6  # float32 log-probs do not resolve smaller tails


def dppo_tv(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> jax.Array:
    """Divergence |policy - rollout| of the sampled token's probability; published limits 0.15."""
    policy, rollout = _clean(policy_logprobs, rollout_logprobs, action_mask)
    distance = jnp.abs(jnp.exp(policy) - jnp.exp(rollout))
    return _one_sided(distance, policy - rollout, advantages, action_mask, low=low, high=high)


def dppo_kl(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> jax.Array:
    """Divergence kl2(rollout, policy) of the sampled token, in nats; published limits 0.05."""
    policy, rollout = _clean(policy_logprobs, rollout_logprobs, action_mask)
    distance = divergences.kl2(rollout, policy, eps=EPS)
    return _one_sided(distance, policy - rollout, advantages, action_mask, low=low, high=high)


def dppo_topk_tv(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    topk_policy_logprobs: jax.Array,
    topk_rollout_logprobs: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> jax.Array:
    """Total variation over the K listed tokens and the rest; the top-K arrays are [..., K]."""
    policy, rollout = _clean(policy_logprobs, rollout_logprobs, action_mask)
    distance = divergences.topk_tv(
        *_clean(topk_policy_logprobs, topk_rollout_logprobs, action_mask[..., None])
    )
    return _one_sided(distance, policy - rollout, advantages, action_mask, low=low, high=high)


def dppo_topk_kl(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    topk_policy_logprobs: jax.Array,
    topk_rollout_logprobs: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> jax.Array:
    """KL(rollout, policy) over the K listed tokens and the rest, in nats; top-K arrays [..., K]."""
    policy, rollout = _clean(policy_logprobs, rollout_logprobs, action_mask)
    head_policy, head_rollout = _clean(
        topk_policy_logprobs, topk_rollout_logprobs, action_mask[..., None]
    )
    distance = divergences.topk_kl(head_rollout, head_policy, tail_floor=TAIL_FLOOR)
    return _one_sided(distance, policy - rollout, advantages, action_mask, low=low, high=high)


def _clean(policy: jax.Array, rollout: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.lax.stop_gradient((masked.clean(policy, mask), masked.clean(rollout, mask)))


def _one_sided(distance, log_ratio, advantages, action_mask, *, low, high) -> jax.Array:
    """Drops where the divergence is beyond the limit and the update would raise it."""
    rises = jax.lax.stop_gradient(masked.clean(advantages, action_mask)) > 0
    outwards = jnp.where(rises, log_ratio > 0, log_ratio < 0)
    beyond = ~(distance <= jnp.where(rises, high, low))
    return (~(beyond & outwards) & ~jnp.isnan(log_ratio) & action_mask).astype(jnp.float32)
