"""ConfigDict -> plain objects. Nothing below this file sees a ConfigDict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import ml_collections
import optax

from jaxrl_single import types
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.algorithms import table as algorithm_table
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import packing, token_batch
from jaxrl_single.models import api, pretrained, sizes
from jaxrl_single.models import config as model_config
from jaxrl_single.trainer import optim


def models(config: ml_collections.ConfigDict, vocab_size: int) -> tuple[api.Policy, api.Critic]:
    """Policy and critic of the same shape.

    Args:
      vocab_size: of the run's language.

    Raises:
      ValueError: unknown size or dtype, or a checkpoint that our model does not compute.
      OSError: the checkpoint cannot be read.
    """
    shape = model_shape(config, vocab_size)
    return api.build_policy(shape), api.build_critic(shape)


def model_shape(config: ml_collections.ConfigDict, vocab_size: int) -> model_config.ModelConfig:
    """The shape of `config.model`; see `models`."""
    section = config.model
    if not section.path:
        return sizes.get(
            section.size, vocab_size=vocab_size, dtype=section.dtype, remat=section.remat
        )
    shape = pretrained.describe(section.path, dtype=section.dtype).model
    if vocab_size > shape.vocab_size:
        raise ValueError(
            f"{section.path}: the tokenizer has ids up to {vocab_size - 1}, the embedding "
            f"{shape.vocab_size} rows; they do not belong together"
        )
    return dataclasses.replace(shape, remat=section.remat)


def algorithm(config: ml_collections.ConfigDict) -> row_lib.Algorithm:
    """The row of the table with the hyper-parameters of `config.algorithm`.

    Raises:
      ValueError: unknown algorithm, field, hyper-parameter or value.
    """
    return algorithm_table.get(config.algorithm.name, overrides(config))


def overrides(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """`config.algorithm` without the name of the row, as `table.get` takes it."""
    fields = dict(config.algorithm)
    del fields["name"]
    return dict(_dotted(fields))


def record(config: ml_collections.ConfigDict) -> types.Record:
    """What the sampler writes down for the algorithm besides the tokens: only what it reads."""
    needs = algorithm(config).needs
    return types.Record(
        num_aux=config.sampler.num_aux_draws if "aux" in needs else 0,
        topk=config.sampler.top_k if "topk" in needs else 0,
        full="full" in needs,
        experts=config.sampler.record_experts,
    )


def evaluation_record(config: ml_collections.ConfigDict) -> types.Record:
    """What it writes down in evaluations: they are scored again, but no algorithm reads them."""
    return types.Record(experts=config.sampler.record_experts)


def routing(
    config: ml_collections.ConfigDict, shape: model_config.ModelConfig
) -> packing.Routing | None:
    """The choices of experts that the trainer replays, None when it leaves them to its routers.

    Args:
      shape: of the policy.
    """
    if not config.sampler.record_experts:
        return None
    return packing.Routing(
        num_layers=shape.num_moe_layers,
        experts_per_token=shape.experts_per_token,
        num_experts=shape.num_experts,
    )


def algorithm_state(row: row_lib.Algorithm) -> update_lib.State:
    """What its stateful parts keep, before the first batch."""
    return update_lib.init_state(row, num_tasks=packing.NUM_TASK_NUMBERS)


def _dotted(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested fields as {"keep_rule.low": ...}; "name" inside a section chooses the part itself."""
    for name, value in fields.items():
        if isinstance(value, ml_collections.ConfigDict):
            yield from _dotted(value, f"{prefix}{name}.")
        elif prefix and name == "name":
            yield prefix[:-1], value
        else:
            yield prefix + name, value


def optimizer(
    section: ml_collections.ConfigDict,
    params: optim.Params,
    *,
    rules: Sequence[tuple[str, str]] = optim.ALL_TRAIN,
) -> optim.Optimizer:
    """AdamW over the parameters that the rules train.

    Args:
      section: `config.policy_optimizer` or `config.critic_optimizer`.
      params: arrays or shapes.
      rules: ordered (regex, label); labels are "train" and "frozen".
    """
    schedule = optim.warmup(
        section.learning_rate,
        warmup_steps=section.warmup_steps,
        decay=section.decay,
        decay_steps=section.decay_steps,
        final_fraction=section.final_fraction,
    )
    return optim.build(
        params,
        rules=rules,
        transforms={"train": _adamw(section, schedule)},
        clip_norm=section.clip_norm,
    )


def check_critic_rules(config: ml_collections.ConfigDict, vocab_size: int) -> None:
    """Applies `config.critic.rules` to the shapes of the critic; no device is touched.

    Raises:
      ValueError: a parameter matches no rule, or nothing would train.
    """
    _, critic = models(config, vocab_size)
    shapes = jax.eval_shape(lambda: critic.init(jax.random.key(0)))
    optimizer(config.critic_optimizer, shapes, rules=critic_rules(config))


def critic_rules(config: ml_collections.ConfigDict) -> tuple[tuple[str, str], ...]:
    """Those of RL, as `optimizer` takes them."""
    return tuple(tuple(rule) for rule in config.critic.rules)


def packer(
    config: ml_collections.ConfigDict,
    *,
    num_trajectories: int | None = None,
    num_minibatches: int = 1,
    recorded: Mapping[str, int] = MappingProxyType({}),
    routing: packing.Routing | None = None,
) -> Callable[[Sequence[types.Trajectory]], token_batch.TokenBatch]:
    """Trajectories -> TokenBatch with the static shapes of `config.batch`.

    Args:
      num_trajectories: of a batch, when it is not `config.batch.num_trajectories`.
      num_minibatches: policy updates from a batch, see `packing.pack`.
      recorded, routing: what the batch holds besides tokens, see `packing.pack`.
    """

    def pack(trajectories: Sequence[types.Trajectory]) -> token_batch.TokenBatch:
        return packing.pack(
            trajectories,
            num_trajectories=num_trajectories or config.batch.num_trajectories,
            row_length=config.batch.row_length,
            rows_per_micro_batch=config.batch.rows_per_micro_batch,
            row_buckets=tuple(config.batch.row_buckets),
            on_limit=config.rollout.on_limit,
            num_minibatches=num_minibatches,
            recorded=recorded,
            routing=routing,
        )

    return pack


def _adamw(section: ml_collections.ConfigDict, schedule) -> optax.GradientTransformation:
    return optim.adamw(schedule, b1=section.b1, b2=section.b2, weight_decay=section.weight_decay)
