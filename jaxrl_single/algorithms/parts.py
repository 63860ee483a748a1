"""The parts that rows of the table are made of, by name, with their published constants.

A part is one pure function. Its positional parameters name the arrays that it reads (the fields of
`arrays.AdvantageArrays` or `arrays.PolicyArrays`, and what `update.py` derives from them); its
keyword-only parameters are hyper-parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_single.advantages import (
    baselines,
    branching,
    critic_gae,
    gigrpo,
    running_mean,
    spo,
    step_gae,
    three_spo,
    trace,
    whitening,
)
from jaxrl_single.keep_rules import (
    dis,
    dppo,
    estr,
    flash,
    icepop,
    kpop,
    m2po,
    none,
    omega_mask,
    one_sided,
    sequences,
    soft_gate,
    trm,
)
from jaxrl_single.objectives import (
    bellman_bpo,
    bellman_bpo_exact,
    cispo,
    corrections,
    gspo,
    klpo,
    klpo_sequence,
    ppo_clip,
    preference,
    sao,
    score,
    terms,
)

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
      task_weights: how often to sample each task, task_weights(state, *, hyper-parameters), for a
        stateful advantage that says so.
    """

    function: Callable[..., Any] | None
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    per: str = TOKEN
    couples: bool = False
    init: Callable[..., Any] | None = None
    kernels: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    task_weights: Callable[..., Any] | None = None

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
        """Its state before the first batch; for parts with `init`."""
        return self.init(num_tasks, **_named_by(self.init, self.hyperparameters))

    def weigh_tasks(self, state: Any) -> Any:
        """Relative frequencies of the tasks by their number; for parts with `task_weights`."""
        return self.task_weights(state, **_named_by(self.task_weights, self.hyperparameters))

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


_CRITIC = {"discount": 1.0, "lambda_alpha": 1.5, "critic_lambda": 1.0}
ADVANTAGES: dict[str, Part] = {
    "critic_gae": Part(critic_gae.critic_gae, _CRITIC),
    # One lambda for both, as in GAE (arXiv 1506.02438) and PPO: the target is A + V. A critic
    # with a lambda of its own came with VC-PPO (arXiv 2503.01491) and VAPO.
    "fixed_gae": Part(
        critic_gae.fixed_gae, {"discount": 1.0, "lambda_": 0.95, "critic_lambda": 0.95}
    ),
    "step_average": Part(step_gae.step_average, _CRITIC),
    "step_last": Part(step_gae.step_last, _CRITIC),
    "turn_level": Part(step_gae.turn_level, _CRITIC),
    "reward": Part(baselines.reward_only, per=TRAJECTORY),
    "reward_minus_prompt_value": Part(baselines.reward_minus_prompt_value, per=TRAJECTORY),
    "batch_mean": Part(baselines.batch_mean, per=TRAJECTORY),
    "batch_leave_one_out": Part(baselines.batch_leave_one_out, per=TRAJECTORY),
    "group_mean": Part(baselines.group_mean, per=TRAJECTORY),
    "leave_one_out": Part(baselines.leave_one_out, per=TRAJECTORY),
    "group_normalised": Part(baselines.group_normalised, {"eps": 1e-6}, per=TRAJECTORY),
    "running_mean": Part(
        running_mean.running_mean,
        {"window": 8, "initial": 0.5},
        per=TRAJECTORY,
        init=running_mean.running_mean_init,
    ),
    "global_running_mean": Part(
        running_mean.global_running_mean,
        {"window": 128, "initial": 0.5},
        per=TRAJECTORY,
        init=running_mean.global_running_mean_init,
    ),
    "spo": Part(
        spo.spo,
        {"prior": 0.5, "half_life": 0.06, "rho_min": 0.875, "rho_max": 0.96, "floor": 0.05},
        per=TRAJECTORY,
        init=spo.spo_init,
        task_weights=spo.task_weights,
    ),
    "branching": Part(branching.branching),
    "gigrpo": Part(gigrpo.gigrpo, {"discount": 0.95, "step_weight": 1.0, "eps": 1e-6}),
    "gigrpo_mean": Part(gigrpo.gigrpo_mean, {"discount": 0.95, "step_weight": 1.0}),
    "three_spo": Part(
        three_spo.three_spo,
        {"alpha": 1.0, "min_failures": 10, "min_rate": 0.1, "decay": 0.1},
        init=three_spo.three_spo_init,
    ),
    "trace": Part(
        trace.trace,
        {
            "offset": 0.1,
            "window": 3,
            "discount": 0.8,
            "outcome_bonus": 2.0,
            "credit_weight": 0.2,
            "eps": 1e-6,
        },
    ),
}
WHITENINGS: dict[str, Part] = {
    "trajectories": Part(whitening.whiten_trajectories, {"eps": 1e-8}, per=TRAJECTORY),
    "tokens": Part(whitening.whiten_tokens, {"eps": 1e-8}),
}
KEEP_RULES: dict[str, Part] = {
    "none": Part(none.none),
    "dis": Part(dis.dis, {"low": 0.3, "high": 5.0}),
    "icepop": Part(icepop.icepop, {"low": 0.5, "high": 5.0}),
    # 0.1 is the authors' (ringtech.notion.site/kpop, as prime-rl #3283 reads it). 2.0, from an
    # example of AReaL #1405, keeps a token whose probability went from 0.05 to 0.5.
    "kpop": Part(kpop.kpop, {"threshold": 0.1}),
    "estr": Part(
        estr.estr, {"tau": 0.0, "masked_fraction": 7e-4, "offset": 0.01}, init=estr.estr_init
    ),
    "m2po": Part(m2po.m2po, {"budget": 0.04, "low": 0.3, "high": 0.5}, couples=True),
    "dppo_tv": Part(dppo.dppo_tv, {"low": 0.15, "high": 0.15}),
    "dppo_kl": Part(dppo.dppo_kl, {"low": 0.05, "high": 0.05}),
    "dppo_topk_tv": Part(dppo.dppo_topk_tv, {"low": 0.15, "high": 0.15}),
    "dppo_topk_kl": Part(dppo.dppo_topk_kl, {"low": 0.05, "high": 0.05}),
    "ppo_clip": Part(one_sided.ppo_clip, {"low": 0.2, "high": 0.28}),
    "trm": Part(trm.trm, {"max_kl": 0.05, "mean_kl": math.inf}, couples=True),
    "trm_k2_max": Part(trm.trm_k2_max, {"limit": 0.05}, couples=True),
    "trm_k3_max": Part(trm.trm_k3_max, {"limit": 0.05}, couples=True),
    "trm_k3_mean": Part(trm.trm_k3_mean, {"limit": 0.001}, couples=True),
    "sequence_mis": Part(sequences.sequence_mis, {"cap": 2.0}, couples=True),
    "geometric_band": Part(sequences.geometric_band, {"cap": 1.001}, couples=True),
    "veto": Part(sequences.veto, {"floor": 1e-4}, couples=True),
    "flash_trust_region": Part(flash.flash_trust_region, {"delta": 3e-3}, couples=True),
    "flash_filtered": Part(flash.flash_filtered, {"delta": 1e-3, "fraction": 0.9}, couples=True),
    "omega_mask": Part(omega_mask.omega_mask, {"eps": 0.1, "low": 0.2, "high": 0.28}),
    "soft_gate": Part(soft_gate.soft_gate, {"tau_positive": 1.0, "tau_negative": 1.05}),
}
CORRECTIONS: dict[str, Part] = {
    "token_tis": Part(corrections.token_tis, {"cap": 2.0}),
    "engine_ratio": Part(corrections.engine_ratio),
    "engine_tis": Part(corrections.engine_tis, {"cap": 5.0}),
    "sequence_ratio": Part(corrections.sequence_ratio, couples=True),
    "sequence_tis": Part(corrections.sequence_tis, {"cap": 2.0}, couples=True),
}
OBJECTIVES: dict[str, Part] = {
    "sao": Part(sao.sao),
    "score": Part(score.score),
    "ppo_clip": Part(ppo_clip.ppo_clip, {"low": 0.2, "high": 0.2}),
    "gspo": Part(gspo.gspo, {"low": 3e-4, "high": 4e-4}, couples=True),
    # A weight of at most 5. The paper gives no number; ScaleRL (arXiv 2510.13786) finds 4 to 8
    # equally good, TRL and ms-swift take 5. PPO's 0.28 would cap what CISPO means to let through.
    "cispo": Part(cispo.cispo, {"low": 1.0, "high": 4.0}),
    "bellman_bpo": Part(bellman_bpo.bellman_bpo, {"eps": 0.1, "cap": 3.0}),
    "bellman_bpo_exact": Part(bellman_bpo_exact.bellman_bpo_exact, {"eta": 1.0}, couples=True),
    "klpo": Part(
        None,
        {"kernel": "mc", "beta": 0.1, "tail_floor": 1e-6},
        kernels={
            "mc": klpo.token_mc,
            "topk": klpo.token_topk,
            "binary": klpo.token_binary,
            "full": klpo.token_full,
        },
    ),
    "klpo_sequence": Part(
        None,
        {"kernel": "mc", "beta": 0.1, "tail_floor": 1e-6},
        couples=True,
        kernels={
            "mc": klpo_sequence.sequence_mc,
            "topk": klpo_sequence.sequence_topk,
            "binary": klpo_sequence.sequence_binary,
            "full": klpo_sequence.sequence_full,
        },
    ),
    "rebel": Part(preference.rebel, {"eta": 1.0}, couples=True),
    "sppo": Part(preference.sppo, {"eta": 1.0}, couples=True),
    "gpo": Part(preference.gpo, {"beta": 1.0}, couples=True),
}
TERMS: dict[str, Part] = {
    "positive_nll": Part(terms.positive_nll, {"coefficient": 0.1}),
    "reference_kl": Part(terms.reference_kl, {"coefficient": 0.01}),
    "entropy_bonus": Part(terms.entropy_bonus, {"coefficient": 0.001}),
}
