"""The commands `run.score` and `run.import_records` as processes, from a dump to coefficients."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests import full_disk
from tests.lab import recordings


def command(name, *arguments, disk_is_full=False):
    module = f"jaxrl_single.run.{name}"
    python = full_disk.python(module) if disk_is_full else [sys.executable, "-m", module]
    return subprocess.run([*python, *map(str, arguments)], capture_output=True, text=True)


def test_a_dump_is_converted_and_scored_in_float64(tmp_path):
    dump, fields = tmp_path / "dump.jsonl", tmp_path / "fields.jsonl"
    records, output = tmp_path / "records.jsonl", tmp_path / "scores.jsonl"
    sample = {"completion_ids": [5, 6, 7], "env_reward": 1.0}
    dump.write_text(json.dumps(sample | {"logprobs": np.log([0.5, 0.2, 0.05]).tolist()}) + "\n")
    own = {"id": 0, "policy_logprobs": np.log([0.4, 0.3, 0.5]).tolist()}
    own |= {"rewards": [1.0, -0.5, 2.0], "reward": 2.5, "values": [0, 0, 0]}
    fields.write_text(json.dumps(own) + "\n")
    done = command(
        "import_records",
        "--from=trl",
        f"--input={dump}",
        f"--output={records}",
        f"--fields={fields}",
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = command(
        "score", "--algorithm=sao", f"--input={records}", f"--output={output}", "--x64",
        "--set=advantage=fixed_gae", "--set=advantage.lambda_=0",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    line, last = map(json.loads, output.read_text().splitlines())
    assert line["id"] == 0
    np.testing.assert_allclose(line["advantages"], [1, -0.5, 2], atol=1e-14)
    np.testing.assert_allclose(line["coefficients"], [0.8 / 3, -0.25, 0], atol=1e-14)
    assert abs(last["summary"]["loss"] + 0.056649005915) < 1e-12


def test_a_bad_line_is_told_and_nothing_is_written(tmp_path):
    data = recordings.make_records()
    del data[3]["values"]
    path = recordings.write(tmp_path / "in.jsonl", data)
    output = tmp_path / "out.jsonl"
    done = command("score", "--algorithm=sao", f"--input={path}", f"--output={output}")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {path}, line 4: values is missing; algorithm 'sao', advantage (critic_gae), reads "
        "it: the critic's value of the prefix before each action token\n"
    )
    assert not output.exists()


@pytest.mark.parametrize("name", ["score", "score all", "import_records"])
def test_an_output_is_whole_or_as_it_was(name, tmp_path):
    dump, output = tmp_path / "dump.jsonl", tmp_path / "out.jsonl"
    sample = {"completion_ids": [5] * 40, "env_reward": 1.0, "logprobs": [-1.0] * 40}
    dump.write_text(json.dumps(sample) + "\n")
    records = recordings.write(tmp_path / "in.jsonl", recordings.make_records())
    output.write_text("old\n")
    before = sorted(tmp_path.iterdir())
    name, *arguments = {
        "score": ("score", "--algorithm=sao", f"--input={records}"),
        "score all": ("score", "--algorithm=all", f"--input={records}"),
        "import_records": ("import_records", "--from=trl", f"--input={dump}"),
    }[name]
    done = command(name, *arguments, f"--output={output}", disk_is_full=True)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert output.read_text() == "old\n"
    assert sorted(tmp_path.iterdir()) == before
