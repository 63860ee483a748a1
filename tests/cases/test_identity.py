"""Results belong to what made them: one workdir whose environment, tasks and checkpoints change."""

import importlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import jax
import pytest

from jaxrl_single import workdir
from jaxrl_single.lab import generate, logprobs
from jaxrl_single.models import api, hf, sizes
from jaxrl_single.report import inspect, summary
from jaxrl_single.run import launch
from tests.e2e import runs

CHAT = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"
ENVIRONMENT = """
import dataclasses
import os
import pathlib
import signal

from jaxrl_single.envs import base
from jaxrl_single.envs import table

import case_verdict

STOP = pathlib.Path(__file__).with_name("stop")  # holds how many episodes are left until Ctrl-C


class Paid:
    name = "paid"
    gives_success = True

    async def reset(self, task, seed):
        if STOP.exists():
            left = int(STOP.read_text())
            STOP.write_text(str(left - 1))
            if left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return task.question

    async def step(self, action):
        paid = case_verdict.REWARD
        return base.StepResult("", paid, True, info={"success": paid > 0})

    async def close(self):
        pass


def factory():
    return dataclasses.replace(table.get("calculator"), make_env=lambda section: Paid)
"""
RUN = {
    "mode": "sync",
    "env.name": "case_environment:factory",
    "rl.num_steps": 2,
    "eval.every_steps": 1,
    "eval.num_tasks": 4,
    "eval.periodic_num_tasks": 4,
    "warm_start.num_demonstrations": 8,
    "warm_start.num_steps": 1,
    "gate.enabled": False,
}


class Place:
    """A workdir, and the files that its run is made of."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.run = self.root / "run"
        self.files = {name: self.root / f"{name}.jsonl" for name in ("train", "held_out")}

    @property
    def paths(self):
        return workdir.Workdir(self.run)

    def write_tasks(self, name, first):
        lines = [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(first, first + 8)]
        self.files[name].write_text("".join(json.dumps(line) + "\n" for line in lines))

    def write_environment(self, reward):
        (self.root / "case_environment.py").write_text(ENVIRONMENT)
        (self.root / "case_verdict.py").write_text(f"REWARD = {reward}\n")

    def start(self, **changes):
        """Exit code of a run in this process, as if it were a new one."""
        for name in ("case_environment", "case_verdict"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        config = importlib.import_module("configs.tiny_reinforce").get_config("tiny")
        files = {
            "env.tasks_file": self.files["train"],
            "env.eval_tasks_file": self.files["held_out"],
        }
        config.update_from_flattened_dict({name: str(path) for name, path in files.items()})
        config.update_from_flattened_dict({**RUN, **changes})
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return launch.run(config, str(self.run))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run in which every episode succeeds."""
    place = Place(tmp_path_factory.mktemp("identity"))
    place.write_tasks("train", 0)
    place.write_tasks("held_out", 100)
    place.write_environment(1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place.root))
        patch.setattr(sys, "dont_write_bytecode", True)
        assert place.start() == 0
        yield place


@pytest.fixture
def copied(finished, tmp_path, monkeypatch):
    """The same with files of its own."""
    shutil.copytree(finished.root, tmp_path / "copy")
    place = Place(tmp_path / "copy")
    text = (place.run / "config.json").read_text()
    (place.run / "config.json").write_text(text.replace(str(finished.root), str(place.root)))
    monkeypatch.syspath_prepend(str(place.root))
    return place


def digests(text):
    return re.findall(r"\b[0-9a-f]{12} -> [0-9a-f]{12}\b", text)


@pytest.mark.slow
def test_c01_results_of_a_start_whose_checkpoints_are_gone_are_gone(copied, capsys):
    shutil.rmtree(copied.paths.checkpoints)
    copied.write_environment(0.0)
    assert copied.start() == 0
    printed = capsys.readouterr().out
    shown = printed[printed.index("Held-out success (95 % interval)") :]
    assert re.search(r"after warm start +0\.000", shown)
    assert re.search(r"after 2 steps of RL +0\.000", shown)
    found = [(one.stage, one.step, one.success) for one in workdir.read_evals(copied.paths)]
    assert found == [("warm_start", 0, 0.0), ("rl", 1, 0.0), ("final", 2, 0.0)]
    steps = [(one["stage"], one["step"]) for one in workdir.read_jsonl(copied.paths.metrics)]
    assert len(steps) == len(set(steps))


@pytest.mark.slow
def test_c01_evaluations_of_a_policy_without_its_checkpoint_are_made_again(copied):
    """Warm start kept, all after it deleted: each evaluation once, in the order of the steps."""
    for stage in ("rl", "value_pretraining"):
        shutil.rmtree(copied.paths.checkpoints / stage)
    assert copied.start(**{"rl.num_steps": 3}) == 0
    found = [(one.stage, one.step) for one in workdir.read_evals(copied.paths)]
    assert found == [("warm_start", 0), ("rl", 1), ("rl", 2), ("final", 3)]


@pytest.mark.slow
def test_c02_other_tasks_under_the_same_names_are_refused(copied, capsys):
    copied.write_tasks("train", 20)
    copied.write_tasks("held_out", 200)
    assert copied.start() == 2
    told = capsys.readouterr().err
    assert str(copied.files["train"]) in told
    assert str(copied.files["held_out"]) in told
    assert len(digests(told)) == 2


@pytest.mark.slow
def test_c02_another_environment_under_the_same_name_is_refused(copied, capsys):
    copied.write_environment(0.5)
    assert copied.start() == 2
    told = capsys.readouterr().err
    assert str(copied.root / "case_verdict.py") in told
    assert len(digests(told)) == 1


@pytest.mark.slow
def test_c02_a_moved_file_of_the_same_content_is_the_same_one(copied, capsys):
    (copied.root / "moved").mkdir()
    place = copied.files["train"].rename(copied.root / "moved" / "train.jsonl")
    assert copied.start(**{"env.tasks_file": str(place)}) == 0, capsys.readouterr().err


def test_c04_the_summary_and_inspect_count_the_same(tmp_path):
    """The sampler plays on while the last evaluation is made, after the last checkpoint."""
    paths, _ = workdir.create(tmp_path / "run")
    counts = {"written": 1600, "trained": 1550, "dropped_stale": 20, "errors": 0, "pending": 30}
    metadata = paths.stage_checkpoints("rl") / "40" / "metadata"
    metadata.mkdir(parents=True)
    saved = {"counts": counts, "policy_version": 40, "params_sha256": "ab"}
    (metadata / "metadata").write_text(json.dumps(saved))
    later = counts | {"written": 1664, "pending": 94}
    workdir.write_status(paths, workdir.Status("done", 40, 40, 40, "", later, "ab"))
    workdir.append_jsonl(paths.metrics, {"stage": "rl", "step": 40, "time/step_s": 1.0})
    found = inspect.inspect(paths)["trajectories"]
    words = re.search(
        r"(\d+) written, (\d+) trained, (\d+) dropped.*? (\d+) errors", summary.text(paths)
    )
    names = ("written", "trained", "dropped_stale", "errors")
    assert [int(one) for one in words.groups()] == [found[name] for name in names]


def save_checkpoint(directory, seed):
    shape = sizes.get("tiny", vocab_size=296)
    params = api.build_policy(shape).init(jax.random.key(seed))
    shutil.rmtree(directory, ignore_errors=True)
    hf.save(directory, shape, params, context_length=64, stop_token_ids=(20,), tokenizer=CHAT)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint") / "model"
    save_checkpoint(directory, 0)
    return directory


def cut(output):
    """As if the command had been interrupted after its first line."""
    output.write_text(output.read_text().splitlines(keepends=True)[0])


@pytest.mark.slow
def test_c03_answers_of_two_models_never_stand_in_one_file(checkpoint, tmp_path):
    model, output, lines = tmp_path / "model", tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    shutil.copytree(checkpoint, model)
    lines.write_text('{"prompt_token_ids": [5, 6, 7]}\n{"prompt_token_ids": [8, 9]}\n')

    def answer(where):
        generate.generate(where, lines, output, generate.Sampling(max_tokens=3), num_slots=2)

    answer(model)
    cut(output)
    before = output.read_text()
    save_checkpoint(model, 1)
    with pytest.raises(ValueError, match=r"model was 'sha256 \w{12}', now 'sha256 \w{12}'"):
        answer(model)
    assert output.read_text() == before
    answer(checkpoint)  # the old weights, elsewhere
    assert len(output.read_text().splitlines()) == 2


def test_c03_scores_of_two_models_never_stand_in_one_file(checkpoint, tmp_path):
    model, output, lines = tmp_path / "model", tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    shutil.copytree(checkpoint, model)
    lines.write_text('{"token_ids": [5, 6, 7]}\n{"token_ids": [8, 9]}\n')
    logprobs.score(model, lines, output)
    cut(output)
    save_checkpoint(model, 1)
    with pytest.raises(ValueError, match=r"model was 'sha256 \w{12}', now 'sha256 \w{12}'"):
        logprobs.score(model, lines, output)


@pytest.mark.slow
def test_c31_ctrl_c_says_where_it_stopped_and_the_workdir_alone_continues(copied, capsys):
    shutil.rmtree(copied.run)
    (copied.root / "stop").write_text("22")  # 8 demonstrations, 4 tasks, 8 of the first step
    assert copied.start() == 130
    printed = capsys.readouterr().out
    assert "stopped at step 1 of 2, the same command continues" in printed
    assert "Held-out success" not in printed, "the summary is that of a finished run"
    (copied.root / "stop").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.local", f"--workdir={copied.run}"],
        cwd=runs.ROOT,
        env=os.environ | {"PYTHONPATH": f"{runs.ROOT}{os.pathsep}{copied.root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert runs.rl_steps(copied.run) == [1, 2]


def test_c31_a_workdir_without_a_config_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.local", f"--workdir={tmp_path / 'run'}"],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*/run has no recorded config.*--config=FILE.*\n", done.stderr)
