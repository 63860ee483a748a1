"""One step of the warm start: imitate the action tokens of demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.objectives import supervised
from jaxrl_single.ops import reduce
from jaxrl_single.trainer import accumulate, forward, optim
from jaxrl_single.trainer import state as state_lib

Step = Callable[
    [state_lib.ModelState, token_batch.TokenBatch],
    tuple[state_lib.ModelState, dict[str, jax.Array]],
]


def make_supervised_step(
    policy: api.Policy, optimizer: optim.Optimizer, *, chunk: int, state_shardings: Any = None
) -> Step:
    """Builds the jitted step; it donates the state.

    The loss is the mean over action tokens of -log pi, over the whole batch. A batch without
    action tokens, or one whose loss or gradient is not finite, leaves the parameters and the
    optimiser as they are.

    Args:
      policy: the model.
      optimizer: over the policy's parameters.
      chunk: tokens per row whose logits exist at one time.
      state_shardings: of the state that it returns; None = as the compiler likes.

    Returns:
      (state, batch) -> (state, metrics), float32 scalars by the names of metrics/names.py:
      warm_start/loss, warm_start/gradient_norm, warm_start/learning_rate, train/action_tokens,
      train/empty_update, train/nonfinite.
    """

    def step(state, batch):
        num_tokens = accumulate.loss_tokens(batch)
        denominator = reduce.denominator(
            "token_mean", num_tokens=num_tokens, num_trajectories=num_tokens
        )

        def share(params, micro, _, carry):
            logprobs = forward.policy_forward(policy, params, micro, chunk=chunk).logprobs
            loss = reduce.token_mean(
                supervised.negative_log_likelihood(logprobs, micro.loss_mask),
                micro.loss_mask,
                trajectory_lengths=micro.loss_mask,
                denominator=denominator,
            )
            return loss, accumulate.Aux(carry=carry)

        found = accumulate.gradients(share, state.params, optimizer, batch)
        params, opt_state = accumulate.update(
            state.params, state.opt_state, optimizer, found, num_tokens=num_tokens
        )
        metrics = {
            "warm_start/loss": found.loss,
            "warm_start/gradient_norm": found.norm,
            "warm_start/learning_rate": optim.last_learning_rate(opt_state),
        }
        metrics |= accumulate.guards(num_tokens, found.finite)
        return state_lib.ModelState(params, opt_state, state.step + 1), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None))
