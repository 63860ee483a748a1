"""What a run is refused for before anything of it is made, and what jax finds when it comes."""

import dataclasses
import importlib
import re
import subprocess
import sys

import pytest

from configs import common
from jaxrl_single import workdir
from jaxrl_single.envs import table as env_table
from jaxrl_single.run import launch
from jaxrl_single.supervise import devices

WATCHES_THE_IMPORT = """
import os, sys
from configs import common
from jaxrl_single.run import launch
from jaxrl_single.supervise import devices

class Watch:
    def find_spec(self, name, *_):
        if name == "jax":
            print("jax finds", os.environ.get("CUDA_VISIBLE_DEVICES"), "and the cache",
                  "JAX_COMPILATION_CACHE_DIR" in os.environ)

sys.meta_path.insert(0, Watch())
devices.detect = lambda: ("gpu", ("0", "1", "2"))
config = common.base()
config.mode, config.trainer.devices = "sync", "1,2"
sys.exit(launch.dry_run(config))
"""


def test_a_single_process_has_its_devices_and_cache_before_it_has_jax(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", WATCHES_THE_IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "jax finds 1,2 and the cache True" in done.stdout


def test_a_mesh_that_does_not_fit_leaves_no_workdir(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(devices, "detect", lambda: ("gpu", ("0", "1", "2", "3")))
    config = common.base()
    config.trainer.mesh.tensor = 4
    assert launch.run(config, str(tmp_path / "run")) == 2
    assert "needs 4 devices, and the trainer has 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("tiny_sao", {"model.size": "tinny_moe"}, "model.size is 'tinny_moe', allowed are"),
        ("tiny_sao", {"algorithm.num_minibatches": 0}, "algorithm.num_minibatches is 0, must be"),
        ("tiny_sao", {"algorithm.reduction": "fixed_length"}, "algorithm.fixed_length is 0"),
        ("tiny_sao", {"algorithm.keep_rule.low": -0.5}, "algorithm.keep_rule.low is -0.5, must"),
        ("tiny_sao", {"critic.rules": (("value_head/.*", "train"),)}, "critic.rules: no rule"),
        ("tiny_sao", {"critic.rules": ((".*", "frozen"),)}, "critic.rules: .*nothing would train"),
        ("tiny_klpo", {"sampler.num_aux_draws": 0}, "num_aux_draws is 0, .*at least 1"),
        ("tiny_klpo_sequence", {"sampler.num_aux_draws": 1}, "num_aux_draws is 1, .*at least 2"),
        (
            "tiny_klpo",
            {"algorithm.objective.kernel": "topk", "sampler.top_k": 10_000},
            "sampler.top_k is 10000, and the vocabulary has",
        ),
        (
            "tiny_sao",
            {"warm_start.workdir": "/nowhere"},
            "warm_start.workdir is '/nowhere', where no",
        ),
    ],
)
def test_what_would_fail_late_leaves_no_workdir(tmp_path, capsys, name, changes, words):
    config = importlib.import_module(f"configs.{name}").get_config("tiny")
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    assert launch.run(config, str(tmp_path / "run")) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def without_script(monkeypatch):
    spec = dataclasses.replace(env_table.get("calculator"), make_script=None)
    monkeypatch.setitem(env_table.ENVS, "calculator", spec)
    return importlib.import_module("configs.tiny_sao").get_config("tiny")


def test_without_script_and_file_rl_starts_from_the_given_model(monkeypatch, capsys):
    config = without_script(monkeypatch)
    assert launch.dry_run(config) == 0
    told = capsys.readouterr().out
    assert "1. warm start: none, RL starts from a model of random weights: env.name" in told
    assert "  warm start: none, RL starts" in told


@pytest.mark.parametrize("source", ["", "/gone"])
def test_a_warm_start_that_is_done_needs_nothing_any_more(tmp_path, monkeypatch, source):
    config = without_script(monkeypatch)
    config.warm_start.workdir = source
    checkpoints = workdir.Workdir(tmp_path / "run").stage_checkpoints("warm_start")
    metadata = checkpoints / "4" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "metadata").write_text("{}")
    launch._check_warm_start(config, str(tmp_path / "run"))


def test_critics_that_nobody_trains_need_no_rules(capsys):
    config = importlib.import_module("configs.tiny_grpo").get_config("tiny")
    with config.unlocked():
        config.critic.rules = (("no such parameter", "train"),)
    assert launch.dry_run(config) == 0
