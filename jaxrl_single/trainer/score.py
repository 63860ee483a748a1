"""Log-probs of recorded tokens under given weights, compared with what the sampler recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.ops import masked
from jaxrl_single.trainer import accumulate, critic_step, forward, optim


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


def make_rescore(
    policy: api.Policy, critic: api.Critic | None, *, chunk: int
) -> Callable[[optim.Params, optim.Params, optim.Params, token_batch.TokenBatch], dict]:
    """A jitted (params, reference params, critic params, batch) -> arrays by name.

    Returns:
      "policy_logprobs", "policy_entropies", "ref_logprobs" [M, B, T], and with a critic "values"
      [M, B, T] and "bootstrap_values" [N], all as the train step computes them; and of what the
      batch holds of draws and rows "aux_logprobs", "topk_logprobs", "full_logprobs"
      [M, B, T, width] under the policy.
    """

    @jax.jit
    def rescore(params, reference, critic_params, batch):
        def of_micro(micro):
            found = forward.policy_forward(policy, params, micro, chunk=chunk)
            # The reference is a fixed model: another one's routing must not bear on it.
            own_routing = dataclasses.replace(micro, expert_ids=None)
            outputs = forward.policy_forward(policy, reference, own_routing, chunk=chunk)
            named = {
                "policy_logprobs": found.logprobs,
                "policy_entropies": found.entropies,
                "ref_logprobs": outputs.logprobs,
                "aux_logprobs": found.aux_logprobs,
                "topk_logprobs": found.topk_logprobs,
                "full_logprobs": found.full_logprobs,
            }
            return {name: array for name, array in named.items() if array is not None}

        said = accumulate.forward(of_micro, batch)
        if critic is not None:
            values, bootstrap = critic_step.values(critic, critic_params, batch)
            said |= {"values": values, "bootstrap_values": bootstrap}
        return said

    return rescore


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
