"""A workdir belongs to one config."""

import json

import pytest

from configs import common
from jaxrl_single import workdir
from jaxrl_single.supervise import workdir_config


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def config(**changes):
    """The base config with dotted fields changed."""
    made = common.base()
    for name, value in changes.items():
        made.update_from_flattened_dict({name.replace("__", "."): value})
    return made.to_dict()


def test_the_same_config_is_no_change(paths):
    assert workdir_config.check(paths, config()) == []
    saved = paths.config.read_text()
    assert workdir_config.check(paths, config()) == []
    assert paths.config.read_text() == saved
    assert json.loads(saved)["rl"]["num_steps"] == config()["rl"]["num_steps"]


def test_another_config_is_refused_with_every_difference(paths):
    workdir_config.check(paths, config())
    saved = paths.config.read_text()
    with pytest.raises(workdir_config.WorkdirConflict) as caught:
        workdir_config.check(
            paths, config(seed=1, algorithm__keep_rule__low=0.2, checkpoint__keep=7)
        )
    message = str(caught.value)
    assert "  seed: 0 -> 1\n" in message
    assert "  algorithm.keep_rule.low: 0.3 -> 0.2\n" in message
    assert "  checkpoint.keep" not in message  # it may differ, so it is no reason
    assert str(paths.root) in message
    assert paths.config.read_text() == saved


def test_num_steps_may_only_be_raised(paths):
    before = config()["rl"]["num_steps"]
    workdir_config.check(paths, config())
    more = workdir_config.check(paths, config(rl__num_steps=before + 1))
    assert more == [f"rl.num_steps: {before} -> {before + 1}"]
    with pytest.raises(workdir_config.WorkdirConflict, match=f"{before + 1} -> {before}"):
        workdir_config.check(paths, config())


def test_a_field_that_went_is_told(paths):
    workdir_config.check(paths, config() | {"rl": config()["rl"] | {"gamma": 1.0}})
    with pytest.raises(workdir_config.WorkdirConflict) as caught:
        workdir_config.check(paths, config())
    assert "rl.gamma: 1.0 -> '(no such field)'" in str(caught.value)


def test_what_is_younger_than_the_run_has_its_default(paths):
    old = config()
    del old["rl"]["critic_first"], old["gate"]
    workdir.write_json(paths.config, old)
    with pytest.raises(workdir_config.WorkdirConflict, match=r"rl.critic_first: True -> False"):
        workdir_config.check(paths, config(rl__critic_first=False))
    assert workdir_config.check(paths, config()) == []
    assert workdir.read_json(paths.config)["gate"]["enabled"] is True


def test_a_renamed_field_is_the_same_one(paths, monkeypatch):
    before = workdir_config.deciding(workdir_config.flatten(config(rl__max_staleness=5)))
    workdir_config.check(paths, config(rl__max_staleness=5))
    renamed = common.base()
    del renamed.rl["max_staleness"]
    renamed.rl.age_limit = 2
    monkeypatch.setattr(common, "base", lambda: renamed)
    monkeypatch.setitem(workdir_config.CANONICAL, "rl.age_limit", "rl.max_staleness")
    with pytest.raises(workdir_config.WorkdirConflict, match=r"rl.max_staleness: 5 -> 2"):
        workdir_config.check(paths, config())
    renamed.rl.age_limit = 5
    assert workdir_config.check(paths, config()) == []
    assert workdir.read_json(paths.config)["rl"]["age_limit"] == 5
    assert workdir_config.deciding(workdir_config.flatten(config())) == before


def test_free_fields_are_fields():
    assert set(workdir_config.FREE_FIELDS) <= set(workdir_config.flatten(config()))


def test_a_broken_config_file_is_a_readable_error(paths):
    paths.config.write_text("{")
    with pytest.raises(workdir.BrokenFile, match=r"config\.json is not JSON"):
        workdir_config.check(paths, config())


def test_a_further_sampler_may_have_other_sizes_but_no_other_model(paths):
    workdir_config.check(paths, config(sampler__num_slots=8))
    saved = paths.config.read_text()
    free = dict(sampler__num_slots=64, sampler__port=80, rl__critic_only_steps=0)
    workdir_config.check_sampler(paths, config(**free))
    for name, value in (("model.size", "tiny"), ("seed", 5), ("sampler.swap", "recompute")):
        with pytest.raises(workdir_config.WorkdirConflict, match=rf"{name}: .* -> '?{value}"):
            workdir_config.check_sampler(paths, config(**{name.replace(".", "__"): value}))
    assert paths.config.read_text() == saved
