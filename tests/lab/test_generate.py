"""Answers of a small checkpoint to a file of prompts, whole, interrupted and refused."""

import contextlib
import datetime
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from jaxrl_single import workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.lab import generate, resumable
from jaxrl_single.models import api, hf, sizes
from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.run import generate as command

CHAT = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"
STOP = tuple(range(20, 26))
PROMPTS = [
    {"prompt": "the cat is on the mat"},
    {"prompt_token_ids": [5, 6, 7], "id": "named", "max_tokens": 3},
    {"messages": [{"role": "user", "content": "hello"}], "id": 7},
    {"prompt": "the cat is on the floor"},
]
SAMPLING = generate.Sampling(max_tokens=12, n=3, seed=5, temperature=0.7, top_k=60)
NUM_SLOTS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint whose distributions are neither uniform nor certain."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    shape = sizes.get("tiny", vocab_size=296)
    leaves = jax.eval_shape(api.build_policy(shape).init, jax.random.key(0))
    rng = np.random.default_rng(0)

    def weights(path, leaf):
        if path[-1].key == "scale":
            return np.ones(leaf.shape, np.float32)
        width = leaf.shape[-1] if path[-1].key == "table" else leaf.shape[-2]
        return (2 * width**-0.5 * rng.standard_normal(leaf.shape)).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(weights, leaves)
    params["unembedding"]["table"][list(STOP)] *= 1.3  # likely now and then
    hf.save(directory, shape, params, context_length=64, stop_token_ids=STOP, tokenizer=CHAT)
    return directory


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def run(model, prompts, output, sampling=SAMPLING, **options):
    return generate.generate(model, prompts, output, sampling, num_slots=NUM_SLOTS, **options)


def run_command(*arguments):
    """(exit code, standard output, standard error) of the command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["generate", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return command.main(), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def whole(model, prompts, tmp_path_factory):
    """(output of the command, its summary, its standard error); nothing interrupted it."""
    output = tmp_path_factory.mktemp("whole") / "out.jsonl"
    code, out, err = run_command(
        f"--model={model}", f"--input={prompts}", f"--output={output}", "--max_tokens=12", "--n=3",
        "--seed=5", "--temperature=0.7", "--top_k=60", f"--num_slots={NUM_SLOTS}",
    )  # fmt: skip
    assert code == 0, err
    return output, json.loads(out.splitlines()[-1]), err


def lines_of(output):
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_every_prompt_has_its_answers_in_order(whole):
    lines = lines_of(whole[0])
    assert [(line["index"], line["sample"]) for line in lines] == [
        (index, sample) for index in range(4) for sample in range(3)
    ]
    assert [line.get("id") for line in lines[::3]] == [None, "named", 7, None]
    text = text_lib.HfText.load(CHAT)
    for line in lines:
        assert line["text"] == text.decode(line["token_ids"])
        assert len(line["logprobs"]) == len(line["token_ids"])
    assert lines[0]["prompt_token_ids"] == text.encode(PROMPTS[0]["prompt"])
    assert lines[6]["prompt_token_ids"] == text.render(PROMPTS[2]["messages"])
    long = [tuple(line["token_ids"]) for line in lines if len(line["token_ids"]) > 2]
    assert len(set(long)) == len(long) > 5, "each answer has draws of its own"


def test_the_command_shows_how_far_it_is_and_ends_with_numbers(whole):
    output, summary, err = whole
    assert list(summary) == ["tokens_per_s", "generated_tokens", "compile_s", "peak_rss_mb"]
    assert summary["generated_tokens"] == sum(len(line["token_ids"]) for line in lines_of(output))
    assert min(summary.values()) > 0
    assert err.startswith("answers 0/12  reading the checkpoint\n")
    assert re.search(r"\nanswers 12/12  \d+ tokens/s\n$", err)


def test_answers_end_with_a_stop_token_or_their_budget(whole):
    lines = lines_of(whole[0])
    for line in lines:
        budget = 3 if line["index"] == 1 else 12
        before, last = line["token_ids"][:-1], line["token_ids"][-1]
        assert not set(before) & set(STOP)
        if line["finish_reason"] == "stop":
            assert line["stop_reason"] == last
            assert last in STOP
        else:
            assert (line["finish_reason"], line["stop_reason"]) == ("length", None)
            assert len(line["token_ids"]) == budget
    assert {line["finish_reason"] for line in lines} == {"stop", "length"}


def test_logprobs_are_those_of_the_checkpoint(whole, model):
    """Rescored by the training path, renormalised over the likeliest 60."""
    shape, params = hf.load(model)
    policy = api.build_policy(shape)
    hidden = jax.jit(policy.hidden)
    for line in lines_of(whole[0])[::4]:
        start = len(line["prompt_token_ids"])
        tokens = np.zeros((1, 64), np.int32)
        known = line["prompt_token_ids"] + line["token_ids"]
        tokens[0, : len(known)] = known
        states = hidden(params, tokens, np.arange(64)[None], np.ones((1, 64), np.int32))
        logits = states[0] @ policy.unembedding(params).T
        rows = np.asarray(logprob_ops.log_softmax(logits, SAMPLING.temperature))
        rows = rows[start - 1 : len(known) - 1]
        kept = np.log(np.exp(np.sort(rows)[:, -SAMPLING.top_k :]).sum(-1))
        expected = rows[np.arange(len(rows)), line["token_ids"]] - kept
        np.testing.assert_allclose(line["logprobs"], expected, atol=2e-5 / 0.7, rtol=0)


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(whole, model, prompts, tmp_path):
    output = tmp_path / "out.jsonl"
    lines = whole[0].read_bytes().splitlines(keepends=True)
    # As they had finished: not in order, the last line not to its end.
    output.write_bytes(lines[7] + lines[0] + lines[3] + lines[4][:-30])
    settings = whole[0].with_name("out.jsonl.settings.json").read_bytes()
    output.with_name("out.jsonl.settings.json").write_bytes(settings)
    reports = []
    summary = run(model, prompts, output, report=lambda *report: reports.append(report))
    assert output.read_bytes() == whole[0].read_bytes()
    done = sum(len(json.loads(lines[number])["token_ids"]) for number in (7, 0, 3))
    assert summary["generated_tokens"] == whole[1]["generated_tokens"] - done
    assert [report[:2] for report in reports] == [(3, 12)] * 2 + [(n, 12) for n in range(4, 13)]
    again = run(model, prompts, output)
    assert output.read_bytes() == whole[0].read_bytes()
    assert (again["generated_tokens"], again["tokens_per_s"], again["compile_s"]) == (0, 0, 0)


def test_a_run_goes_on_with_the_day_of_its_beginning(model, tmp_path, monkeypatch):
    class Then(datetime.date):
        @classmethod
        def today(cls):
            return cls(2026, 1, 2)

    dated, output = tmp_path / "model", tmp_path / "out.jsonl"
    shutil.copytree(model, dated)
    template = "{{ strftime_now('%Y-%m-%d') }}\n{{ messages[0].content }}"
    (dated / "chat_template.jinja").write_text(template)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "the cat"}]}) + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(
            generate, "datetime", types.SimpleNamespace(date=Then, datetime=datetime.datetime)
        )
        run(dated, prompts, output, generate.Sampling(max_tokens=3, n=2))
    whole = output.read_bytes()
    output.write_bytes(whole[: whole.index(b"\n") + 1])
    run(dated, prompts, output, generate.Sampling(max_tokens=3, n=2))
    assert output.read_bytes() == whole
    shown = text_lib.HfText.load(CHAT).decode(lines_of(output)[0]["prompt_token_ids"])
    assert shown.startswith("2026-01-02")


def test_ignore_eos_and_greedy(model, prompts, tmp_path):
    sampling = generate.Sampling(max_tokens=12, n=2, temperature=0.0, ignore_eos=True)
    run(model, prompts, tmp_path / "out.jsonl", sampling)
    lines = lines_of(tmp_path / "out.jsonl")
    assert [len(line["token_ids"]) for line in lines] == [12, 12, 3, 3, 12, 12, 12, 12]
    assert all(line["finish_reason"] == "length" for line in lines)
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        assert first["token_ids"] == second["token_ids"]


def test_other_settings_are_refused(whole, model, prompts, tmp_path):
    output, other = whole[0], tmp_path / "other.jsonl"
    before = output.read_bytes()
    with pytest.raises(resumable.SettingsConflict, match=r"temperature was 0\.7, now 0\.8; give"):
        run(model, prompts, output, generate.Sampling(12, 0.8, 60, n=3, seed=5))
    other.write_text(json.dumps(PROMPTS[0]) + "\n")
    with pytest.raises(
        resumable.SettingsConflict, match=r"prompts was '4, sha256 .*now '1, sha256"
    ):
        run(model, other, output)
    other.write_text("something else\n")
    with pytest.raises(resumable.SettingsConflict, match="choose another output"):
        run(model, prompts, other)
    assert output.read_bytes() == before
    assert other.read_text() == "something else\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--input=/none.jsonl", "No such file or directory: '/none.jsonl'"),
        ("--model=/none", "/none: there is no such directory or file"),
        ("--n=0", "n is 0, it must be at least 1"),
        ("--max_tokens=0", "max_tokens is 0, it must be at least 1"),
    ],
)
def test_the_command_says_what_is_wrong(model, prompts, tmp_path, change, message):
    output = tmp_path / "out.jsonl"
    arguments = [f"--model={model}", f"--input={prompts}", f"--output={output}"]
    code, out, err = run_command(*arguments, change)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert not output.exists()


def test_a_critic_a_workdir_and_a_missing_directory_are_refused(model, prompts, tmp_path):
    critic = tmp_path / "critic"
    shutil.copytree(model, critic)
    config = json.loads((critic / "config.json").read_text())
    config["architectures"] = ["Qwen3ForTokenClassification"]
    (critic / "config.json").write_text(json.dumps(config))
    paths, _ = workdir.create(tmp_path / "run")
    paths.config.write_text("{}")
    for change, message in (
        (f"--model={critic}", f"{critic} is a critic, which gives no answers"),
        (f"--model={paths.root}", f"{paths.root} is the workdir of a run; write its weights"),
        (f"--output={tmp_path / 'none' / 'x'}", "make its directory first"),
    ):
        arguments = [f"--model={model}", f"--input={prompts}", f"--output={tmp_path / 'out'}"]
        code, out, err = run_command(*arguments, change)
        assert (code, out) == (2, "")
        assert message in err
        assert "--workdir" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_killed_process_is_continued(model, tmp_path):
    prompts, killed, whole = (tmp_path / f"{name}.jsonl" for name in ("prompts", "killed", "whole"))
    prompts.write_text("".join(f'{{"prompt_token_ids": [{n}, 5]}}\n' for n in range(60)))
    arguments = [sys.executable, "-m", "jaxrl_single.run.generate", f"--model={model}"]
    arguments += [f"--input={prompts}", "--max_tokens=50", "--num_slots=4", "--ignore_eos"]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([*arguments, f"--output={killed}"], env=env)
    deadline = time.monotonic() + 600
    while not killed.exists() or len(workdir.read_jsonl(killed)) < 8:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 8 <= len(workdir.read_jsonl(killed)) < 60
    for output in (killed, whole):
        subprocess.run([*arguments, f"--output={output}"], env=env, check=True)
    assert killed.read_bytes() == whole.read_bytes()
    assert len(lines_of(whole)) == 60


def test_wrong_settings_are_said_before_anything_is_written(model, prompts, tmp_path):
    for wrong, words in (
        ("--temperature=nan", "temperature nan, must be 0"),
        ("--top_p=0", "top_p 0.0, must be in"),
    ):
        output = tmp_path / "out.jsonl"
        code, _, err = run_command(
            f"--model={model}", f"--input={prompts}", f"--output={output}", wrong
        )
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
        assert list(tmp_path.iterdir()) == []
