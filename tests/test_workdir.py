"""Files of a workdir: whole or not at all, and readable errors."""

import fcntl
import json
import math
import resource

import numpy as np
import pytest

from jaxrl_single import workdir


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def test_a_run_keeps_its_id(tmp_path):
    first, run_id = workdir.create(tmp_path / "run")
    again, same = workdir.create(tmp_path / "run")
    other, different = workdir.create(tmp_path / "other")
    assert run_id == same == workdir.run_id_of(first) == workdir.run_id_of(again)
    assert different != run_id == json.loads(first.run.read_text())["run_id"]
    assert other.trajectories.is_dir()


def test_no_run_and_a_broken_one_are_told_apart(tmp_path):
    paths = workdir.Workdir(tmp_path)
    with pytest.raises(workdir.BrokenFile, match="holds no run"):
        workdir.run_id_of(paths)
    paths.run.write_text("{")
    with pytest.raises(workdir.BrokenFile, match=r"run\.json is not JSON"):
        workdir.run_id_of(paths)
    paths.run.write_text("[]")
    with pytest.raises(workdir.BrokenFile, match="expected an object with a run_id"):
        workdir.run_id_of(paths)


def test_a_place_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(workdir.CannotWrite, match=r"file/run: Not a directory; .*choose another"):
        workdir.create(tmp_path / "file" / "run")


def test_json_takes_numpy_and_has_no_nan(tmp_path):
    value = {
        "nan": math.nan,
        "list": (np.float32(0.5), np.int64(3), np.bool_(True), -math.inf),
        "array": np.float32([1, math.nan]),
        3: None,
    }
    workdir.write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "nan": None,
        "list": [0.5, 3, True, None],
        "array": [1.0, None],
        "3": None,
    }
    assert workdir.read_json(tmp_path / "none.json") is None


def test_status_and_evals_come_back(paths):
    assert workdir.read_status(paths) is None
    status = workdir.Status("rl", 3, 150, policy_version=5, params_sha256="ab")
    workdir.write_status(paths, status)
    found = workdir.read_status(paths)
    assert found.time > 1e9
    assert (found.stage, found.step, found.num_steps) == ("rl", 3, 150)
    assert found.trajectories == workdir.NOBODY

    first = workdir.Eval("warm_start", 0, 1, 512, 0.4, 0.36, 0.44)
    middle = workdir.Eval("rl", 25, 26, 128, 0.6, 0.5, 0.7)
    again = workdir.Eval("rl", 25, 40, 128, 0.7, 0.6, 0.8)  # the run went back and came again
    for evaluation in (first, middle, again):
        workdir.record_eval(paths, evaluation)
    assert workdir.read_evals(paths) == [first, again]


def test_a_record_of_another_kind_is_told(paths):
    workdir.write_json(paths.status, {"stage": "rl"})
    with pytest.raises(workdir.BrokenFile, match=r"status\.json: not a Status record"):
        workdir.read_status(paths)


def test_the_half_line_of_a_killed_writer_goes(tmp_path):
    path = tmp_path / "x.jsonl"
    workdir.append_jsonl(path, {"a": 1})
    with open(path, "a") as file:
        file.write('{"a": 2, "long": "' + "x" * 10000)
    assert workdir.read_jsonl(path) == [{"a": 1}]
    workdir.append_jsonl(path, {"a": 3})
    assert workdir.read_jsonl(path) == [{"a": 1}, {"a": 3}]
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_file_of_half_a_line_becomes_good(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a"')
    workdir.append_jsonl(path, {"a": 1})
    assert path.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("line", ["nonsense", "[1]"])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(workdir.BrokenFile, match=r"x\.jsonl, line 2"):
        workdir.read_jsonl(path)


def test_filter_keeps_what_it_should(tmp_path):
    path = tmp_path / "x.jsonl"
    assert workdir.filter_jsonl(path, lambda record: False) == 0
    for number in range(5):
        workdir.append_jsonl(path, {"n": number})
    assert workdir.filter_jsonl(path, lambda record: record["n"] % 2 == 0) == 2
    assert workdir.read_jsonl(path) == [{"n": 0}, {"n": 2}, {"n": 4}]


def test_a_full_disk_changes_nothing(tmp_path):
    whole, lines = tmp_path / "x.json", tmp_path / "x.jsonl"
    workdir.write_json(whole, {"a": 1})
    workdir.append_jsonl(lines, {"a": 1})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))  # a larger file fails to be written
    try:
        with pytest.raises(workdir.CannotWrite, match=r"x\.json: File too large"):
            workdir.write_json(whole, ["x" * 200])
        with pytest.raises(workdir.CannotWrite, match=r"x\.jsonl: "):
            workdir.append_jsonl(lines, {"a": "x" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert workdir.read_json(whole) == {"a": 1}
    assert lines.read_text() == '{"a": 1}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.jsonl"]


def test_is_running_asks_the_lock(paths):
    assert not workdir.is_running(paths)
    with open(paths.lock, "w") as file:
        assert not workdir.is_running(paths)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert workdir.is_running(paths)
    assert not workdir.is_running(paths)
