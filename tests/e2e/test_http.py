"""Runs whose rollout speaks HTTP to samplers: of the run, started apart, and killed on the way."""

import math
import pathlib
import signal
import socket
import subprocess

import openai
import pytest

from tests.e2e import runs
from tests.e2e.test_local import STEPS, check_sound

pytestmark = pytest.mark.slow

HTTP = (*STEPS, "rollout.client=http")
TWO = (*HTTP, "sampler.num_processes=2")


def processes(workdir, *names):
    """Their pids as soon as all run."""
    pids = runs.pids(workdir)
    return pids if set(names) <= pids.keys() else None


def failed_episodes(workdir):
    lines = runs.lines(pathlib.Path(workdir, "metrics.jsonl"))
    return sum(line.get("errors/total", 0) for line in lines)


def newest_rl_line(workdir):
    lines = runs.lines(pathlib.Path(workdir, "metrics.jsonl"))
    return [line for line in lines if line["stage"] == "rl"][-1]


def sampled_tokens(workdir, name):
    return (runs.read_json(pathlib.Path(workdir, "logs", f"{name}.json")) or {}).get("tokens", 0)


def start_lone_sampler(workdir, *overrides):
    with open(f"{workdir}.sampler.out", "ab") as output:
        return subprocess.Popen(
            runs.command(workdir, *overrides, module="sampler"),
            cwd=runs.ROOT,
            env=runs.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def lone_output(workdir):
    return pathlib.Path(f"{workdir}.sampler.out").read_text()


def stop_lone_sampler(process, workdir):
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, lone_output(workdir)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_completion(port):
    """Somebody else may ask the samplers of a run, and for the likeliest tokens too."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    model = client.models.list().data[0].id
    answer = client.completions.create(model=model, prompt=[5, 6], max_tokens=4, logprobs=2)
    found = answer.choices[0].logprobs
    assert 1 <= len(found.tokens) <= 4
    for token, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == pytest.approx(logprob, abs=1e-6)
        likeliest = sorted(top.values(), reverse=True)[:2]
        assert logprob - 1e-6 <= likeliest[0] <= 0
        assert sum(map(math.exp, likeliest)) <= 1 + 1e-5


def test_two_samplers_and_a_rollout_in_processes_of_their_own(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *TWO)
    names = ("trainer", "sampler-0", "sampler-1", "rollout")
    pids = runs.wait_until(lambda: processes(workdir, *names), "all processes", process=process)
    assert pids.keys() == set(names)
    runs.finish(process, workdir)
    check_sound(workdir)
    assert failed_episodes(workdir) == 0
    assert all(sampled_tokens(workdir, name) > 0 for name in ("sampler-0", "sampler-1"))
    last = newest_rl_line(workdir)
    assert last["sampler/swaps"] >= 2
    assert last["sampler/restarts"] == 0
    assert not any(runs.alive(pid) for pid in pids.values())
    assert list((workdir / "samplers").iterdir()) == []
    # Which process does what may change on a rerun.
    runs.run(workdir, "rl.num_steps=14", *STEPS[1:])
    check_sound(workdir, num_steps=14)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sampler-0", "rollout"])
def test_a_killed_process_is_restarted_and_no_episode_fails(tmp_path, name):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *TWO)
    runs.wait_until(lambda: 3 in runs.rl_steps(workdir), "step 3", process=process)
    first = runs.pids(workdir)[name]
    runs.kill(first)
    runs.wait_until(
        lambda: runs.pids(workdir).get(name, first) != first, "a new one", process=process
    )
    assert f"{name} was killed by signal 9" in runs.finish(process, workdir)
    check_sound(workdir)
    assert failed_episodes(workdir) == 0


@pytest.mark.long
def test_the_only_sampler_is_killed_and_its_episodes_wait_for_the_next(tmp_path):
    workdir = tmp_path / "run"
    process = runs.start(workdir, *HTTP)
    runs.wait_until(lambda: 3 in runs.rl_steps(workdir), "step 3", process=process)
    runs.kill(runs.pids(workdir)["sampler"])
    runs.finish(process, workdir)
    check_sound(workdir)
    assert failed_episodes(workdir) == 0
    assert newest_rl_line(workdir)["sampler/restarts"] == 1


@pytest.mark.long
def test_a_sampler_that_was_started_alone_is_found_and_used(tmp_path):
    workdir = tmp_path / "run"
    lone = start_lone_sampler(workdir, "sampler.num_slots=16")  # before there is a run
    try:
        runs.run(workdir, *HTTP, "sampler.num_processes=0")
        check_sound(workdir)
        stop_lone_sampler(lone, workdir)
    finally:
        lone.kill()
    assert f"waiting for a run in {workdir}" in lone_output(workdir)
    assert list((workdir / "samplers").iterdir()) == []


@pytest.mark.long
def test_the_samplers_of_given_urls_are_used(tmp_path):
    workdir, port = tmp_path / "run", free_port()
    urls = f"rollout.sampler_urls=('http://127.0.0.1:{port}',)"
    process = runs.start(workdir, *HTTP, urls)
    runs.wait_until(lambda: (workdir / "config.json").exists(), "the run", process=process)
    lone = start_lone_sampler(workdir, f"sampler.port={port}", "sampler.top_logprobs=2")
    try:
        runs.wait_until(lambda: 1 in runs.rl_steps(workdir), "step 1", process=process)
        assert processes(workdir, "sampler") is None
        check_completion(port)
        runs.finish(process, workdir)
        check_sound(workdir)
        stop_lone_sampler(lone, workdir)
    finally:
        lone.kill()


@pytest.mark.long
def test_a_sampler_alone_says_what_is_wrong(tmp_path):
    workdir = tmp_path / "run"
    short = ("rl.num_steps=1", "rl.critic_only_steps=0", "eval.num_tasks=1")
    runs.run(workdir, *STEPS, *short)
    other = start_lone_sampler(workdir, "model.size=tiny")
    assert other.wait(120) == 2
    assert "model.size: 'tiny_moe' -> 'tiny'" in lone_output(workdir)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        clash = start_lone_sampler(workdir, f"sampler.port={port}")
        assert clash.wait(120) == 1
    last = lone_output(workdir).splitlines()[-1]
    assert last.startswith("error: sampler-")
    assert f"can't listen on 127.0.0.1:{port}" in last
