"""What a run says before it begins and when it ends: cases C30, C32, C33 and C34."""

from __future__ import annotations

import fcntl
import importlib
import inspect
import json
import os
import subprocess
import sys

import pytest

from jaxrl_single import workdir
from jaxrl_single.report import summary
from jaxrl_single.run import launch
from jaxrl_single.supervise import devices


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


@pytest.fixture
def dry(capsys, tmp_path, monkeypatch):
    """The exit code and all that --dry_run prints, in this process."""

    def run(config, root):
        monkeypatch.setattr("sys.argv", ["local"])
        parameters = inspect.signature(launch.dry_run).parameters
        # The workdir used not to matter: it was no argument.
        code = launch.dry_run(config, str(root)) if "root" in parameters else launch.dry_run(config)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_c30_chips_that_jax_cannot_use_are_told(dry, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plugged = {"/dev/nvidia[0-9]*": [f"/dev/nvidia{n}" for n in range(4)]}
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: plugged.get(pattern, []))
    code, said = dry(tiny(), tmp_path / "run")
    assert "for the trainer" not in said
    assert "GPU 0,1,2,3 can't be used" in said
    assert 'pip install -e ".[cuda13]"' in said
    assert code == 0
    code, said = dry(tiny(trainer__devices="0,1", sampler__devices="2,3"), tmp_path / "run")
    assert code == 2
    assert said.startswith("error: GPU 0,1,2,3 can't be used")


def test_c32_a_dry_run_refuses_the_workdir_of_another_config(dry, tmp_path):
    paths, _ = workdir.create(tmp_path / "run")
    workdir.write_json(paths.config, tiny(seed=7).to_dict())
    code, said = dry(tiny(), paths.root)
    assert code == 2, said
    assert "seed: 7 -> 0" in said
    assert workdir.read_json(paths.config)["seed"] == 7


def test_c32_a_dry_run_refuses_a_mesh_of_more_devices(dry, tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # of the tests, which pretend to more
    config = tiny(trainer__mesh__fsdp=8, batch__rows_per_micro_batch=8)
    code, said = dry(config, tmp_path / "run")
    assert code == 2, said
    assert "needs 8 devices, and the trainer has 1" in said


def test_c32_a_dry_run_refuses_a_busy_workdir(dry, tmp_path):
    paths, _ = workdir.create(tmp_path / "run")
    with open(paths.lock, "w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, said = dry(tiny(), paths.root)
    assert code == 2, said
    assert "in use by a run, process 4711" in said


def test_c32_a_plan_says_how_many_tasks_there_are(dry, tmp_path):
    for name, first in (("train", 1), ("eval", 500)):
        lines = [
            {"question": f"({n}+1)*2", "answer": str((n + 1) * 2)} for n in range(first, first + 60)
        ]
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = tiny(
        env__tasks_file=str(tmp_path / "train"),
        env__eval_tasks_file=str(tmp_path / "eval"),
        eval__num_tasks=512,
    )
    _, said = dry(config, tmp_path / "run")
    assert "final evaluation: 60 held-out tasks" in said
    assert "eval.num_tasks is 512, and there are 60 held-out tasks" in said
    assert not (tmp_path / "run").exists()
