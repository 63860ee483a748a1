"""The picture of runs."""

import math
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_single import workdir
from jaxrl_single.metrics import success as success_lib
from jaxrl_single.report import plot


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, successes): a workdir with so many steps of RL and two evaluations."""

    def make(name, successes):
        paths, _ = workdir.create(tmp_path / name)
        workdir.append_jsonl(paths.metrics, {"stage": "warm_start", "step": 9, "time": 0.0})
        for step, success in enumerate(successes, start=1):
            line = {"stage": "rl", "step": step, "time": 0.0, "episode/success": success}
            workdir.append_jsonl(paths.metrics, line | {"staleness/mean": step / 10})
        for stage, step, success in (("warm_start", 0, 0.3), ("final", len(successes), 0.8)):
            found = {"stage": stage, "step": step, "policy_version": step, "n": 100}
            found |= {"success": success, "ci_low": success - 0.1, "ci_high": success + 0.05}
            workdir.append_jsonl(paths.evals, found)
        return paths.root

    return make


def test_lines_are_running_means_and_points_the_evaluations_at_their_steps(make_run):
    roots = [make_run("one", [0.0, 1.0, None, 0.5]), make_run("deeper/two", [1.0, 1.0])]
    figure = plot.draw(roots, metrics=("staleness/mean",), smooth=2)
    success, staleness = figure.axes
    first, second = success.get_legend_handles_labels()[0]
    assert success.get_legend_handles_labels()[1] == ["one", "deeper/two"]
    np.testing.assert_array_equal(first.get_xdata(), [1, 2, 3, 4])
    np.testing.assert_allclose(first.get_ydata(), [0.0, 0.5, 1.0, 0.5])
    assert first.get_color() != second.get_color()
    points = [bars.lines[0].get_xydata().tolist() for bars in success.containers]
    assert points == [[[0, 0.3]], [[4, 0.8]], [[0, 0.3]], [[2, 0.8]]]
    (interval,) = success.containers[1].lines[2]
    np.testing.assert_allclose(interval.get_segments()[0], [[4, 0.7], [4, 0.85]])
    np.testing.assert_allclose(staleness.lines[0].get_ydata(), [0.1, 0.15, 0.25, 0.35])


def test_an_evaluation_without_a_verdict_is_no_point(make_run):
    root = make_run("one", [0.5])
    nothing = success_lib.measure([None])
    found = (nothing.n, nothing.success, nothing.ci_low, nothing.ci_high)
    workdir.record_eval(workdir.Workdir(root), workdir.Eval("rl", 1, 1, *found))
    assert len(plot.draw([root], metrics=()).axes[0].containers) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4], [1, 1.5, 2, 3]),
        ([math.nan, 6, math.nan, math.nan, math.nan], [math.nan, 6, 6, 6, math.nan]),
        ([], []),
    ],
)
def test_the_running_mean_passes_over_what_was_not_measured(values, expected):
    np.testing.assert_allclose(plot.running_mean(values, 3), expected)


def _run(*arguments):
    command = [sys.executable, "-m", "jaxrl_single.run.plot", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_writes_the_file(make_run, tmp_path):
    output = tmp_path / "picture.svg"
    done = _run(make_run("one", [0.5]), "--output", output, "--metrics=")
    assert (done.returncode, done.stdout.strip()) == (0, str(output))
    assert "success" in output.read_text()
    assert _run(make_run("one", [0.5]), "--output", tmp_path / "plain").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"one", "picture.svg", "plain"}


def test_what_cannot_be_drawn_is_said(make_run, tmp_path):
    run, output = make_run("one", [0.5]), tmp_path / "picture.png"
    for arguments, words in (
        ([make_run("new", [])], "holds no step of RL yet"),
        ([run, "--metrics=episode/sucess"], "unknown metrics ['episode/sucess']"),
        ([run, "--smooth=0"], "smooth is 0"),
    ):
        done = _run(*arguments, "--output", output)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert words in done.stderr
    assert not output.exists()
