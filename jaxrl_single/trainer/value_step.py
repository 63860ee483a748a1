"""Value pretraining: the critic learns the returns of the fixed initial policy.

See "VAPO" (arXiv 2504.05118): before RL the critic is trained on Monte-Carlo returns until the
explained variance on held-out rollouts stops rising.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.advantages import skip_obs_gae
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import accumulate, critic_step, optim
from jaxrl_single.trainer import state as state_lib

Step = Callable[
    [state_lib.ModelState, token_batch.TokenBatch],
    tuple[state_lib.ModelState, dict[str, jax.Array]],
]
Predict = Callable[[optim.Params, token_batch.TokenBatch], tuple[jax.Array, jax.Array]]

VARIANCE_FLOOR = 1e-8  # returns that vary less are constant: nothing to explain


def make_value_step(
    critic: api.Critic,
    optimizer: optim.Optimizer,
    *,
    discount: float,
    critic_lambda: float,
    state_shardings: Any = None,
) -> Step:
    """Builds the jitted step; it donates the state.

    One update towards the lambda-returns of the batch, mean squared error over its loss tokens.
    With `critic_lambda` 1 the targets are the realised returns. What an empty or unsound
    batch does: as in `supervised_step`.

    Args:
      critic: the model.
      optimizer: over the critic's parameters, of which usually all train in this stage.
      discount: per action token.
      critic_lambda: of the targets.
      state_shardings: of the state that it returns; None = as the compiler likes.

    Returns:
      (state, batch) -> (state, metrics), float32 scalars by the names of metrics/names.py:
      value_pretraining/loss, value_pretraining/gradient_norm, train/action_tokens,
      train/empty_update, train/nonfinite.
    """

    def step(state, batch):
        _, returns = _values_and_returns(critic, state.params, batch, discount, critic_lambda)
        num_tokens = accumulate.loss_tokens(batch)
        targets = critic_step.Targets(
            returns=returns,
            trajectory_lengths=jnp.ones_like(returns),
            denominator=jnp.maximum(num_tokens, 1.0),
            reduction="token_mean",
        )
        params, opt_state, found = critic_step.critic_updates(
            critic, optimizer, state.params, state.opt_state, batch, targets, num_steps=1
        )
        metrics = {
            "value_pretraining/loss": found.loss[0],
            "value_pretraining/gradient_norm": found.norm[0],
        }
        metrics |= accumulate.guards(num_tokens, found.finite[0])
        return state_lib.ModelState(params, opt_state, state.step + 1), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None))


def make_predict(critic: api.Critic, *, discount: float, critic_lambda: float) -> Predict:
    """Builds a jitted (params, batch) -> (values, returns), both [M, B, T], for evaluation."""

    @jax.jit
    def predict(params, batch):
        return _values_and_returns(critic, params, batch, discount, critic_lambda)

    return predict


def explained_variance(
    predict: Predict, params: optim.Params, batches: Iterable[token_batch.TokenBatch]
) -> float:
    """1 - Var(G - V) / Var(G) over the loss tokens of all batches together, in float64.

    Pooled, not averaged over batches: the mean of ratios is not the ratio of the whole.
    NaN with fewer than two tokens or constant returns.
    """
    errors, targets = [np.zeros(0)], [np.zeros(0)]
    for batch in batches:
        values, returns = jax.device_get(predict(params, batch))
        mask = np.asarray(batch.loss_mask)
        targets.append(returns[mask].astype(np.float64))
        errors.append(targets[-1] - values[mask])
    error, target = np.concatenate(errors), np.concatenate(targets)
    if len(target) < 2 or target.var() <= VARIANCE_FLOOR:
        return float("nan")
    return float(1 - error.var() / target.var())


def _values_and_returns(critic, params, batch, discount: float, critic_lambda: float):
    values, bootstrap_values = critic_step.values(critic, params, batch)
    _, returns = skip_obs_gae.skip_obs_gae(
        batch.rewards.reshape(-1),
        values.reshape(-1),
        batch.action_mask.reshape(-1),
        batch.trajectory_index.reshape(-1),
        bootstrap_values,
        discount=discount,
        lambda_=critic_lambda,
    )
    return values, returns.reshape(values.shape)
