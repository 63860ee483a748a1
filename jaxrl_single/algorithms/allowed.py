"""Allowed values of what a row can be changed in, by the names in `parts.py`.

A name means the same in most parts; "function.name" is for a part where it means something else.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxrl_single import ranges
from jaxrl_single.algorithms import parts as parts_lib
from jaxrl_single.ranges import Range

SETTINGS: dict[str, Range] = {
    "num_critic_steps": ranges.NOT_NEGATIVE,
    "num_policy_epochs": ranges.FROM_ONE,
    "num_minibatches": ranges.FROM_ONE,
    "fixed_length": ranges.NOT_NEGATIVE,
}
HYPERPARAMETERS: dict[str, Range] = {
    # Of advantages.
    "discount": ranges.FRACTION,
    "lambda_": ranges.FRACTION,
    "lambda_alpha": ranges.POSITIVE,
    "critic_lambda": ranges.FRACTION,
    "eps": ranges.NOT_NEGATIVE,
    "window": ranges.FROM_ONE,
    "initial": ranges.ANY,
    "prior": ranges.POSITIVE,
    "half_life": ranges.POSITIVE,
    "rho_min": ranges.FRACTION,
    "rho_max": ranges.FRACTION,
    "floor": ranges.NOT_NEGATIVE,
    "step_weight": ranges.ANY,
    "alpha": ranges.NOT_NEGATIVE,
    "min_failures": ranges.NOT_NEGATIVE,
    "min_rate": ranges.FRACTION,
    "decay": ranges.NOT_NEGATIVE,
    "trace.offset": ranges.POSITIVE,
    "outcome_bonus": ranges.ANY,
    "credit_weight": ranges.ANY,
    # Of keep rules, corrections and clips.
    "low": ranges.NOT_NEGATIVE,
    "high": ranges.NOT_NEGATIVE,
    "threshold": ranges.NOT_NEGATIVE,
    "tau": ranges.NOT_NEGATIVE,
    "masked_fraction": ranges.FRACTION,
    "estr.offset": ranges.NOT_NEGATIVE,
    "budget": ranges.NOT_NEGATIVE,
    "max_kl": ranges.NOT_NEGATIVE,
    "mean_kl": ranges.NOT_NEGATIVE,
    "limit": ranges.NOT_NEGATIVE,
    "cap": ranges.POSITIVE,
    "geometric_band.cap": ranges.FROM_ONE,
    "delta": ranges.POSITIVE,
    "fraction": ranges.FRACTION,
    "tau_positive": ranges.POSITIVE,
    "tau_negative": ranges.POSITIVE,
    "omega_mask.eps": ranges.POSITIVE,
    # Of objectives and terms.
    "bellman_bpo.eps": ranges.POSITIVE,
    "eta": ranges.POSITIVE,
    "beta": ranges.POSITIVE,
    "tail_floor": ranges.POSITIVE,
    "coefficient": ranges.ANY,
}
# KLPO's token route without a KL is defined; the sequence route divides by beta.
HYPERPARAMETERS |= {
    f"token_{kernel}.beta": ranges.NOT_NEGATIVE for kernel in ("mc", "topk", "binary", "full")
}
# Pairs whose first may not exceed the second, by function.
ORDERED = {"icepop": ("low", "high"), "spo": ("rho_min", "rho_max")}
# Auxiliary draws per token that a function needs at least.
DRAWS = {"token_mc": 1, "sequence_mc": 2}


def of(part: parts_lib.Part, name: str) -> Range | None:
    """What a hyper-parameter of a part may be; None if it is no number, or of an unknown part."""
    return HYPERPARAMETERS.get(f"{part.chosen.__name__}.{name}", HYPERPARAMETERS.get(name))


def problems(field: str, part: parts_lib.Part) -> Iterator[str]:
    """What is wrong with the hyper-parameters of a part.

    Args:
      field: of the row, "keep_rule" for instance.
    """
    values = part.hyperparameters
    for name, value in values.items():
        allowed = of(part, name)
        if allowed is not None and value not in allowed:
            yield f"algorithm.{field}.{name} is {value}, must be {allowed}"
    low, high = ORDERED.get(part.chosen.__name__, ("", ""))
    if low and values[low] > values[high]:
        yield (
            f"algorithm.{field}.{low} is {values[low]}, must be at most {field}.{high}, "
            f"{values[high]}"
        )
