"""What a row of the table is, and how its fields and hyper-parameters are replaced by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_single.algorithms import allowed, parts
from jaxrl_single.algorithms.parts import Part
from jaxrl_single.ops import reduce

RATIO_REFERENCES = ("rollout", "proximal")


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One row.

    Attributes:
      name: its key in TABLE.
      paper: title or short name, and arXiv id.
      advantage: the estimator.
      keep_rule: gives keep in [0, 1] per token, without the ratio.
      objective: gives (per_token_loss, weights, metrics).
      reduction: a key of `reduce.REDUCTIONS`.
      correction: gives a further stop-gradient weight per token, multiplied into keep.
      whitening: of the advantages, over the batch.
      terms: auxiliary losses; each has the hyper-parameter "coefficient".
      ratio_reference: the log-probs under the objective's ratio, of RATIO_REFERENCES: as recorded
        by the sampler, or recomputed by the trainer before the first update on the batch.
      num_critic_steps: critic updates per policy update; 0 without a critic.
      num_policy_epochs: passes over a batch.
      num_minibatches: policy updates per pass.
      fixed_length: tokens, for the reduction "fixed_length".
    """

    name: str
    paper: str
    advantage: Part
    keep_rule: Part
    objective: Part
    reduction: str
    correction: Part | None = None
    whitening: Part | None = None
    terms: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    ratio_reference: str = "rollout"
    num_critic_steps: int = 0
    num_policy_epochs: int = 1
    num_minibatches: int = 1
    fixed_length: int = 0

    def __hash__(self) -> int:
        """So that jit takes a row as a static argument; its mappings have no hash of their own."""
        return hash(self.name)

    @property
    def reads(self) -> frozenset[str]:
        """Names of all arrays that its parts read."""
        names = {name for _, part in each_part(self) for name in part.reads}
        return frozenset(names | {f"{self.ratio_reference}_logprobs"})

    @property
    def needs(self) -> tuple[str, ...]:
        """What a batch must hold beyond every trajectory's own record, of NEEDS."""
        return tuple(need for need, names in NEEDS.items() if self.reads & names)

    @property
    def needs_critic(self) -> bool:
        """Whether values are read and a critic is trained."""
        return "values" in self.reads

    @property
    def least_draws(self) -> int:
        """Auxiliary draws per token that its parts need at least."""
        return max(allowed.DRAWS.get(part.chosen.__name__, 0) for _, part in each_part(self))

    @property
    def couples(self) -> bool:
        """Whether the loss at a token depends on the log-probs of other tokens."""
        found = [self.keep_rule, self.objective, *self.terms.values()]
        found += [self.correction] if self.correction else []
        return bool(self.terms) or any(part.couples or part.init for part in found)


NEEDS: dict[str, frozenset[str]] = {
    "critic": frozenset({"values"}),
    "groups": frozenset({"group"}),
    "tasks": frozenset({"task"}),
    "proximal": frozenset({"proximal_logprobs", "engine_log_ratio"}),
    "reference": frozenset({"ref_logprobs"}),
    "entropies": frozenset({"entropies"}),
    "aux": frozenset({"aux_rollout_logprobs", "aux_policy_logprobs"}),
    "topk": frozenset({"topk_rollout_logprobs", "topk_policy_logprobs"}),
    "full": frozenset({"full_rollout_logprobs", "full_policy_logprobs"}),
    "preference": frozenset({"preference"}),
    "prompt value": frozenset({"prompt_value"}),
    "gold answer": frozenset({"gold_logprobs"}),
    "forks": frozenset({"parent"}),
    "states": frozenset({"state_key"}),
}

_CHOICES: dict[str, Mapping[str, Part]] = {
    "advantage": parts.ADVANTAGES,
    "whitening": parts.WHITENINGS,
    "keep_rule": parts.KEEP_RULES,
    "correction": parts.CORRECTIONS,
    "objective": parts.OBJECTIVES,
}
_OPTIONAL = ("whitening", "correction")  # "" leaves them out
_SETTINGS = (
    "reduction",
    "ratio_reference",
    "num_critic_steps",
    "num_policy_epochs",
    "num_minibatches",
    "fixed_length",
)


def override(algorithm: Algorithm, overrides: Mapping[str, Any]) -> Algorithm:
    """The row with some of its fields and hyper-parameters replaced; see `table.get`.

    Raises:
      ValueError: unknown field, hyper-parameter, part or choice, or a value of another type; the
        message lists the valid ones. Values that are not allowed are told all at once, one a line.
    """
    overrides = dict(overrides)
    for key in [key for key in overrides if key in _CHOICES or key == "terms"]:
        algorithm = _replace_part(algorithm, key, overrides.pop(key))
    known = hyperparameters(algorithm)
    for key, value in overrides.items():
        if key not in known:
            raise ValueError(
                f"algorithm {algorithm.name!r} has no field {key!r}; it has {sorted(known)}"
            )
        algorithm = _set(algorithm, key, _typed(key, value, known[key]))
    if problems := list(_problems(algorithm)):
        raise ValueError("\n".join(problems))
    return algorithm


def each_part(algorithm: Algorithm) -> Iterator[tuple[str, Part]]:
    """Its parts with their dotted names."""
    for field in _CHOICES:
        part = getattr(algorithm, field)
        if part is not None:
            yield field, part
    for name, part in algorithm.terms.items():
        yield f"terms.{name}", part


def hyperparameters(algorithm: Algorithm) -> dict[str, Any]:
    """All settings and hyper-parameters of a row by dotted name, with the value that they have."""
    values = {name: getattr(algorithm, name) for name in _SETTINGS}
    for field, part in each_part(algorithm):
        values |= {f"{field}.{key}": value for key, value in part.hyperparameters.items()}
    return values


def _replace_part(algorithm: Algorithm, field: str, choice: str) -> Algorithm:
    if field == "terms":
        names = [name.strip() for name in choice.split(",") if name.strip()]
        return dataclasses.replace(
            algorithm, terms={name: _part("terms", parts.TERMS, name) for name in names}
        )
    if field in _OPTIONAL and not choice:
        return dataclasses.replace(algorithm, **{field: None})
    return dataclasses.replace(algorithm, **{field: _part(field, _CHOICES[field], choice)})


def _part(field: str, known: Mapping[str, Part], name: str) -> Part:
    if name not in known:
        raise ValueError(f"unknown {field} {name!r}; known are {sorted(known)}")
    return known[name]


def _set(algorithm: Algorithm, key: str, value: Any) -> Algorithm:
    if key in _SETTINGS:
        return dataclasses.replace(algorithm, **{key: value})
    field, _, name = key.rpartition(".")
    if field in _CHOICES:
        part = getattr(algorithm, field).having(**{name: value})
        return dataclasses.replace(algorithm, **{field: part})
    term = field.removeprefix("terms.")
    changed = algorithm.terms[term].having(**{name: value})
    return dataclasses.replace(algorithm, terms={**algorithm.terms, term: changed})


def _typed(key: str, value: Any, default: Any) -> Any:
    """`value` as the type of the default; int is welcome where a float is expected."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ValueError(
            f"algorithm.{key} is {value!r}, a {type(value).__name__}; expected a "
            f"{type(default).__name__} such as {default!r}"
        )
    return value


def _problems(algorithm: Algorithm) -> Iterator[str]:
    yield from _unknown_choice(algorithm, "reduction", tuple(reduce.REDUCTIONS))
    yield from _unknown_choice(algorithm, "ratio_reference", RATIO_REFERENCES)
    for name, numbers in allowed.SETTINGS.items():
        if (value := getattr(algorithm, name)) not in numbers:
            yield f"algorithm.{name} is {value}, must be {numbers}"
    if algorithm.reduction == "fixed_length" and algorithm.fixed_length < 1:
        yield (
            f"algorithm.fixed_length is {algorithm.fixed_length}, and reduction is 'fixed_length', "
            "which divides by so many tokens; set it to the longest response, for instance"
        )
    for field, part in each_part(algorithm):
        kernel = part.hyperparameters.get("kernel")
        if part.kernels and kernel not in part.kernels:
            yield (
                f"algorithm {algorithm.name!r}: {field}.kernel is {kernel!r}, allowed are "
                f"{sorted(part.kernels)}"
            )
            return  # what else there is to say depends on the function that it chooses
        yield from allowed.problems(field, part)
        # Advantages are made before the batch is dealt.
        if algorithm.num_minibatches > 1 and field != "advantage" and "group" in part.reads:
            yield (
                f"algorithm.num_minibatches is {algorithm.num_minibatches}, and {field} compares "
                "the trajectories of a group, which may come into different ones; use 1"
            )
    if algorithm.needs_critic and algorithm.num_critic_steps < 1:
        yield (
            f"algorithm {algorithm.name!r} reads a critic's values, so num_critic_steps must be at "
            f"least 1; it is {algorithm.num_critic_steps}"
        )


def _unknown_choice(algorithm: Algorithm, field: str, known: tuple[str, ...]) -> Iterator[str]:
    value = getattr(algorithm, field)
    if value not in known:
        yield f"algorithm {algorithm.name!r}: {field} is {value!r}, allowed are {sorted(known)}"
