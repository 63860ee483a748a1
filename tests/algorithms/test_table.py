"""The table: rows are consistent, overrides reach their part, errors list what is valid."""

import dataclasses
import inspect

import pytest

from configs import common
from jaxrl_single.algorithms import table, update
from jaxrl_single.ops import reduce

ADVANTAGE_FIELDS = {field.name for field in dataclasses.fields(update.AdvantageArrays)}
POLICY_FIELDS = {field.name for field in dataclasses.fields(update.PolicyArrays)}
POLICY_FIELDS |= {"action_mask", "log_ratio", "keep"}


def parts(algorithm):
    """(part, names of arrays that it may read) of a row."""
    yield algorithm.advantage, ADVANTAGE_FIELDS
    yield algorithm.keep_rule, POLICY_FIELDS - {"keep"}
    yield algorithm.objective, POLICY_FIELDS
    if algorithm.correction is not None:
        yield algorithm.correction, POLICY_FIELDS - {"keep"}


@pytest.mark.parametrize("name", table.TABLE)
def test_row_is_consistent(name):
    algorithm = table.TABLE[name]
    assert algorithm.name == name
    assert algorithm.paper
    assert algorithm.reduction in reduce.REDUCTIONS
    assert algorithm.advantage_level in table.ADVANTAGE_LEVELS
    assert algorithm.ratio_reference in table.RATIO_REFERENCES
    assert (algorithm.num_critic_steps > 0) == algorithm.needs_critic
    for part, readable in parts(algorithm):
        parameters = inspect.signature(part.function).parameters.values()
        keyword_only = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert keyword_only == set(part.hyperparameters)
        assert {p.name for p in parameters} - keyword_only <= readable


@pytest.mark.parametrize("name", table.TABLE)
def test_hyperparameter_names_do_not_collide(name):
    algorithm = table.TABLE[name]
    names = [part.prefix + key for part, _ in parts(algorithm) for key in part.hyperparameters]
    assert len(set(names)) == len(names)
    assert set(names) < set(table.hyperparameters(algorithm))


def test_row_reads_values_exactly_if_it_needs_a_critic():
    for algorithm in table.TABLE.values():
        reads = inspect.signature(algorithm.advantage.function).parameters
        assert ("values" in reads) == algorithm.needs_critic


def test_published_constants_of_sao():
    published = {
        "discount": 1.0,
        "lambda_alpha": 1.5,
        "critic_lambda": 1.0,
        "dis_low": 0.3,
        "dis_high": 5.0,
        "num_critic_steps": 2,
        "reduction": "token_mean",
    }
    got = table.hyperparameters(table.get("sao"))
    assert {key: got[key] for key in published} == published


def test_base_config_has_the_defaults_of_the_table():
    config = common.base()
    defaults = table.hyperparameters(table.get(config.algorithm))
    shared = set(defaults) & set(config.rl)
    assert shared >= {"discount", "lambda_alpha", "critic_lambda", "dis_low", "dis_high"}
    assert {key: config.rl[key] for key in shared} == {key: defaults[key] for key in shared}


def test_overrides_reach_their_part_and_leave_the_table_alone():
    algorithm = table.get("sao", {"dis_high": 3.0, "discount": 0.9, "num_critic_steps": 4})
    assert algorithm.keep_rule.hyperparameters == {"low": 0.3, "high": 3.0}
    assert algorithm.advantage.hyperparameters["discount"] == 0.9
    assert algorithm.num_critic_steps == 4
    assert table.hyperparameters(algorithm)["dis_high"] == 3.0
    assert table.hyperparameters(table.get("sao"))["dis_high"] == 5.0
    assert table.get("sao") == table.TABLE["sao"]


def test_unknown_algorithm_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown algorithm 'ppo'.*'grpo', 'reinforce', 'sao'"):
        table.get("ppo")


@pytest.mark.parametrize(
    ("name", "key"), [("sao", "dis_hihg"), ("sao", "high"), ("grpo", "num_critic_steps")]
)
def test_unknown_hyperparameter_lists_the_known(name, key):
    with pytest.raises(ValueError, match=rf"{name!r} has no hyper-parameter {key!r}.*reduction"):
        table.get(name, {key: 1.0})


@pytest.mark.parametrize("key", ["reduction", "ratio_reference"])
def test_unknown_choice_lists_the_allowed(key):
    with pytest.raises(ValueError, match=rf"{key} is 'mean', allowed are \["):
        table.get("sao", {key: "mean"})
