"""`python -m jaxrl_single.run.export`: the store as JSON lines."""

import json
import math
import subprocess
import sys

import pytest

from jaxrl_single import store, workdir
from tests import full_disk
from tests.trajectory_maker import make_error, make_trajectory, recorded_rows, routing


@pytest.fixture
def paths(tmp_path):
    paths, run_id = workdir.create(tmp_path / "run")
    box = store.TrajectoryStore(paths.trajectories, run_id)
    box.write(make_trajectory(2, run_id=run_id, success=False, reward=0.0))
    box.write(make_trajectory(1, run_id=run_id, expert_ids=routing(6), **recorded_rows(3)))
    box.write(make_error(5, run_id=run_id))
    box.write(make_trajectory(9, run_id=run_id, split="eval"))
    return paths


def export(paths, *arguments, python=(sys.executable, "-m", "jaxrl_single.run.export")):
    words = [*python, paths.root, *arguments]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.splitlines()]
    return done, lines


def test_tokens(paths):
    done, lines = export(paths)
    assert done.returncode == 0, done.stderr
    assert [line["ticket"] for line in lines] == [2, 1, 5]
    given = make_trajectory(1)
    assert lines[1]["tokens"] == given.tokens.tolist()
    assert lines[1]["action_mask"] == given.action_mask.tolist()
    assert lines[1]["rollout_logprobs"] == [
        None if math.isnan(value) else value for value in given.rollout_logprobs.tolist()
    ]
    rows = recorded_rows(3)
    assert lines[1]["topk_tokens"] == rows["topk_tokens"].tolist()
    assert (
        lines[1]["full_logprobs"]
        == [
            [None, *rows["full_logprobs"].tolist()[0][1:]],  # the impossible token
            *rows["full_logprobs"].tolist()[1:],
        ]
    )
    assert lines[1]["expert_ids"] == routing(6).tolist()
    assert lines[0]["full_logprobs"] is lines[0]["expert_ids"] is None
    assert lines[2]["error"]["kind"] == "env"


def test_messages_of_eval_into_a_file(paths, tmp_path):
    output = tmp_path / "messages.jsonl"
    done, _ = export(paths, "--form=messages", "--split=eval", f"--output={output}")
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert line["id"].endswith("/000000009-0")
    assert line["messages"] == list(make_trajectory(9).messages)
    assert (line["reward"], line["success"], line["error"]) == (1.0, True, None)


def test_a_file_is_whole_or_as_it_was(paths, tmp_path):
    output = tmp_path / "tokens.jsonl"
    output.write_text("old\n")
    full = full_disk.python("jaxrl_single.run.export")
    done, _ = export(paths, f"--output={output}", python=full)
    assert (done.returncode, output.read_text()) == (2, "old\n")
    assert "File too large" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run", "tokens.jsonl"}
    done, _ = export(paths, f"--output={tmp_path / 'none' / 'x'}")
    assert done.returncode == 2
    assert f"there is no such directory: '{tmp_path / 'none'}'" in done.stderr


def test_a_bad_file_is_told_and_left_where_it_is(paths):
    torn = store.files(paths.trajectories, "train")[0]
    torn.write_bytes(torn.read_bytes()[:-5])
    foreign = torn.with_name("00000000000000000001-000000003-0.safetensors")
    foreign.write_bytes(store.encode(make_trajectory(3, run_id="another")))
    done, lines = export(paths)
    assert done.returncode == 1
    assert [line["ticket"] for line in lines] == [1, 5]
    assert f"{torn}: the file is torn" in done.stderr
    assert f"{foreign}: it is of run another" in done.stderr
    assert torn.exists()


def test_no_run_is_a_readable_error(tmp_path):
    done, lines = export(workdir.Workdir(tmp_path))
    assert (done.returncode, lines) == (2, [])
    assert "holds no run" in done.stderr
