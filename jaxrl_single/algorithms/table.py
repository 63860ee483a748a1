"""THE table of algorithms: a name gives a row of free choices.

A row says which advantage, keep rule, objective and reduction make up an algorithm and with which
published constants. It holds no control flow: `update.py` composes a row into a loss, and the
trainer asks the row (`needs_critic`, ...), never its name.

To add an algorithm: one function in `advantages/`, `keep_rules/` or `objectives/`, and one row.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_single.advantages import baselines, critic_gae
from jaxrl_single.keep_rules import dis, none
from jaxrl_single.objectives import ppo_clip, sao
from jaxrl_single.ops import reduce

ADVANTAGE_LEVELS = ("token", "trajectory")
RATIO_REFERENCES = ("rollout", "proximal")


@dataclasses.dataclass(frozen=True)
class Part:
    """One function of a row with its hyper-parameters.

    Attributes:
      function: its positional parameters name the arrays that it reads (see the fields of
        `update.AdvantageArrays` and `update.PolicyArrays`).
      hyperparameters: the value of each of its keyword-only parameters.
      prefix: goes before the name of a hyper-parameter in configs: "dis_" makes "dis_low" of "low".
    """

    function: Callable[..., Any]
    hyperparameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    prefix: str = ""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One row.

    Attributes:
      name: its key in TABLE.
      paper: title or short name, and arXiv id.
      advantage: the estimator.
      advantage_level: "token": arrays [T] give (advantages, returns); "trajectory": arrays [N] give
        advantages [N], which all tokens of a trajectory share.
      keep_rule: gives keep in [0, 1] per token, without the ratio.
      objective: gives (per_token_loss, metrics).
      reduction: a key of `reduce.REDUCTIONS`.
      correction: gives a further stop-gradient weight per token, multiplied into keep.
      ratio_reference: the log-probs under the objective's ratio, of RATIO_REFERENCES: as recorded
        by the sampler, or recomputed by the trainer before the first update on the batch.
      needs_critic: whether values are read and a critic is trained.
      num_critic_steps: critic updates per policy update.
      num_policy_epochs: passes over a batch.
      num_minibatches: policy updates per pass.
      fixed_length: tokens, for the reduction "fixed_length".
      needs: what else a batch must hold, of "groups", "aux", "topk", "full", "entropies", "gold".
    """

    name: str
    paper: str
    advantage: Part
    advantage_level: str
    keep_rule: Part
    objective: Part
    reduction: str
    correction: Part | None = None
    ratio_reference: str = "rollout"
    needs_critic: bool = False
    num_critic_steps: int = 0
    num_policy_epochs: int = 1
    num_minibatches: int = 1
    fixed_length: int | None = None
    needs: tuple[str, ...] = ()


_ROWS = (
    Algorithm(
        name="sao",
        paper="Single-rollout Asynchronous Optimization, arXiv 2607.07508",
        advantage=Part(
            critic_gae.critic_gae, {"discount": 1.0, "lambda_alpha": 1.5, "critic_lambda": 1.0}
        ),
        advantage_level="token",
        keep_rule=Part(dis.dis, {"low": 0.3, "high": 5.0}, prefix="dis_"),
        objective=Part(sao.sao),
        reduction="token_mean",
        needs_critic=True,
        num_critic_steps=2,
    ),
    Algorithm(
        name="reinforce",
        paper="Simple statistical gradient-following algorithms (Williams, 1992)",
        advantage=Part(baselines.batch_mean),
        advantage_level="trajectory",
        keep_rule=Part(none.none),
        objective=Part(sao.sao),
        reduction="token_mean",
    ),
    Algorithm(
        name="grpo",
        paper="DeepSeekMath, arXiv 2402.03300",
        advantage=Part(baselines.group_normalised, {"eps": 1e-6}, prefix="group_"),
        advantage_level="trajectory",
        keep_rule=Part(none.none),
        objective=Part(ppo_clip.ppo_clip, {"low": 0.2, "high": 0.2}, prefix="clip_"),
        reduction="sequence_mean",
        needs=("groups",),
    ),
)
TABLE: dict[str, Algorithm] = {row.name: row for row in _ROWS}

_PARTS = ("advantage", "keep_rule", "correction", "objective")
_SETTINGS = ("reduction", "ratio_reference", "num_policy_epochs", "num_minibatches", "fixed_length")


def get(name: str, overrides: Mapping[str, Any] | None = None) -> Algorithm:
    """The row `name` with some of its hyper-parameters replaced.

    Args:
      name: a key of TABLE.
      overrides: by the names that `hyperparameters` lists.

    Raises:
      ValueError: unknown name, hyper-parameter or choice; the message lists the valid ones.
    """
    if name not in TABLE:
        raise ValueError(f"unknown algorithm {name!r}; known are {sorted(TABLE)}")
    algorithm, overrides = TABLE[name], dict(overrides or {})
    known = hyperparameters(algorithm)
    for key in overrides:
        if key not in known:
            raise ValueError(
                f"algorithm {name!r} has no hyper-parameter {key!r}; it has {sorted(known)}"
            )
    changes = {key: value for key, value in overrides.items() if key in _settings(algorithm)}
    for field in _PARTS:
        part = getattr(algorithm, field)
        if part is not None:
            changes[field] = _override(part, overrides)
    algorithm = dataclasses.replace(algorithm, **changes)
    _check_choice(algorithm, "reduction", tuple(reduce.REDUCTIONS))
    _check_choice(algorithm, "ratio_reference", RATIO_REFERENCES)
    return algorithm


def hyperparameters(algorithm: Algorithm) -> dict[str, Any]:
    """Everything that `get` may override in this row, by name, with the value it has now."""
    values = {name: getattr(algorithm, name) for name in _settings(algorithm)}
    for field in _PARTS:
        part = getattr(algorithm, field)
        if part is not None:
            values |= {part.prefix + key: value for key, value in part.hyperparameters.items()}
    return values


def _settings(algorithm: Algorithm) -> tuple[str, ...]:
    return _SETTINGS + (("num_critic_steps",) if algorithm.needs_critic else ())


def _override(part: Part, overrides: Mapping[str, Any]) -> Part:
    values = {
        key: overrides.get(part.prefix + key, value) for key, value in part.hyperparameters.items()
    }
    return dataclasses.replace(part, hyperparameters=values)


def _check_choice(algorithm: Algorithm, field: str, allowed: tuple[str, ...]) -> None:
    value = getattr(algorithm, field)
    if value not in allowed:
        raise ValueError(
            f"algorithm {algorithm.name!r}: {field} is {value!r}, allowed are {sorted(allowed)}"
        )
