"""What a run says before it begins and when it ends: cases C30, C32, C33 and C34."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

from jaxrl_single import workdir
from jaxrl_single.report import summary


def tiny(**changes):
    config = importlib.import_module("configs.tiny_sao").get_config("tiny")
    with config.unlocked():
        config.update_from_flattened_dict({n.replace("__", "."): v for n, v in changes.items()})
    return config


def command(module, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"jaxrl_single.run.{module}", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


def one_sentence(done, *words):
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_c33_the_summary_says_that_a_run_became_worse(tmp_path):
    paths, _ = workdir.create(tmp_path / "run")
    for stage, step, good in (("warm_start", 0, 34), ("final", 40, 0)):
        record = {"stage": stage, "step": step, "policy_version": step, "n": 100}
        record |= {"success": good / 100, "ci_low": 0.0, "ci_high": 0.5}
        record["outcomes"] = {f"task-{i}": i < good for i in range(100)}
        workdir.append_jsonl(paths.evals, record)
    for step in range(1, 41):
        row = {"stage": "rl", "step": step, "time": float(step), "time/step_s": 1.0}
        row["episode/success"] = row["episode/reward"] = 0.3 if step < 12 else 0.0
        row |= {"policy/log_ratio_q05": -9.0 if 10 < step < 16 else 0.0}
        row |= {"policy/log_ratio_q95": 0.1, "policy/entropy": 0.3 if step < 12 else 0.001}
        workdir.append_jsonl(paths.metrics, row)
    text = summary.text(paths)
    assert "worse than before RL" in text.replace("WORSE", "worse")
    assert "-0.340 (-0.4" in text
    assert "policy_optimizer.learning_rate" in text
    for name in ("ratios_wide", "entropy_gone", "no_success"):
        assert name in text


@pytest.mark.slow
def test_c33_a_run_keeps_its_best_version(tmp_path):
    root = tmp_path / "run"
    overrides = ("mode=sync", "policy_optimizer.learning_rate=0.02", "env.tool_latency_s=0.0")
    done = command(
        "local",
        "--config=configs/tiny_sao.py:tiny",
        f"--workdir={root}",
        *(f"--config.{override}" for override in overrides),
    )
    assert done.returncode == 0, done.stderr
    evaluations = [json.loads(line) for line in (root / "evals.jsonl").read_text().splitlines()]
    assert [(e["stage"], e["step"]) for e in evaluations] == [
        ("warm_start", 0),
        ("rl", 2),
        ("final", 4),
    ]
    converted = command("convert", f"--from={root}", f"--to={tmp_path / 'out'}", "--version=best")
    assert converted.returncode == 0, converted.stderr
    assert "the best that was evaluated" in converted.stdout
    assert "Verdict: " in done.stdout
    assert f"is kept in {root}/best" in done.stdout
    assert not any("alarm" in line.lower() for line in done.stdout.splitlines())


def test_c34_a_wrong_path_or_key_is_one_sentence(tmp_path):
    root = tmp_path / "run"
    done = command("local", "--config=configs/tiny_soa.py", f"--workdir={root}")
    one_sentence(done, "configs/tiny_soa.py", "no such file", "configs/tiny_sao.py")
    config = "--config=configs/tiny_sao.py"
    done = command("local", config, f"--workdir={root}", "--config.rl.num_stepz=3")
    one_sentence(done, "--config.rl.num_stepz", "did you mean num_steps?")
    assert not root.exists()


def test_c34_a_process_of_no_run_is_one_sentence_and_makes_nothing(tmp_path):
    done = command("trainer", f"--workdir={tmp_path / 'gone'}")
    one_sentence(done, str(tmp_path / "gone"), "run.json is missing")
    assert not (tmp_path / "gone").exists()
