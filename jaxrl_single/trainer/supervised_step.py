"""One step of the warm start: imitate the action tokens of demonstrations."""

from __future__ import annotations

from collections.abc import Callable

import jax

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.objectives import supervised
from jaxrl_single.ops import masked, reduce
from jaxrl_single.trainer import accumulate, forward, optim
from jaxrl_single.trainer import state as state_lib

Step = Callable[
    [state_lib.ModelState, token_batch.TokenBatch],
    tuple[state_lib.ModelState, dict[str, jax.Array]],
]


def make_supervised_step(policy: api.Policy, optimizer: optim.Optimizer, *, chunk: int) -> Step:
    """Builds the jitted step; it donates the state.

    The loss is the mean over action tokens of -log pi, over the whole batch. A batch without
    action tokens, or one whose loss or gradient is not finite, leaves the parameters and the
    optimiser as they are.

    Args:
      policy: the model.
      optimizer: over the policy's parameters.
      chunk: tokens per row whose logits exist at one time.

    Returns:
      (state, batch) -> (state, metrics). Metrics are float32 scalars under `warm_start/`: `loss`
      (nats per token), `grad_norm` (before clipping), `entropy` (nats), `tokens`, and
      `nonfinite`, `empty_update` (0 or 1).
    """

    def step(state, batch):
        num_tokens = accumulate.loss_tokens(batch)
        denominator = reduce.denominator(
            "token_mean", num_tokens=num_tokens, num_trajectories=num_tokens
        )

        def share(params, micro, _, carry):
            logprobs, entropies = forward.policy_forward(policy, params, micro, chunk=chunk)
            mask = micro.loss_mask
            loss = reduce.token_mean(
                supervised.negative_log_likelihood(logprobs, mask),
                mask,
                trajectory_lengths=mask,
                denominator=denominator,
            )
            sums = {"warm_start/entropy": (masked.total(entropies, mask), masked.count(mask))}
            return loss, (sums, carry)

        found = accumulate.gradients(share, state.params, optimizer, batch)
        params, opt_state = accumulate.update(
            state.params, state.opt_state, optimizer, found, num_tokens=num_tokens
        )
        metrics = accumulate.quotients(found.sums)
        metrics |= accumulate.summary("warm_start", found, num_tokens=num_tokens)
        return state_lib.ModelState(params, opt_state, state.step + 1), metrics

    return jax.jit(step, donate_argnums=0)
