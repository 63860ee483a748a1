"""What a run is made of: what is compared, what may move, what is accepted."""

import json
import os
import shutil

import pytest

from configs import common
from jaxrl_single import digest, workdir
from jaxrl_single.supervise import provenance, sources, workdir_config


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A workdir with a finished stage, its tasks, and an environment of three modules."""
    paths, _ = workdir.create(tmp_path / "run")
    metadata = paths.stage_checkpoints("warm_start") / "4" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "metadata").write_text("{}")
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "1"}))
    package = tmp_path / "made_env"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "play.py").write_text("import numpy\nimport json\n\nfrom . import judge\n")
    (package / "judge.py").write_text("def reward():\n    import made_helper\n")
    (tmp_path / "made_helper.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return paths


def config(place, **changes):
    made = common.base()
    made.env.name = "made_env.play:factory"
    made.env.tasks_file = str(place.root.parent / "train.jsonl")
    made.env.eval_tasks_file = str(place.root.parent / "held_out.jsonl")
    made.update_from_flattened_dict({key.replace("__", "."): one for key, one in changes.items()})
    return made.to_dict()


def test_a_run_of_an_earlier_version_gets_a_record_and_nothing_changes(place):
    (line,) = provenance.check(place, config(place))
    assert "did not record what runs are made of" in line
    assert provenance.check(place, config(place)) == []
    assert provenance.read(place)["accepted"] == []


def test_the_environment_is_its_modules_and_theirs_and_not_what_is_installed(place):
    found = sources.of_section({"name": "made_env.play:factory", "tools": ("calculator",)})
    assert sorted(found) == ["made_env", "made_env.judge", "made_env.play", "made_helper"]
    assert sources.of_section({"reward": "made_helper:X"}).keys() == {"made_helper"}
    assert sources.of_section({"name": "jaxrl_single.envs.table:get", "dataset": "a:/b"}) == {}


def test_what_differs_is_named_with_both_digests_and_can_be_accepted(place):
    provenance.check(place, config(place))
    helper = place.root.parent / "made_helper.py"
    old = digest.short(digest.of_file(helper))
    helper.write_text("X = 2\n")
    new = digest.short(digest.of_file(helper))
    with pytest.raises(workdir_config.WorkdirConflict) as caught:
        provenance.check(place, config(place), accepted=["tasks"])
    assert f"env: made_helper ({helper}): {old} -> {new}" in str(caught.value)
    assert "--accept_changed=env" in str(caught.value)
    with pytest.raises(workdir_config.WorkdirConflict, match=r"while .* ran"):
        provenance.verify(place, config(place))
    told = provenance.check(place, config(place), accepted=["env"])
    assert told == [f"accepted: env: made_helper ({helper}): {old} -> {new}"]
    (accepted,) = provenance.read(place)["accepted"]
    assert accepted["parts"] == ["env"]
    assert provenance.check(place, config(place)) == []
    provenance.verify(place, config(place))
    assert provenance.read(place)["accepted"] == [accepted]


def test_a_file_may_move_but_tasks_without_ids_are_called_by_its_name(place):
    provenance.check(place, config(place))
    train = place.root.parent / "train.jsonl"
    (place.root.parent / "other").mkdir()
    moved = shutil.move(train, place.root.parent / "other" / "train.jsonl")
    (line,) = provenance.check(place, config(place, env__tasks_file=str(moved)))
    assert line.startswith("config: env.tasks_file: ")
    renamed = shutil.move(moved, place.root.parent / "renamed.jsonl")
    with pytest.raises(workdir_config.WorkdirConflict, match="train -> renamed"):
        provenance.check(place, config(place, env__tasks_file=str(renamed)))


def test_another_config_is_accepted_by_its_name_only(place):
    provenance.check(place, config(place))
    with pytest.raises(workdir_config.WorkdirConflict, match=r"seed: 0 -> 1"):
        provenance.check(place, config(place, seed=1), accepted=["env"])
    provenance.check(place, config(place, seed=1), accepted=["config"])
    assert workdir.read_json(place.config)["seed"] == 1
    assert provenance.read(place)["accepted"][0]["changes"] == ["config: seed: 0 -> 1"]


def test_without_a_checkpoint_nothing_was_made_of_anything(place):
    provenance.check(place, config(place))
    shutil.rmtree(place.checkpoints)
    (place.root.parent / "made_helper.py").write_text("X = 2\n")
    assert provenance.check(place, config(place)) == []


def test_a_large_file_is_read_again_when_its_time_was_set_back(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(digest, "_SETTLED_S", -1.0)
    file = tmp_path / "weights"
    file.write_bytes(b"a" * (1 << 20))
    first, times = digest.of_file(file), (0, file.stat().st_mtime_ns)
    assert json.loads((tmp_path / ".cache/jaxrl_single/digests.json").read_text())
    assert digest.of_file(file) == first
    file.write_bytes(b"b" * (1 << 20))
    os.utime(file, ns=times)
    assert digest.of_file(file) != first


def test_demonstrations_are_not_needed_once_they_were_imitated(place, tmp_path):
    demos = tmp_path / "demos.jsonl"
    demos.write_text("{}\n")
    given = config(place, warm_start__demonstrations_file=str(demos))
    provenance.check(place, given)
    demos.write_text("{} \n")
    with pytest.raises(workdir_config.WorkdirConflict, match=r"demonstrations: warm_start\."):
        provenance.check(place, given)
    demos.unlink()
    assert provenance.check(place, given) == []
    provenance.verify(place, given)
