"""How strongly an algorithm pushes one token, over its log-ratio and advantage: for pictures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.algorithms import arrays, update
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.ops import divergences


def coefficients(
    algorithm: row_lib.Algorithm,
    log_ratio: np.ndarray,
    advantages: np.ndarray,
    *,
    rollout_logprob: float,
    entropy: float,
) -> np.ndarray:
    """Minus the gradient of the loss by the token's log-prob, for batches of a single token each.

    The advantage is given, so that of the algorithm is not used; reward and preference equal it.
    Trainer and sampler agree at equal weights. The vocabulary has two tokens, the sampled one and
    the rest; two auxiliary draws are of the rest. A rule that compares tokens or trajectories of
    a batch (M2PO's budget, ESTR's calibration, REBEL's pairs) sees only the one.

    Args:
      algorithm: a row of the table.
      log_ratio: log(policy / rollout), at most -rollout_logprob.
      advantages: broadcasts with log_ratio.
      rollout_logprob: < 0, of the token under the sampler.
      entropy: nats, of the sampler.

    Returns:
      The shape that the two arrays broadcast to.
    """
    log_ratio, advantages = np.broadcast_arrays(log_ratio, advantages)

    def of_one(log_ratio, advantage):
        batch = _one_token(log_ratio + rollout_logprob, rollout_logprob, advantage, entropy)
        state = update.init_state(algorithm, num_tasks=1)
        return update.score_coefficients(algorithm, batch, state)[0]["policy_logprobs"][0]

    found = jax.jit(jax.vmap(of_one))(log_ratio.ravel(), advantages.ravel())
    return np.asarray(found).reshape(log_ratio.shape)


def _one_token(policy_logprob, rollout_logprob, advantage, entropy) -> arrays.PolicyArrays:
    policy, rollout = jnp.asarray(policy_logprob)[None], jnp.asarray(rollout_logprob)[None]
    rest = {"policy": divergences.log1mexp(policy), "rollout": divergences.log1mexp(rollout)}
    sampled = {"policy": policy, "rollout": rollout}
    rows = {}
    for name in ("policy", "rollout"):
        rows[f"aux_{name}_logprobs"] = jnp.stack([rest[name], rest[name]], -1)
        rows[f"topk_{name}_logprobs"] = sampled[name][:, None]
        rows[f"full_{name}_logprobs"] = jnp.stack([sampled[name], rest[name]], -1)
    value, first = jnp.asarray(advantage)[None], jnp.zeros(1, jnp.int32)
    return arrays.PolicyArrays(
        policy_logprobs=policy,
        policy_entropies=jnp.full(1, entropy),
        rollout_logprobs=rollout,
        entropies=jnp.full(1, entropy),
        advantages=value,
        loss_mask=jnp.ones(1, bool),
        trajectory_index=first,
        trajectory_lengths=jnp.ones(1),
        denominator=jnp.ones(()),
        reward=value,
        group=first,
        valid=jnp.ones(1, bool),
        turn_ids=first,
        proximal_logprobs=rollout,
        ref_logprobs=rollout,
        prompt_value=jnp.zeros(1),
        preference=value,
        **rows,
    )
