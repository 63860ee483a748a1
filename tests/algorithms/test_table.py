"""The table: rows are consistent, overrides reach their part, errors list what is valid."""

import dataclasses
import inspect

import pytest

from configs import common
from jaxrl_single.algorithms import arrays, parts, row, table
from jaxrl_single.ops import reduce
from jaxrl_single.stages import build

DERIVED = {"action_mask", "log_ratio", "engine_log_ratio", "num_trajectories"}
ADVANTAGE_NAMES = {field.name for field in dataclasses.fields(arrays.AdvantageArrays)}
POLICY_NAMES = {field.name for field in dataclasses.fields(arrays.PolicyArrays)} | DERIVED
READABLE = {
    "ADVANTAGES": ADVANTAGE_NAMES | {"num_trajectories"},
    "WHITENINGS": ADVANTAGE_NAMES | {"advantages"},
    "KEEP_RULES": POLICY_NAMES,
    "CORRECTIONS": POLICY_NAMES,
    "OBJECTIVES": POLICY_NAMES | {"keep"},
    "TERMS": POLICY_NAMES,
}
PARTS = [(kind, name) for kind in READABLE for name in getattr(parts, kind)]


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_part_reads_what_exists_and_has_a_value_for_every_hyperparameter(kind, name):
    part = getattr(parts, kind)[name]
    functions = part.kernels.values() if part.kernels else [part.function]
    named = set()
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        keyword_only = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        others = {p.name for p in parameters} - keyword_only - ({"state"} if part.init else set())
        assert others <= READABLE[kind]
        assert all(p.default is p.empty for p in parameters)
        named |= keyword_only
    outside = {"kernel"} if part.kernels else set()
    outside |= {"coefficient"} if kind == "TERMS" else set()
    if part.init:
        initial = inspect.signature(part.init).parameters.values()
        named |= {p.name for p in initial if p.kind is p.KEYWORD_ONLY}
    if part.task_weights:
        weighing = inspect.signature(part.task_weights).parameters.values()
        named |= {p.name for p in weighing if p.kind is p.KEYWORD_ONLY}
    assert named | outside == set(part.hyperparameters)


@pytest.mark.parametrize("name", table.TABLE)
def test_row_is_consistent(name):
    algorithm = table.TABLE[name]
    assert algorithm.name == name
    assert algorithm.paper
    assert algorithm.reduction in reduce.REDUCTIONS
    assert algorithm.ratio_reference in row.RATIO_REFERENCES
    assert (algorithm.num_critic_steps > 0) == algorithm.needs_critic
    assert table.get(name) == algorithm


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_parts_that_sum_over_trajectories_couple_tokens(kind, name):
    """A trajectory may lie in two micro-batches, so these must see all of them at once."""
    part = getattr(parts, kind)[name]
    if kind in ("KEEP_RULES", "CORRECTIONS", "OBJECTIVES") and "num_trajectories" in part.reads:
        assert part.couples


def test_published_constants_of_sao():
    published = {
        "advantage.discount": 1.0,
        "advantage.lambda_alpha": 1.5,
        "advantage.critic_lambda": 1.0,
        "keep_rule.low": 0.3,
        "keep_rule.high": 5.0,
        "num_critic_steps": 2,
        "reduction": "token_mean",
    }
    got = row.hyperparameters(table.get("sao"))
    assert {key: got[key] for key in published} == published


def test_base_config_has_the_defaults_of_the_table():
    assert build.algorithm(common.base()) == table.get("sao")


def test_overrides_reach_their_part_and_leave_the_table_alone():
    overrides = {"keep_rule.high": 3, "advantage.discount": 0.9, "num_critic_steps": 4}
    algorithm = table.get("sao", overrides)
    assert algorithm.keep_rule.hyperparameters == {"low": 0.3, "high": 3.0}
    assert algorithm.advantage.hyperparameters["discount"] == 0.9
    assert algorithm.num_critic_steps == 4
    assert row.hyperparameters(algorithm)["keep_rule.high"] == 3.0
    assert row.hyperparameters(table.get("sao"))["keep_rule.high"] == 5.0
    assert table.get("sao") == table.TABLE["sao"]


def test_a_part_is_replaced_before_its_hyperparameters_are_set():
    algorithm = table.get("grpo", {"keep_rule.low": 0.5, "keep_rule": "dis"})
    assert algorithm.keep_rule == parts.KEEP_RULES["dis"].having(low=0.5)


def test_unknown_algorithm_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown algorithm 'poo'.*'grpo'.*'ppo'.*'sao'"):
        table.get("poo")


@pytest.mark.parametrize(
    ("name", "key"), [("sao", "keep_rule.hihg"), ("sao", "high"), ("grpo", "advantage.discount")]
)
def test_unknown_hyperparameter_lists_the_known(name, key):
    with pytest.raises(ValueError, match=rf"{name!r} has no field {key!r}.*reduction"):
        table.get(name, {key: 1.0})


def test_unknown_part_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown keep_rule 'dsi'; known are \[.*'dis'"):
        table.get("sao", {"keep_rule": "dsi"})


@pytest.mark.parametrize(("key", "value"), [("keep_rule.low", "wide"), ("num_minibatches", 1.5)])
def test_value_of_another_type_is_refused(key, value):
    with pytest.raises(ValueError, match=f"{key} is {value!r}, a .*expected a"):
        table.get("sao", {key: value})


def test_critic_without_critic_steps_is_refused():
    with pytest.raises(ValueError, match="num_critic_steps must be at least 1; it is 0"):
        table.get("reinforce", {"advantage": "critic_gae"})


@pytest.mark.parametrize("key", ["reduction", "ratio_reference"])
def test_unknown_choice_lists_the_allowed(key):
    with pytest.raises(ValueError, match=rf"{key} is 'mean', allowed are \["):
        table.get("sao", {key: "mean"})
