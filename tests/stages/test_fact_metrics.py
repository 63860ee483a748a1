"""Numbers that an environment gives by name: from StepResult.info to metrics.jsonl."""

import json
import math

import numpy as np
import pytest

from jaxrl_single import store, types, workdir
from jaxrl_single.envs import base
from jaxrl_single.metrics import names, writer
from jaxrl_single.rollout import recording
from jaxrl_single.stages import records
from tests import trajectory_maker


def facts(*infos):
    record = recording.Recording()
    for info in infos:
        record._extend([1], True, [0.0], [0.0], [0])
        record._finish_reasons.append("stop")
        record.judge(base.StepResult("1", info=info))
    return record.facts


def test_numbers_become_facts_and_the_last_counts():
    first = {"steps": 1, "success": False, "note": "text", "worst": math.nan, "a-b": 3, "x" * 41: 1}
    last = {"steps": np.int64(2), "found": True, "loss": np.float32(0.5), 5: 5, "big": 10**400}
    assert facts(first, last) == {"steps": 2.0, "found": 1.0, "loss": 0.5}


def test_too_many_names_are_refused():
    with pytest.raises(ValueError, match="info has given 33 numbers by name, allowed are 32"):
        facts({f"n{number}": number for number in range(33)})


def test_means_are_written_over_all_and_by_outcome(tmp_path):
    episodes = [
        trajectory_maker.make_trajectory(number, success=success, facts=told)
        for number, (success, told) in enumerate(
            [(True, {"calls": 1.0}), (True, {"calls": 3.0}), (False, {"calls": 8.0}), (None, {})]
        )
    ]
    found = records.fact_metrics(episodes)
    assert found == {"env/calls": 4.0, "env/calls_success": 2.0, "env/calls_failure": 8.0}
    paths, _ = workdir.create(tmp_path)
    writer.MetricsWriter(paths, "rl").write(1, found)
    assert json.loads(paths.metrics.read_text())["env/calls_failure"] == 8.0


def test_only_such_names_are_metrics():
    assert names.is_known("env/calls_success")
    assert not names.is_known("env/two words")
    assert not names.is_known("environment/calls")


def test_files_keep_them_and_older_ones_have_none():
    one = trajectory_maker.make_trajectory(0, facts={"calls": 1.0})
    assert store.decode(store.encode(one)).facts == {"calls": 1.0}
    assert types.Trajectory.__dataclass_fields__["facts"].default_factory is dict
