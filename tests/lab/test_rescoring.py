"""Log-probs of given tokens under a small checkpoint: whole, interrupted, refused, and long."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxrl_single.lab import logprobs, resumable
from jaxrl_single.models import api, hf, sizes
from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.run import logprobs as command

VOCAB_SIZE = 50
LENGTHS = (70, 1, 33, 2, 5, 64)  # of the lines
CHUNK = 48  # tokens in a dispatch, three pages


@pytest.fixture(scope="module", params=["tiny_moe", pytest.param("tiny", marks=pytest.mark.long)])
def model(request, tmp_path_factory):
    """A checkpoint whose distributions are neither uniform nor certain."""
    directory = tmp_path_factory.mktemp("model") / request.param
    write_model(directory, sizes.get(request.param, vocab_size=VOCAB_SIZE))
    return directory


def write_model(directory, shape):
    params = api.build_policy(shape).init(jax.random.key(0))
    spread = jax.tree.map(lambda leaf: 1.5 * np.asarray(leaf), params)
    hf.save(directory, shape, spread, context_length=64, stop_token_ids=())


@pytest.fixture(scope="module")
def lines():
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def write(path, lines):
    text = "".join(json.dumps({"id": n, "token_ids": ids}) + "\n" for n, ids in enumerate(lines))
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def ids(lines, tmp_path_factory):
    return write(tmp_path_factory.mktemp("ids") / "ids.jsonl", lines)


def run_command(*arguments):
    """(exit code, standard output, standard error) of the command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["logprobs", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return command.main(), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def whole(model, ids, tmp_path_factory):
    """(output of the command, its summary, its standard error); nothing interrupted it."""
    output = tmp_path_factory.mktemp("whole") / "out.jsonl"
    code, out, err = run_command(
        f"--model={model}", f"--input={ids}", f"--output={output}", f"--chunk={CHUNK}"
    )
    assert code == 0, err
    return output, json.loads(out.splitlines()[-1]), err


def lines_of(output):
    return [json.loads(line) for line in output.read_text().splitlines()]


def by_training_path(model, tokens):
    """Log-probs of tokens[1:] and entropies there, from whole logits."""
    shape, params = hf.load(model)
    policy = api.build_policy(shape)
    padded = np.zeros((1, max(LENGTHS)), np.int32)
    padded[0, : len(tokens)] = tokens
    positions = np.arange(max(LENGTHS), dtype=np.int32)[None]
    states = jax.jit(policy.hidden)(params, padded, positions, np.ones_like(padded))
    rows = logprob_ops.log_softmax(states[0] @ policy.unembedding(params).T, 1.0)
    rows = np.asarray(rows)[: len(tokens) - 1]
    return rows[np.arange(len(rows)), tokens[1:]], -(np.exp(rows) * rows).sum(axis=-1)


def test_every_line_has_the_numbers_of_the_training_path(whole, model, lines):
    found = lines_of(whole[0])
    assert [line["id"] for line in found] == list(range(len(lines)))
    for line, tokens in zip(found, lines, strict=True):
        assert (line["logprobs"][0], line["entropies"][0]) == (None, None)
        expected = by_training_path(model, tokens)
        np.testing.assert_allclose(line["logprobs"][1:], expected[0], atol=2e-5, rtol=0)
        np.testing.assert_allclose(line["entropies"][1:], expected[1], atol=2e-5, rtol=0)
        exact = np.asarray(line["logprobs"][1:] + line["entropies"][1:])
        np.testing.assert_array_equal(exact.astype(np.float32), exact)


def test_the_command_shows_how_far_it_is_and_ends_with_numbers(whole):
    _, summary, err = whole
    assert list(summary) == ["tokens_per_s", "scored_tokens", "compile_s", "peak_rss_mb"]
    assert summary["scored_tokens"] == sum(LENGTHS)
    assert min(summary.values()) > 0
    assert "note: line 1 is longer than the model's context of 64 tokens (1 lines are)" in err
    assert f"tokens 0/{sum(LENGTHS)}  reading the checkpoint\n" in err
    assert re.search(rf"\ntokens {sum(LENGTHS)}/{sum(LENGTHS)}  \d+ tokens/s\n$", err)


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(whole, model, ids, tmp_path):
    output = tmp_path / "out.jsonl"
    written = whole[0].read_bytes().splitlines(keepends=True)
    output.write_bytes(written[0] + written[1] + written[2][:-30])
    settings = whole[0].with_name("out.jsonl.settings.json").read_bytes()
    output.with_name("out.jsonl.settings.json").write_bytes(settings)
    reports = []
    summary = logprobs.score(
        model, ids, output, chunk=CHUNK, report=lambda *report: reports.append(report)
    )
    assert output.read_bytes() == whole[0].read_bytes()
    total, done = sum(LENGTHS), sum(LENGTHS[:2])
    assert summary["scored_tokens"] == total - done
    assert [report[:2] for report in reports[:2]] == [(done, total)] * 2
    progress = [report[0] for report in reports]
    assert progress == sorted(progress)
    assert progress[-1] == total
    again = logprobs.score(model, ids, output, chunk=CHUNK)
    assert (again["scored_tokens"], again["tokens_per_s"], again["compile_s"]) == (0, 0, 0)
    assert output.read_bytes() == whole[0].read_bytes()


def test_other_chunks_and_neighbours_change_nothing_but_rounding(whole, model, lines, tmp_path):
    """Pages of another size, and of several lines in one dispatch."""
    few = write(tmp_path / "few.jsonl", [lines[5], lines[2]])
    logprobs.score(model, few, tmp_path / "out.jsonl", chunk=9)
    for found, number in zip(lines_of(tmp_path / "out.jsonl"), (5, 2), strict=True):
        expected = lines_of(whole[0])[number]
        for name in ("logprobs", "entropies"):
            ours, theirs = (np.asarray(line[name][1:]) for line in (found, expected))
            np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=0)


def test_bfloat16_is_computed_and_float32_is_written(whole, model, ids, tmp_path):
    logprobs.score(model, ids, tmp_path / "out.jsonl", chunk=CHUNK, dtype="bfloat16")
    ours, theirs = (
        np.concatenate([line["logprobs"][1:] for line in lines_of(output)])
        for output in (tmp_path / "out.jsonl", whole[0])
    )
    assert 1e-4 < np.abs(ours - theirs).max() < 0.5
    in_bfloat16 = np.asarray(jax.numpy.asarray(ours, "bfloat16"), np.float64)
    assert (ours != in_bfloat16).mean() > 0.9


def test_other_settings_are_refused(whole, model, ids, lines, tmp_path):
    output = whole[0]
    before = output.read_bytes()
    with pytest.raises(resumable.SettingsConflict, match=r"dtype was 'float32', now 'bfloat16'"):
        logprobs.score(model, ids, output, dtype="bfloat16")
    other = write(tmp_path / "other.jsonl", lines[:2])
    with pytest.raises(resumable.SettingsConflict, match=r"input was '6 lines, .*now '2 lines, "):
        logprobs.score(model, other, output)
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--input=/none.jsonl", "No such file or directory: '/none.jsonl'"),
        ("--model=/none", "/none: there is no such directory or file"),
        ("--chunk=0", "chunk is 0, it must be at least 1"),
    ],
)
def test_the_command_says_what_is_wrong(model, ids, tmp_path, change, message):
    output = tmp_path / "out.jsonl"
    arguments = [f"--model={model}", f"--input={ids}", f"--output={output}"]
    code, out, err = run_command(*arguments, change)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert not output.exists()


def test_a_bad_line_is_named_and_what_was_scored_stays(whole, model, ids, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(ids.read_text() + '{"token_ids": [1, 50]}\n')
    before = whole[0].read_bytes()
    code, out, err = run_command(f"--model={model}", f"--input={bad}", f"--output={whole[0]}")
    assert (code, out) == (2, "")
    assert f"{bad}, line 7: token_ids[1] is 50, expected a number 0 .. 49" in err
    assert whole[0].read_bytes() == before


@pytest.mark.long
def test_a_line_of_32k_tokens_needs_little_memory(tmp_path):
    """Whole logits would take 8.6 GB, the scores of one head 4.3 GB."""
    shape = sizes.get("tiny", vocab_size=65536)
    write_model(tmp_path / "model", shape)
    tokens = np.random.default_rng(0).integers(0, 65536, 2**15)
    ids = write(tmp_path / "ids.jsonl", [tokens.tolist()])
    output = tmp_path / "out.jsonl"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "XLA"))}
    result = subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.logprobs", f"--model={tmp_path / 'model'}",
         f"--input={ids}", f"--output={output}"],
        env=env | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(result.stdout.splitlines()[-1])["peak_rss_mb"] < 1500
    (line,) = lines_of(output)
    assert len(line["logprobs"]) == len(line["entropies"]) == 2**15
    # The beginning of a line does not know how long it is.
    short = tmp_path / "short.jsonl"
    logprobs.score(tmp_path / "model", write(ids, [tokens[:40].tolist()]), short)
    expected = lines_of(short)[0]["logprobs"][1:]
    np.testing.assert_allclose(line["logprobs"][1:40], expected, atol=2e-5)
