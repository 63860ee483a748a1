"""Asynchronous runs with real processes, killed in every way that happens."""

import os
import pathlib
import signal
import time

import pytest

from tests.e2e import runs

pytestmark = pytest.mark.slow

STEPS = ("rl.num_steps=12", "rl.critic_only_steps=2", "checkpoint.every_steps=3")


def check_sound(workdir, num_steps=12):
    """What every finished run must show, however often it was interrupted."""
    facts = runs.inspect(workdir)
    assert facts["step"] == num_steps
    counts = facts["trajectories"]
    assert counts["written"] == sum(
        counts[name] for name in ("trained", "dropped_stale", "errors", "pending")
    )
    # 8 a step, none twice: the lineage of the checkpoints has trained exactly this many for RL.
    assert counts["trained"] == 8 * num_steps + 16
    assert runs.rl_steps(workdir) == list(range(1, num_steps + 1))
    stages = [evaluation["stage"] for evaluation in facts["evals"]]
    assert (stages[0], stages[-1]) == ("warm_start", "final")
    return facts


def both_children(workdir):
    pids = runs.pids(workdir)
    return pids if {"trainer", "sampler"} <= pids.keys() else None


def test_asynchronous_run_spans_versions_in_two_processes(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *STEPS)
    pids = runs.wait_until(lambda: both_children(workdir), "both children", process=process)
    assert len({process.pid, *pids.values()}) == 3
    runs.finish(process, workdir)
    check_sound(workdir)
    assert not any(runs.alive(pid) for pid in pids.values())
    assert (workdir / "tokenizer" / "tokenizer.json").exists()
    # The same command again finds everything done and trains nothing.
    before = runs.inspect(workdir)
    runs.run(workdir, *STEPS)
    assert runs.inspect(workdir) == before
    # More steps continue.
    runs.run(workdir, "rl.num_steps=14", *STEPS[1:])
    check_sound(workdir, num_steps=14)


@pytest.mark.long
def test_what_only_some_algorithms_record_goes_from_sampler_to_trainer(tmp_path):
    """KLPO's draws; the periodic evaluations between the steps record none."""
    workdir = tmp_path / "run"
    few = ("rl.num_steps=4", "sampler.num_aux_draws=3")
    runs.run(workdir, *few, config="configs/tiny_klpo.py:tiny")
    lines = runs.lines(workdir / "metrics.jsonl")
    found = [line for line in lines if line["stage"] == "rl"]
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert all(abs(line["policy/kernel_kl"]) > 0 for line in found if line["staleness/max"] > 0)
    stages = [evaluation["stage"] for evaluation in runs.inspect(workdir)["evals"]]
    assert stages == ["warm_start", "rl", "final"]


def test_killed_sampler_is_restarted(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *STEPS)
    runs.wait_until(lambda: 3 in runs.rl_steps(workdir), "step 3", process=process)
    first = runs.pids(workdir)["sampler"]
    runs.kill(first)
    runs.wait_until(
        lambda: runs.pids(workdir).get("sampler", first) != first, "a new sampler", process=process
    )
    assert "restart 1 of" in runs.finish(process, workdir)
    check_sound(workdir)


@pytest.mark.long
def test_sampler_that_dies_again_and_again_ends_the_run(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *STEPS, "env.name=tests.e2e.bad_envs:kills_its_process")
    text = runs.finish(process, workdir, expect=1)
    assert text.count("restart ") >= 3
    assert "RuntimeError: this environment ends its process" in text.splitlines()[-1]
    assert not any(runs.alive(pid) for pid in runs.pids(workdir).values())


def test_killed_trainer_ends_the_run_and_the_same_command_continues(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *STEPS)
    runs.wait_until(lambda: 7 in runs.rl_steps(workdir), "step 7", process=process)
    runs.kill(runs.pids(workdir)["trainer"])
    text = runs.finish(process, workdir, expect=1)
    assert "SIGKILL" in text
    assert runs.inspect(workdir)["step"] in (6, 9)
    runs.run(workdir, *STEPS)
    check_sound(workdir)


def test_killed_parent_leaves_no_orphan_and_the_same_command_continues(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *STEPS)
    runs.wait_until(lambda: 4 in runs.rl_steps(workdir), "step 4", process=process)
    pids = runs.pids(workdir)
    runs.kill(process.pid)
    process.wait()
    runs.wait_until(
        lambda: not any(runs.alive(pid) for pid in pids.values()), "no orphan", timeout_s=10
    )
    runs.run(workdir, *STEPS)
    check_sound(workdir)


def test_sigterm_saves_and_says_so(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, "rl.num_steps=60", *STEPS[1:])
    runs.wait_until(lambda: 4 in runs.rl_steps(workdir), "step 4", process=process)
    os.kill(process.pid, signal.SIGTERM)
    began = time.monotonic()
    text = runs.finish(process, workdir, expect=143)
    assert time.monotonic() - began < 30
    saved = runs.inspect(workdir)["step"]
    assert f"stopped at step {saved} of 60, the same command continues" in text
    assert saved == max(runs.rl_steps(workdir)) < 60, "nothing that was logged is lost"
    runs.run(workdir, "rl.num_steps=60", *STEPS[1:])
    assert runs.inspect(workdir)["step"] == 60


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("raises_in_step", "ZeroDivisionError: this tool is broken"),
        pytest.param(
            "raises_in_reward", "RewardError: this judge is broken", marks=pytest.mark.long
        ),
        pytest.param("raises_in_reset", "FileNotFoundError", marks=pytest.mark.long),
    ],
)
def test_exception_in_an_environment_is_shown_and_ends_the_run(tmp_path, name, cause):
    """Neither a hang nor a reward of 0."""
    workdir = tmp_path / "run"
    # The untrained policy often runs into a limit before it meets the environment.
    fault = (f"env.name=tests.e2e.bad_envs:{name}", "rollout.max_consecutive_errors=3")
    text = runs.run(workdir, *STEPS, *fault, expect=1)
    assert cause in text
    assert "bad_envs.py" in text, "the traceback of the environment is shown"


@pytest.mark.long
def test_diverged_loss_keeps_the_last_checkpoint(tmp_path):
    workdir = tmp_path / "run"
    # Some reward is needed: at returns of 0 the critic stays at 0, and nothing has a gradient.
    fault = ("env.name=tests.e2e.bad_envs:rewards_anything", "policy_optimizer.learning_rate=1e30")
    text = runs.run(workdir, *STEPS[:2], *fault, "checkpoint.every_steps=1", expect=1)
    assert "not finite at RL step" in text
    saved = runs.inspect(workdir)["step"]
    assert 2 <= saved < 12
    assert pathlib.Path(workdir, "checkpoints", "rl", str(saved)).is_dir()
