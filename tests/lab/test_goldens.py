"""Worked numbers, through the command's own main(): value and gradient, in float64."""

import functools
import json
import sys

import jax
import numpy as np
import pytest

from jaxrl_single.run import score as run_score
from tests.lab import recordings
from tests.lab.recordings import simple

simple_one = functools.partial(simple, 1)


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """Runs main() on records: (output lines, summary)."""

    def run(algorithm, records, *settings):
        path = recordings.write(tmp_path / "in.jsonl", records)
        output = tmp_path / "out.jsonl"
        arguments = [f"--algorithm={algorithm}", f"--input={path}", f"--output={output}"]
        arguments += [f"--set={setting}" for setting in settings]
        monkeypatch.setattr(sys, "argv", ["score", *arguments])
        with jax.enable_x64(True):
            assert run_score.main() == 0
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert [line["id"] for line in lines[:-1]] == [record["id"] for record in records]
        for line in lines[:-1]:
            line |= {key: np.array(line[key]) for key in set(line) - {"id"}}
        return lines[:-1], lines[-1]["summary"]

    return run


def close(got, expected, digits=9):
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.6 * 10.0**-digits)


def given_advantages(advantages, **fields):
    """Fields and settings that make the advantages of one trajectory what is asked for."""
    fields |= {"rewards": advantages, "reward": None, "values": [0.0] * len(advantages)}
    return fields, ("advantage=fixed_gae", "advantage.lambda_=0")


MULTI_TURN = {"action_mask": [1, 1, 0, 0, 1], "values": [0.5, 0.6, -3, 7, 0.8], "reward": 1.0}
HALF = ("advantage=fixed_gae", "advantage.lambda_=0.5")


@pytest.mark.parametrize(
    ("fields", "settings", "expected"),
    [
        ({"values": [0.5, 0.6, 0.4, 0.8], "reward": 1.0}, HALF, [0.125, 0.05, 0.5, 0.2]),
        (
            {"values": [0.5, 0.6, 0.4, 0.8], "reward": 1.0},
            ("advantage=fixed_gae", "advantage.lambda_=1"),
            [0.5, 0.4, 0.6, 0.2],
        ),
        (MULTI_TURN, HALF, [0.25, 0.3, 0, 0, 0.2]),
        (MULTI_TURN | {"values": [0.5, 0.6, None, -100, 0.8]}, HALF, [0.25, 0.3, 0, 0, 0.2]),
        (MULTI_TURN, (), [0.37654321, 0.355555556, 0, 0, 0.2]),
        (
            {"action_mask": [1, 0], "values": [0.3, None], "rewards": [0, 1], "reward": 1.0},
            HALF,
            [0.7, 0],
        ),
        ({"values": [0.5, 0.6], "terminated": False, "bootstrap_value": 0.7}, HALF, [0.15, 0.1]),
        ({"values": [0.5, 0.6], "bootstrap_value": 0.7}, HALF, [-0.2, -0.6]),
    ],
)
def test_gae(scored, fields, settings, expected):
    size = len(expected)
    (line,), _ = scored("sao", [simple(1, [0.5] * size, [0.5] * size) | fields], *settings)
    close(line["advantages"], expected)


def test_step_variants(scored):
    record = simple(1, [0.5] * 5, [0.5] * 5) | MULTI_TURN
    alpha = f"advantage.lambda_alpha={2 / 3}"  # lambda 0.5
    for name, first in (("sao_step_average", 0.35), ("sao_step_last", 0.3)):
        (line,), _ = scored(name, [record], alpha)
        close(line["advantages"], [first, first, 0, 0, 0.2])


def test_sao(scored):
    fields, settings = given_advantages([1.0, -0.5, 2.0])
    (line,), summary = scored(
        "sao", [simple_one([0.4, 0.3, 0.5], [0.5, 0.2, 0.05], **fields)], *settings
    )
    close(line["weights"], [0.8, 1.5, 0])
    close(line["coefficients"], [0.266666667, -0.25, 0])
    close(summary["loss"], -0.056649005915, 12)
    ratios = [0.69, 0.71, 1, 5.9, 6.1]
    (line,), _ = scored("sao", [simple_one([0.1 * r for r in ratios], [0.1] * 5, values=[0.0] * 5)])
    close(line["weights"], [0, 0.71, 1, 5.9, 0])


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("dr_grpo", (), [0.5, -0.5, -0.5, 0.5]),
        ("rloo", (), [0.666666667, -0.666666667, -0.666666667, 0.666666667]),
        ("grpo", (), [0.999998, -0.999998, -0.999998, 0.999998]),
        ("reinforce", (), [0.5, -0.5, -0.5, 0.5]),
        ("running_mean", ("advantage.window=2",), [0.5, -1, -0.5, 1.0]),
    ],
)
def test_baselines(scored, name, settings, expected):
    records = [
        simple(i, [0.5], [0.5], reward=float(reward), group_id="g", task_id="g")
        for i, reward in enumerate([1, 0, 0, 1])
    ]
    lines, _ = scored(name, records, *settings)
    close([line["advantages"][0] for line in lines], expected)


def test_running_mean_reads_the_file_in_order(scored):
    records = [
        simple(i, [0.5], [0.5], reward=float(reward), task_id="x")
        for i, reward in enumerate([1, 0, 1, 1])
    ]
    lines, _ = scored("running_mean", records, "advantage.window=2")
    close([line["advantages"][0] for line in lines], [0.5, -1, 0.5, 0.5])


def test_spo_tracker(scored):
    """v = .5, 1.48 / 1.96, 1.295 / 2.715: forgetting at the rates .96 and .875."""
    drifts = [0.03, 0.12, 0.0]
    records = [
        simple(i, [0.5 * np.exp(drift)], [0.5], reward=reward, task_id="x")
        for i, (drift, reward) in enumerate(zip(drifts, [1.0, 0.0, 1.0], strict=True))
    ]
    lines, _ = scored("spo", records, "whitening=")
    expected = [0.5, -1.48 / 1.96, 1 - 1.295 / 2.715]
    close([line["advantages"][0] for line in lines], expected)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("token_mean", 3.33333333333),
        ("sequence_mean", 3.0),
        ("sequence_sum", 10.0),
        ("fixed_length", 1.25),
    ],
)
def test_reductions(scored, reduction, expected):
    records = []
    for i, losses in enumerate([[1.0, 3.0], [2.0, 2.0, 5.0, 7.0]]):
        fields, settings = given_advantages(losses)
        records.append(simple(i, [np.exp(-1)] * len(losses), [0.5] * len(losses)) | fields)
    settings += ("objective=score", f"reduction={reduction}", "fixed_length=8", "keep_rule=none")
    _, summary = scored("sao", records, *settings)
    close(summary["loss"], expected, 11)


def test_flash(scored):
    mu, pi = [[0.5, 0.8], [0.2, 0.9, 0.6], [0.7]], [[0.52, 0.79], [0.5, 0.9, 0.55], [0.72]]
    records = [simple(i, pi[i], mu[i], reward=reward) for i, reward in enumerate([1.0, 0.0, 1.0])]
    lines, summary = scored("flash_reinforce", records)
    close([line["advantages"][0] for line in lines], [0.333333333, -0.666666667, 0.333333333])
    close(lines[0]["coefficients"], [0.057777778, 0.054861111])
    close(lines[1]["coefficients"], [0, 0, 0])
    close(lines[2]["coefficients"], [0.114285714])
    close(summary["loss"], 0.0882577291872, 12)
    assert summary["keep/fraction"] == 0.5
    lines, _ = scored("flash_reinforce", records, "keep_rule.delta=0.07")
    assert all(line["weights"].all() for line in lines)


def logit_gradient(line, logits, sampled, rows):
    """Of the loss by the logits: what the coefficients do to a softmax.

    Args:
      logits: [T, V].
      sampled: [T], the tokens of `coefficients`.
      rows: (name, tokens [T, n]) of the other coefficients.
    """
    p = np.exp(recordings.log_softmax(np.array(logits)))
    given = [(line["coefficients"][:, None], np.array(sampled)[:, None])]
    given += [(line[name], np.array(tokens)) for name, tokens in rows]
    gradient = np.zeros_like(p)
    for coefficients, tokens in given:
        for t, i in np.ndindex(tokens.shape):
            gradient[t] -= coefficients[t, i] * (np.eye(p.shape[1])[tokens[t, i]] - p[t])
    return gradient


def test_klpo_draws(scored):
    logits = np.array([[0.2, -0.1, 0.4], [-0.3, 0.5, 0.1]])
    p = np.exp(recordings.log_softmax(logits))
    q, draws = np.array([[0.3, 0.3, 0.4], [0.2, 0.5, 0.3]]), np.array([[0, 2], [1, 1]])
    record = simple(1, [p[0, 2], p[1, 1]], [q[0, 2], q[1, 1]], reward=1.0) | {
        "aux_policy_logprobs": np.log(np.take_along_axis(p, draws, 1)).tolist(),
        "aux_rollout_logprobs": np.log(np.take_along_axis(q, draws, 1)).tolist(),
    }
    (line,), summary = scored("klpo", [record])
    close(line["coefficients"], [0.996964859, 1.005810333])
    close(summary["loss"], -0.0996964858579, 12)
    gradient = logit_gradient(line, logits, [2, 1], [("aux_coefficients", draws)])
    close(gradient, [[0.498482429, 0, -0.498482429], [0, 0, 0]])
    (line,), summary = scored("klpo_sequence", [record])
    close(line["aux_coefficients"], [[-0.5, -0.5043841035]] * 2)
    close(summary["loss"], -0.1, 12)
    gradient = logit_gradient(line, logits, [2, 1], [("aux_coefficients", draws)])
    close(gradient, [[0.5, 0, -0.5], [0, 0, 0]])


@pytest.mark.parametrize(
    ("kernel", "loss", "gradient"),
    [
        ("full", -0.265384031941, [-0.511157178, 0.306694307, 0.153347153, 0.051115718]),
        ("topk", 0.595081294541, [-0.511157178, 0.306694307, 0.136308581, 0.06815429]),
        ("binary", 0.780614307224, [-0.511157178, 0.255578589, 0.170385726, 0.085192863]),
    ],
)
def test_klpo_kernels(scored, kernel, loss, gradient):
    q, p = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.4, 0.3, 0.2, 0.1])
    record = simple(1, [p[0]], [q[0]], reward=1.0) | {
        "full_policy_logprobs": [np.log(p).tolist()],
        "full_rollout_logprobs": [np.log(q).tolist()],
        "topk_policy_logprobs": [np.log(p[:2]).tolist()],
        "topk_rollout_logprobs": [np.log(q[:2]).tolist()],
    }
    (line,), summary = scored("klpo", [record], f"objective.kernel={kernel}")
    close(summary["loss"], loss, 11)
    rows = {"full": [[0, 1, 2, 3]], "topk": [[0, 1]]}
    rows = [(f"{kernel}_coefficients", rows[kernel])] if kernel in rows else []
    close(logit_gradient(line, np.log(p)[None], [0], rows)[0], gradient)


def test_bellman_bpo(scored):
    mu, pi = [0.5, 0.9, 0.3, 0.97], [0.9, 0.5, 0.32, 0.05]
    expected = {
        1.0: ([0, 0.083333333, 0.256410256, 0.030952381], 0.442649948324),
        -1.0: ([-0.75, 0, -0.256410256, 0], -0.371183023458),
    }
    for reward, (coefficients, loss) in expected.items():
        record = simple(1, pi, mu, reward=reward)
        (line,), summary = scored("bellman_bpo", [record], "advantage=reward")
        close(line["coefficients"], coefficients)
        close(summary["loss"], loss, 12)


def test_bellman_bpo_exact(scored):
    q, advantages = np.array([0.5, 0.3, 0.2]), [1.0, -0.5, -1.75]
    residuals = {
        (0.4, 0.4, 0.2): [0.897876397, -0.662949226, -1.250267154],
        (0.788448938, 0.165544828, 0.046006234): [0, 0, 0],
    }
    for p, expected in residuals.items():
        rows = {  # and a fourth token that is impossible
            "full_policy_logprobs": [[*np.log(p).tolist(), None]],
            "full_rollout_logprobs": [[*np.log(q).tolist(), None]],
        }
        records = [
            simple(i, [p[i]], [q[i]], reward=advantages[i] + 2.0, prompt_value=2.0) | rows
            for i in range(3)
        ]
        lines, _ = scored("bellman_bpo_exact", records, "objective.eta=0.7")
        residual = [line["coefficients"][0] * 3 * 0.7 for line in lines]
        close(residual, expected, 8)
        close(lines[0]["full_coefficients"][0], [*(-residual[0] / (3 * 0.7) * q), 0], 8)


def test_preferences(scored):
    record = simple_one([0.5 * np.exp(-0.2)], [0.5], preference=0.8)
    _, summary = scored("sppo", [record], "objective.eta=2")
    close(summary["loss"], 0.64)
    _, summary = scored("gpo", [record | {"preference": 1.3}], "objective.beta=2")
    close(summary["loss"], 0.7225)


MU, PI = [0.60, 0.02, 0.90, 0.30, 0.005], [0.50, 0.12, 0.97, 0.29, 0.0005]


@pytest.mark.parametrize(
    ("rule", "settings", "up", "down"),
    [
        ("icepop", (), "10110", "10110"),
        ("kpop", ("threshold=0.1",), "10111", "10111"),
        ("kpop", ("threshold=0.05",), "10011", "10011"),
        ("estr", ("tau=1.0",), "10110", "10110"),
        ("estr", ("tau=2",), "11111", "11111"),
        ("dppo_tv", ("low=0.05", "high=0.05"), "10011", "01111"),
        ("dppo_kl", (), "10011", "11111"),
        ("ppo_clip", (), "10111", "11110"),
        ("m2po", (), "10111", "11110"),
        ("trm_k2_max", ("limit=2.7",), "11111", "11111"),
        ("trm_k3_mean", ("limit=0.9",), "00000", "00000"),
        ("sequence_mis", (), "11111", "11111"),
        ("geometric_band", (), "00000", "00000"),
        ("veto", (), "11111", "11111"),
    ],
)
def test_gates(scored, rule, settings, up, down):
    settings = [f"keep_rule.{setting}" for setting in settings]
    for reward, bits in {up: (1.0, up), down: (-1.0, down)}.values():  # once if they are equal
        record = simple(1, PI, MU, reward=reward, entropies=[0.9, 2.5, 0.2, 1.2, 3.0])
        (line,), _ = scored(
            "flash_no_is", [record], "advantage=reward", f"keep_rule={rule}", *settings
        )
        assert "".join(str(int(w)) for w in line["weights"]) == bits


def test_ppo_clip_higher_and_the_soft_gate(scored):
    for reward, clipped, gated in (
        (1.0, [0.7, 1.1, 0], [0.684483273, 1.097254577, 1.410022273]),
        (-1.0, [0, 1.1, 1.5], [0.682918803, 1.096973687, 1.401209735]),
    ):
        record = simple(1, [0.35, 0.55, 0.75], [0.5] * 3, reward=reward)
        (line,), _ = scored("grpo_clip_higher", [record], "advantage=reward")
        close(line["weights"], clipped)
        close(line["coefficients"], reward * np.array(clipped) / 3)
        (line,), _ = scored("sapo", [record], "advantage=reward")
        close(line["weights"], gated)


def test_trace(scored):
    mask = [0, 1, 0, 1, 0, 1, 0, 1]
    records = [
        simple(i, [0.5] * 8, [0.5] * 8, action_mask=mask, reward=reward, group_id=0)
        | {"gold_logprobs": [-2, -1.5, -1.6, -0.4]}
        for i, reward in enumerate([1.0, -1.0])
    ]
    lines, _ = scored("trace", records, "advantage.eps=0")
    expected = [1.287312319, 1.358043969, 1.564755086, 1.0]
    close(lines[0]["advantages"][1::2], expected)


def test_branching(scored):
    records = [
        simple(i, [0.5] * 3, [0.5] * 3, reward=reward) | {"parent_id": 0, "fork_index": 1}
        for i, reward in enumerate([1.0, 0.0, -1.0, 2.0])
    ]
    del records[0]["parent_id"]
    lines, _ = scored("branching_bpo", records)
    siblings = [0.666666667, -0.666666667, -2, 2]
    close([line["advantages"] for line in lines], [[0, a, a] for a in siblings])
