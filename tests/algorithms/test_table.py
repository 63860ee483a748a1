"""The table: rows are consistent, overrides reach their part, errors list what is valid."""

import dataclasses
import inspect
import math

import pytest

from configs import common
from jaxrl_single.algorithms import allowed, arrays, parts, row, table
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


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("sao", "num_policy_epochs", 0, "must be at least 1"),
        ("sao", "num_minibatches", 0, "must be at least 1"),
        ("sao", "num_critic_steps", -1, "must be at least 0"),
        ("sao", "advantage.lambda_alpha", 0.0, "must be greater than 0"),
        ("sao", "advantage.critic_lambda", 7.0, r"must be in \[0, 1\]"),
        ("sao", "advantage.discount", -2.0, r"must be in \[0, 1\]"),
        ("sao", "keep_rule.low", -0.5, "must be at least 0"),
        ("sao", "keep_rule.high", math.nan, "must be at least 0"),
        ("icepop", "keep_rule.low", 6.0, "must be at most keep_rule.high, 5.0"),
        ("spo", "advantage.rho_min", 0.97, "must be at most advantage.rho_max, 0.96"),
        ("running_mean", "advantage.window", 0, "must be at least 1"),
        ("klpo_sequence", "objective.beta", 0.0, "must be greater than 0"),
        ("klpo", "objective.beta", -0.1, "must be at least 0"),
        ("rebel", "objective.eta", 0.0, "must be greater than 0"),
        ("flash_reinforce", "keep_rule.delta", -1.0, "must be greater than 0"),
        ("estr", "keep_rule.tau", -1.0, "must be at least 0"),
        ("bellman_bpo", "objective.eps", 0.0, "must be greater than 0"),
    ],
)
def test_number_that_means_nothing_is_refused(name, key, value, words):
    with pytest.raises(ValueError, match=rf"algorithm\.{key} is {value}, {words}"):
        table.get(name, {key: value})


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("klpo", {"objective.beta": 0.0}),
        ("estr", {"keep_rule.tau": 0.0}),  # asks for its calibration
        ("trm", {"keep_rule.max_kl": math.inf}),
        ("cispo", {"objective.low": 3.0}),
    ],
)
def test_special_values_are_allowed(name, overrides):
    table.get(name, overrides)


def test_all_that_is_wrong_is_told_at_once():
    wrong = {"keep_rule.low": -1.0, "num_minibatches": 0, "reduction": "mean"}
    with pytest.raises(ValueError, match=r"(?s)reduction is .*num_minibatches is .*rule\.low is"):
        table.get("sao", wrong)


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_number_of_a_part_has_a_range_and_is_in_it(kind, name):
    part = getattr(parts, kind)[name]
    kernels = part.kernels or {"": part.function}
    for kernel in kernels:
        chosen = part.having(kernel=kernel) if kernel else part
        numbers = {key for key in chosen.hyperparameters if key != "kernel"}
        assert {key for key in numbers if allowed.of(chosen, key) is None} == set()
        assert list(allowed.problems("part", chosen)) == []


def test_ranges_are_of_functions_and_hyperparameters_that_exist():
    found = [part for kind in READABLE for part in getattr(parts, kind).values()]
    functions = {
        function.__name__: set(part.hyperparameters)
        for part in found
        for function in (part.kernels.values() or [part.function])
    }
    assert set(allowed.DRAWS) <= set(functions)
    for function, pair in allowed.ORDERED.items():
        assert set(pair) <= functions[function]
    for key in allowed.HYPERPARAMETERS:
        function, _, name = key.rpartition(".")
        assert name in (functions[function] if function else set().union(*functions.values()))


def test_unknown_kernel_lists_the_allowed():
    with pytest.raises(ValueError, match=r"objective.kernel is 'md', allowed are .*'mc'"):
        table.get("klpo", {"objective.kernel": "md"})


def test_a_fixed_length_has_to_be_given():
    with pytest.raises(ValueError, match=r"algorithm\.fixed_length is 0, and reduction is 'fixed"):
        table.get("sao", {"reduction": "fixed_length"})
    with pytest.raises(ValueError, match=r"algorithm\.fixed_length is 0"):
        table.get("flash_constant_length", {"fixed_length": 0})


def test_pairs_of_a_group_need_all_of_a_batch():
    with pytest.raises(ValueError, match=r"algorithm\.num_minibatches is 4, and objective .*group"):
        table.get("rebel", {"num_minibatches": 4})
    table.get("grpo", {"num_minibatches": 4})  # its groups are compared before the batch is dealt


def test_how_many_draws_a_row_needs():
    assert [table.get(name).least_draws for name in ("sao", "klpo", "klpo_sequence")] == [0, 1, 2]
    assert table.get("klpo_sequence", {"objective.kernel": "binary"}).least_draws == 0


def test_critic_without_critic_steps_is_refused():
    with pytest.raises(ValueError, match="num_critic_steps must be at least 1; it is 0"):
        table.get("reinforce", {"advantage": "critic_gae"})


@pytest.mark.parametrize("key", ["reduction", "ratio_reference"])
def test_unknown_choice_lists_the_allowed(key):
    with pytest.raises(ValueError, match=rf"{key} is 'mean', allowed are \["):
        table.get("sao", {key: "mean"})
