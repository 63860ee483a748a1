"""Log-probs of recorded tokens under given weights, compared with what the sampler recorded."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.ops import masked
from jaxrl_single.trainer import accumulate, forward, optim


def make_score(
    policy: api.Policy, *, chunk: int
) -> Callable[[optim.Params, token_batch.TokenBatch], tuple[jax.Array, jax.Array]]:
    """A jitted (params, batch) -> (logprobs, entropies), both [M, B, T] float32, 0 on padding."""

    @jax.jit
    def score(params, batch):
        def of_micro(micro):
            outputs = forward.policy_forward(policy, params, micro, chunk=chunk)
            return outputs.logprobs, outputs.entropies

        return accumulate.forward(of_micro, batch)

    return score


def make_mismatch(
    policy: api.Policy, *, chunk: int
) -> Callable[[optim.Params, token_batch.TokenBatch], dict[str, jax.Array]]:
    """A jitted (params, batch) -> the two paths compared on the sampled tokens.

    Means something when `params` are the weights that sampled the batch.

    Returns:
      maximum, mean: of |trainer - sampler| log-prob, nats.
      kl: k3 estimate of KL(sampler || trainer) = mean of exp(d) - 1 - d, d = trainer - sampler.
      tokens: compared.
    """
    score = make_score(policy, chunk=chunk)

    @jax.jit
    def mismatch(params, batch):
        logprobs, _ = score(params, batch)
        mask = batch.action_mask
        difference = masked.safe_log_ratio(logprobs, batch.rollout_logprobs, mask)
        return {
            "maximum": jnp.max(jnp.abs(difference)),
            "mean": masked.mean(jnp.abs(difference), mask),
            "kl": masked.mean(jnp.expm1(difference) - difference, mask),
            "tokens": masked.count(mask),
        }

    return mismatch
