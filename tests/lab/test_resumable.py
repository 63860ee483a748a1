"""Outputs that a rerun goes on with: one writer, one set of settings."""

import json

import pytest

from jaxrl_single import workdir
from jaxrl_single.lab import resumable


def test_a_second_writer_is_refused_as_long_as_the_first_one_writes(tmp_path):
    output, settings = tmp_path / "out.jsonl", {"n": 3}
    with resumable.claimed(output, settings):
        for _ in range(2):  # before the first line, and after it
            with pytest.raises(resumable.InUse, match=r"writing .*out\.jsonl; wait"):
                resumable.claimed(output, settings).__enter__()
            output.write_text("{}\n")
        with resumable.claimed(tmp_path / "other.jsonl", {"n": 4}):
            pass
    with resumable.claimed(output, settings):
        pass
    with pytest.raises(resumable.SettingsConflict, match="n was 3, now 4"):
        resumable.claimed(output, {"n": 4}).__enter__()


def test_settings_without_an_output_are_those_of_the_next_run(tmp_path):
    """Whoever wrote them was killed before the first line, in the midst of them perhaps."""
    output = tmp_path / "out.jsonl"
    beside = tmp_path / "out.jsonl.settings.json"
    beside.write_text('{"n": 3, "temper')
    with resumable.claimed(output, {"n": 4}):
        assert json.loads(beside.read_text()) == {"n": 4}
    assert resumable.earlier_setting(output, "n", 5) == 5
    output.write_text("{}\n")
    assert resumable.earlier_setting(output, "n", 5) == 4


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(workdir.CannotWrite, match=str(tmp_path / "none")):
        resumable.claimed(tmp_path / "none" / "out.jsonl", {}).__enter__()
