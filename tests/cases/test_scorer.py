"""Faults of the offline scorer that users met, through its command."""

import json
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_single.run import score as run_score

# Not ru_maxrss, which begins with what the parent had when it started the process.
PEAK = (
    "import sys; from jaxrl_single.run import score; code = score.main(); "
    "lines = open('/proc/self/status').read().splitlines(); "
    "print(next(int(x.split()[1]) for x in lines if x.startswith('VmHWM')) // 1024); sys.exit(code)"
)


def record(number, reward=0.0, *, length=4, **fields):
    return {
        "id": number,
        "task_id": 0,
        "reward": reward,
        "action_mask": [1] * length,
        "policy_logprobs": [-0.5] * length,
        "rollout_logprobs": [-0.5] * length,
    } | fields


@pytest.fixture
def score(tmp_path, monkeypatch, capsys):
    """Exit code, output lines and what was printed."""

    def run(algorithm, records):
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in records))
        flags = [f"--algorithm={algorithm}", f"--input={source}", f"--output={output}"]
        monkeypatch.setattr(sys, "argv", ["score", *flags])
        code = run_score.main()
        lines = [json.loads(x) for x in output.read_text().splitlines()] if code == 0 else []
        return code, lines, capsys.readouterr().err

    return run


@pytest.mark.parametrize("reward", [1e30, -1e39])
def test_c12_a_reward_that_float32_cannot_square_is_named(score, reward):
    """All coefficients were 0, without a word: the standard deviation was infinite."""
    code, _, said = score("grpo", [record(0), record(1, 1.0), record(2, reward)])
    assert code == 2
    assert "line 3: reward is" in said
    assert "from -1e+15 to 1e+15" in said


def test_a_byte_order_mark_is_no_part_of_a_file(score, tmp_path, monkeypatch):
    code, lines, _ = score("reinforce", [record(0), record(1, 0.5)])
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "in.jsonl").read_bytes())
    flags = ["--algorithm=reinforce", f"--input={marked}", f"--output={tmp_path / 'marked_out'}"]
    monkeypatch.setattr(sys, "argv", ["score", *flags])
    assert (code, run_score.main()) == (0, 0)
    assert [json.loads(x) for x in (tmp_path / "marked_out").read_text().splitlines()] == lines


def test_c12_nan_is_no_reward_of_0(score):
    rewards = [None, None, 0.5, float("nan")]
    code, _, said = score("reinforce", [record(0), record(1, 0.5, rewards=rewards)])
    assert code == 2
    assert "line 2: rewards[3] is NaN" in said


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce", "dr_grpo", "branching_bpo"])
def test_c25_copies_of_a_shared_prefix_are_trained_once(score, algorithm):
    """The first two tokens of the children are the parent's; what they hold plays no part."""
    forks = [record(k, float(k), parent_id=0, fork_index=2) for k in (1, 2)]
    code, lines, _ = score(algorithm, [record(0, 0.25), *forks])
    assert code == 0
    first, *children, summary = lines
    assert all(line["coefficients"][:2] == [0, 0] for line in children)
    assert all(line["coefficients"][2] != 0 for line in children if line["advantages"][2])
    own = [dict(fork, action_mask=[0, 0, 1, 1]) for fork in forks]
    _, expected, _ = score(algorithm, [record(0, 0.25), *own])
    assert [first, *children] == expected[:-1]  # denominators count copies once, too
    assert summary == expected[-1]


@pytest.mark.slow
def test_c27_memory_grows_with_the_tokens(tmp_path):
    """512 trajectories of 500 tokens took 1.6 GB: a matrix of tokens and trajectories."""
    mask = [at // 50 % 2 for at in range(500)]
    with (tmp_path / "in.jsonl").open("w") as lines:
        for number in range(512):
            forked = {"parent_id": number - number % 8, "fork_index": 250} if number % 8 else {}
            made = record(number, number % 3, length=500, action_mask=mask, **forked)
            lines.write(json.dumps(made) + "\n")
    flags = [f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
    command = [sys.executable, "-c", PEAK, "--algorithm=branching_bpo", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 800


@pytest.mark.parametrize("algorithm", ["reinforce", "grpo_clip_higher", "running_mean"])
def test_c28_a_trajectory_without_actions_moves_no_baseline(score, algorithm):
    """Its reward of 100 made an advantage of 0.5 one of -32.7."""
    empty = record(2, 100.0, action_mask=[0, 0, 0, 0])
    code, lines, said = score(algorithm, [record(0), record(1, 1.0), empty])
    if code == 0:
        advantages = np.concatenate([line["advantages"] for line in lines[:-1]])
        assert np.abs(advantages).max() <= 1.0
    assert code == 2
    assert "line 3: action_mask marks no token" in said
