"""Stage 2: the critic learns the returns of the warm policy, before RL uses it (VAPO, SAO §3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import ml_collections
import numpy as np

from jaxrl_single import types
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.stages import placement as placement_lib
from jaxrl_single.trainer import optim, value_step
from jaxrl_single.trainer import state as state_lib

Pack = Callable[[list[types.Trajectory]], token_batch.TokenBatch]
Report = Callable[[int, dict[str, float]], None]  # (step, metrics)


def train(
    critic: api.Critic,
    params: api.Params,
    trajectories: Sequence[types.Trajectory],
    section: ml_collections.ConfigDict,
    pack: Pack,
    *,
    placement: placement_lib.Placement,
    batch_size: int,
    discount: float,
    critic_lambda: float,
    seed: int,
    report: Report,
) -> tuple[api.Params, float]:
    """Trains all of the critic until held-out explained variance stops rising.

    Returns:
      The parameters at the best measurement, and its explained variance; the last parameters and
      NaN when returns do not vary on the held-out rollouts.
    """
    num_held_out = max(1, round(section.held_out_fraction * len(trajectories)))
    held_out = _batches(trajectories[:num_held_out], pack, batch_size)
    training = list(trajectories[num_held_out:])
    adamw = optim.adamw(section.learning_rate, b1=0.9, b2=0.95, weight_decay=0.0)
    optimizer = optim.build(
        params, rules=optim.ALL_TRAIN, transforms={"train": adamw}, clip_norm=1.0
    )
    hyper = {"discount": discount, "critic_lambda": critic_lambda}
    state = placement.state(state_lib.init_model_state(params, optimizer))
    shardings = placement.shardings(state)
    step = value_step.make_value_step(critic, optimizer, **hyper, state_shardings=shardings)
    predict = value_step.make_predict(critic, **hyper)
    best, best_params, unimproved = -np.inf, jax.device_get(state.params), 0
    rng = np.random.default_rng([seed, 3])
    for number in range(1, section.max_steps + 1):
        chosen = rng.choice(len(training), size=min(batch_size, len(training)), replace=False)
        state, metrics = step(state, placement.batch(pack([training[i] for i in chosen])))
        metrics = jax.device_get(metrics)
        if number % section.eval_every == 0 or number == section.max_steps:
            explained = value_step.explained_variance(
                predict, state.params, map(placement.batch, held_out)
            )
            metrics["value_pretraining/explained_variance"] = explained
            unimproved += 1
            if explained > best:
                best, best_params, unimproved = explained, jax.device_get(state.params), 0
        report(number, metrics)
        if unimproved >= section.patience:
            break
    if not np.isfinite(best):
        return state.params, float("nan")
    return placement.put(best_params), float(best)


def _batches(
    trajectories: Sequence[types.Trajectory], pack: Pack, size: int
) -> list[token_batch.TokenBatch]:
    starts = range(0, len(trajectories), size)
    return [pack(list(trajectories[start : start + size])) for start in starts]
