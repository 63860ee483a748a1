"""The parts that rows of the table are made of, by name, with their published constants.

A part is one pure function. Its positional parameters name the arrays that it reads (the fields of
`arrays.AdvantageArrays` or `arrays.PolicyArrays`, and what `update.py` derives from them); its
keyword-only parameters are hyper-parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_single.advantages import baselines, critic_gae
from jaxrl_single.keep_rules import dis, none
from jaxrl_single.objectives import ppo_clip, sao

TOKEN, TRAJECTORY = "token", "trajectory"


@dataclasses.dataclass(frozen=True)
class Part:
    """One function of a row with its hyper-parameters.

    Attributes:
      function: what to call; None if `kernels` has several.
      hyperparameters: the value of each keyword-only parameter, and "kernel" with `kernels`.
      per: of an advantage or whitening: "token", or "trajectory" ([N], shared by its tokens).
      couples: the result at one token depends on other tokens, so a micro-batch is not enough.
      init: makes the state of a stateful part, init(num_tasks, *, hyper-parameters); such a
        function takes the state first and returns (result, state).
      kernels: the functions by the value of the hyper-parameter "kernel".
    """

    function: Callable[..., Any] | None
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    per: str = TOKEN
    couples: bool = False
    init: Callable[..., Any] | None = None
    kernels: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)

    @property
    def chosen(self) -> Callable[..., Any]:
        """The function that its hyper-parameters choose."""
        return self.kernels[self.hyperparameters["kernel"]] if self.kernels else self.function

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the arrays that it reads, in the order of its parameters."""
        parameters = inspect.signature(self.chosen).parameters.values()
        names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        return tuple(name for name in names if name != "state")

    @property
    def settings(self) -> dict[str, Any]:
        """The hyper-parameters of the chosen function."""
        return _named_by(self.chosen, self.hyperparameters)

    def first_state(self, num_tasks: int) -> Any:
        """Its state before the first batch; () without one."""
        if self.init is None:
            return ()
        return self.init(num_tasks, **_named_by(self.init, self.hyperparameters))

    def having(self, **changes: Any) -> Part:
        """The same with some hyper-parameters changed."""
        unknown = sorted(set(changes) - set(self.hyperparameters))
        if unknown:
            raise ValueError(
                f"no hyper-parameters {unknown}, there are {sorted(self.hyperparameters)}"
            )
        return dataclasses.replace(self, hyperparameters={**self.hyperparameters, **changes})


def _named_by(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: values[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}


ADVANTAGES: dict[str, Part] = {
    "critic_gae": Part(
        critic_gae.critic_gae, {"discount": 1.0, "lambda_alpha": 1.5, "critic_lambda": 1.0}
    ),
    "batch_mean": Part(baselines.batch_mean, per=TRAJECTORY),
    "group_normalised": Part(baselines.group_normalised, {"eps": 1e-6}, per=TRAJECTORY),
}
WHITENINGS: dict[str, Part] = {}
KEEP_RULES: dict[str, Part] = {
    "none": Part(none.none),
    "dis": Part(dis.dis, {"low": 0.3, "high": 5.0}),
}
CORRECTIONS: dict[str, Part] = {}
OBJECTIVES: dict[str, Part] = {
    "sao": Part(sao.sao),
    "ppo_clip": Part(ppo_clip.ppo_clip, {"low": 0.2, "high": 0.2}),
}
TERMS: dict[str, Part] = {}
