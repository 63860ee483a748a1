"""Every config file: loadable, valid, commented, and strict about what it does not know."""

import re
import subprocess
import sys

import pytest

from configs import common
from jaxrl_single.run import launch
from jaxrl_single.supervise import check_config, workdir_config
from tests.configs.experiments import NAMES, ROOT, load


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arg", ["", "tiny"])
def test_config_is_valid_and_locked(name, arg):
    config = load(name, arg)
    check_config.check(config)
    if not config.model.path:  # a checkpoint may not be installed
        launch._check_algorithm(config)
    assert config.is_locked
    with pytest.raises(AttributeError):
        config.rl.num_stepz = 3


@pytest.mark.parametrize("name", NAMES)
def test_config_is_valid_in_sync_mode(name):
    """What `mode=sync` asks for, and what a single TPU chip falls back to."""
    config = load(name, "tiny")
    config.mode, config.rollout.client = "sync", "in_process"
    check_config.check(config)


def test_unknown_switch_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown config switch 'tinny'.*tiny"):
        load("tiny_sao", "tinny")


def test_every_field_has_a_comment():
    source = (ROOT / "configs" / "common.py").read_text()
    for path in workdir_config.flatten(common.base().to_dict()):
        if path.startswith(("critic.rules", "trainer.mesh")):
            continue  # one comment for the whole
        name = path.rpartition(".")[2]
        lines = re.findall(rf'^.*(?:"{name}":|config\.{name} =|_optimizer).*$', source, re.M)
        assert any("#" in line for line in lines), f"{path} has no comment in configs/common.py"


def _local(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.local", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_typo_on_the_command_line_names_the_nearest_field(tmp_path):
    """Before any device work, and nothing is made."""
    workdir = tmp_path / "run"
    done = _local(
        "--config=configs/tiny_sao.py",
        f"--workdir={workdir}",
        "--config.policy_optimizer.learing_rate=1e-5",
    )
    assert done.returncode != 0
    assert "learing_rate" in done.stderr
    assert "learning_rate" in done.stderr.replace("learing_rate", "")
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env.max_tokens=500", "exceeds batch.row_length"),
        ("env.tasks_file=missing.jsonl", "needed together"),
        ("env.name=calculater", "calculator"),
        ("env.operators=/", "env.operators is '/'"),
    ],
)
def test_value_that_cannot_work_is_one_readable_message(tmp_path, override, words):
    workdir = tmp_path / "run"
    done = _local("--config=configs/tiny_sao.py", f"--workdir={workdir}", f"--config.{override}")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not workdir.exists()


def test_missing_tasks_file_and_bad_line_are_named(tmp_path):
    good = tmp_path / "good.jsonl"
    good.write_text('{"question": "1+2", "answer": "3"}\n')
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "1+3", "answer": "4"}\n{"question": "1+4"}\n')
    for path, words in ((tmp_path / "none.jsonl", "none.jsonl"), (bad, "bad.jsonl, line 2")):
        done = _local(
            "--config=configs/tiny_sao.py",
            f"--workdir={tmp_path / 'run'}",
            f"--config.env.tasks_file={good}",
            f"--config.env.eval_tasks_file={path}",
        )
        assert done.returncode == 2
        assert words in done.stderr.replace(":2", ", line 2")
        assert "Traceback" not in done.stderr


def test_unwritable_workdir_is_one_readable_message(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    done = _local("--config=configs/tiny_sao.py", f"--workdir={tmp_path / 'file' / 'run'}")
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_dry_run_shows_config_groups_and_plan(tmp_path):
    done = _local("--config=configs/tiny_sao.py", f"--workdir={tmp_path / 'run'}", "--dry_run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"train +\(2, 4, 64, 64\) +layers/experts/gate", done.stdout)
    assert re.search(r"frozen +\S+ .*layers/attention/q_proj", done.stdout)
    assert "keep_rule.high = 5.0" in done.stdout
    assert "3. RL in trainer and sampler processes: 160 steps" in done.stdout
    assert not (tmp_path / "run").exists()
