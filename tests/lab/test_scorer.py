"""The scorer against an independent numpy version, and what must not change its output."""

import functools
import json

import jax
import numpy as np
import pytest

from jaxrl_single.algorithms import table
from jaxrl_single.lab import records as records_lib
from jaxrl_single.lab import score as score_lib
from jaxrl_single.lab import streams
from tests.lab import independent, independent_losses, recordings


def parsed(records):
    return records_lib.parse_lines(enumerate(map(json.dumps, records), start=1))


def scored(name, records, *settings):
    """Output lines of the scorer in float64, and the summary."""
    algorithm = table.get(name, score_lib.parse_settings(settings))
    with jax.enable_x64(True):
        found = parsed(records)
        lines = [
            json.loads(line) for line in score_lib.lines(score_lib.score(algorithm, found), found)
        ]
    return lines[:-1], lines[-1]["summary"]


@functools.cache
def recorded_scores(name):
    return scored(name.split()[0], recordings.make_records(), *name.split()[1:])


def test_every_row_of_the_table_is_compared():
    assert {name.split()[0] for name in independent_losses.NAMES} == set(table.TABLE)


@pytest.mark.parametrize("name", independent_losses.NAMES)
def test_coefficients_equal_the_independent_version(name):
    records = recordings.make_records()
    lines, _ = recorded_scores(name)
    expected = independent_losses.coefficients(name, records)
    masks = independent.Batch(records).masks
    for key in set(lines[0]) - {"id", "advantages", "weights"} - set(expected):
        assert not any(np.any(line[key]) for line in lines), key  # read by a keep rule only
    for key, arrays in expected.items():
        for mask, line, array in zip(masks, lines, arrays, strict=True):
            got = np.array(line[key])
            np.testing.assert_allclose(got[mask], array, rtol=1e-9, atol=1e-12)
            assert not got[~mask].any()


def changed(line, other, keys=("advantages", "weights", "coefficients")):
    """The fields in which two output lines differ by more than rounding."""
    length = min(len(line["advantages"]), len(other["advantages"]))
    same = {
        key: np.allclose(line[key][:length], other[key][:length], rtol=1e-12, atol=1e-14)
        for key in keys
    }
    return {key for key, equal in same.items() if not equal}


def assert_close(summary, other):
    assert set(summary) == set(other)
    for name, value in other.items():
        assert summary[name] == (value and pytest.approx(value, rel=1e-9, abs=1e-12)), name


# One row for each way in which trajectories are coupled, but for what is kept per task.
@pytest.mark.parametrize("name", ["ppo", "klpo_sequence", "rebel", "branching_bpo", "gigrpo"])
def test_the_order_of_the_lines_does_not_matter(name):
    lines, summary = recorded_scores(name)
    order = [3, 0, 5, 2, 1, 4]
    records = recordings.make_records()
    permuted, other = scored(name, [records[i] for i in order])
    assert [line["id"] for line in permuted] == [f"t{i}" for i in order]
    assert not set().union(*(changed(permuted[k], lines[i]) for k, i in enumerate(order)))
    assert_close(other, summary)


@pytest.mark.parametrize("name", ["running_mean", "spo"])
def test_what_is_kept_per_task_follows_the_file(name):
    lines, _ = recorded_scores(name)
    permuted, _ = scored(name, recordings.make_records()[::-1])
    assert any(map(changed, permuted, lines[::-1]))


def test_padding_changes_nothing():
    lines, summary = recorded_scores("sao")
    records = recordings.make_records()
    records[1] = recordings.padded(records[1], 6)
    longer, other = scored("sao", records)
    assert not set().union(*map(changed, longer, lines))
    assert len(longer[1]["coefficients"]) == 6
    assert_close(other, summary)


def test_the_summary():
    _, summary = recorded_scores("sao")
    records = recordings.make_records()
    ratios = [np.exp(lr) for lr in independent.Batch(records).lr]
    kept = np.concatenate([(r > 0.7) & (r < 6.0) for r in ratios])
    assert summary["keep/fraction"] == pytest.approx(kept.mean())
    assert summary["policy/ratio_mean"] == pytest.approx(np.concatenate(ratios).mean())
    assert summary["policy/sampler_entropy"] > 0
    records = [{k: v for k, v in record.items() if "entropies" not in k} for record in records]
    _, summary = scored("sao", records)
    assert not [name for name in summary if "entropy" in name]


def test_arrays_are_float32_without_x64_and_float64_with():
    records = parsed(recordings.make_records())
    for x64, dtype in ((False, np.float32), (True, np.float64)):
        with jax.enable_x64(x64):
            arrays = streams.advantage_arrays(table.get("sao"), records)
            assert arrays.values.dtype == arrays.log_ratio.dtype == dtype
            assert (arrays.values.shape, arrays.reward.shape) == ((32,), (8,))
            assert (arrays.trajectory_index.dtype, arrays.trajectory_index[-1]) == (np.int32, -1)
            np.testing.assert_array_equal(arrays.valid, [True] * 6 + [False] * 2)


def test_proximal_logprobs_default_to_the_policys():
    records = recordings.make_records()
    for record in records:
        record["proximal_logprobs"] = record["policy_logprobs"]
    given, _ = scored("icepop", records)
    for record in records:
        del record["proximal_logprobs"]
    default, _ = scored("icepop", records)
    assert given == default


def test_settings():
    settings = ["a=1", "b=0.5", "c=1e-3", "d=true", "e=False", "f=mc", "g=inf", "h=", "i=x=y"]
    assert score_lib.parse_settings(settings) == {
        "a": 1,
        "b": 0.5,
        "c": 1e-3,
        "d": True,
        "e": False,
        "f": "mc",
        "g": float("inf"),
        "h": "",
        "i": "x=y",
    }
    for wrong in ("keep_rule.low", "=3"):
        with pytest.raises(ValueError, match="KEY=VALUE"):
            score_lib.parse_settings([wrong])
    with pytest.raises(ValueError, match=r"no field 'keep_rule.lo'.*keep_rule.low"):
        table.get("sao", score_lib.parse_settings(["keep_rule.lo=0.5"]))
