"""What a step changes and a checkpoint keeps, as pytrees of arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.trainer import optim

Tree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelState:
    """One model in training: of the warm start (policy) and of value pretraining (critic).

    Attributes:
      params: nested dict of arrays.
      opt_state: of the optimiser that trains them.
      step: i32, steps done.
    """

    params: optim.Params
    opt_state: optim.OptState
    step: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything the RL step reads and writes.

    Attributes:
      policy_params, critic_params: nested dicts of arrays; the critic is {} without one.
      policy_opt, critic_opt: optimiser states; () without a critic.
      reference_params: of the frozen reference policy; {} for rows that read none.
      algorithm_state: of stateful advantages and calibrated keep rules.
      step: i32, steps done, critic-only ones included.
      key: typed PRNG key of the run; randomness of a step is `fold_in(key, step)`.
    """

    policy_params: optim.Params
    policy_opt: optim.OptState
    critic_params: optim.Params
    critic_opt: optim.OptState
    reference_params: optim.Params
    algorithm_state: Tree
    step: jax.Array
    key: jax.Array


def init_model_state(params: optim.Params, optimizer: optim.Optimizer) -> ModelState:
    """Step 0 with a fresh optimiser. The state is donated by steps, so `params` is copied."""
    params = jax.tree.map(jnp.copy, params)
    return ModelState(params=params, opt_state=optimizer.init(params), step=jnp.int32(0))


def init_train_state(
    policy_params: optim.Params,
    critic_params: optim.Params,
    *,
    policy_optimizer: optim.Optimizer,
    critic_optimizer: optim.Optimizer | None,
    reference_params: optim.Params,
    algorithm_state: Tree,
    key: jax.Array,
) -> TrainState:
    """Step 0 of RL with fresh optimisers.

    The state is donated by the step, so the parameters are copied: the caller keeps its own.
    `critic_optimizer` is None for an algorithm without a critic; `critic_params` is {} then.
    `reference_params` is {} for a row that reads no reference log-probs.
    """
    policy_params = jax.tree.map(jnp.copy, policy_params)
    critic_params = jax.tree.map(jnp.copy, critic_params)
    return TrainState(
        policy_params=policy_params,
        policy_opt=policy_optimizer.init(policy_params),
        critic_params=critic_params,
        critic_opt=critic_optimizer.init(critic_params) if critic_optimizer else (),
        reference_params=jax.tree.map(jnp.copy, reference_params),
        algorithm_state=algorithm_state,
        step=jnp.int32(0),
        key=jnp.copy(key),
    )


def select(accept: jax.Array, new: Tree, old: Tree) -> Tree:
    """`new` where the bool scalar `accept` is True, else `old`, leaf by leaf and bit by bit."""
    return jax.tree.map(lambda n, o: o if n is o else jnp.where(accept, n, o), new, old)
