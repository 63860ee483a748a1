"""Numbers that are not finite, the endpoint's models and biases: what a user gets from each.

Through commands, requests and files alone.
"""

import contextlib
import io
import json
import pathlib
import sys

import jax
import numpy as np
import openai
import pytest
import safetensors.numpy

from jaxrl_single import param_tree
from jaxrl_single.models import api, hf, sizes
from jaxrl_single.run import convert as convert_command
from jaxrl_single.run import generate as generate_command
from jaxrl_single.run import logprobs as logprobs_command

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "sampler"), str(ROOT / "tests" / "sampler" / "service")]

import sampler_lab  # noqa: E402
import server_lab  # noqa: E402

CHAT = ROOT / "tests" / "data" / "golden" / "chat"
NORM = "model.norm.weight"
HUGE = 3e38  # a finite weight, whose products are not


def run(command, *arguments):
    """(exit code, standard output, standard error) of a command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["command", *map(str, arguments)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return command.main(), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A checkpoint with a tokenizer."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    shape = sizes.get("tiny", vocab_size=296)
    params = api.build_policy(shape).init(jax.random.key(0))
    hf.save(directory, shape, params, context_length=64, stop_token_ids=(20,), tokenizer=CHAT)
    return directory


def changed(sound, directory, name, place, number):
    """A copy of the checkpoint with other numbers in one tensor."""
    directory.mkdir()
    for path in sound.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    tensors[name][place] = number
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(params=["nan", "inf"])
def broken(request, sound, tmp_path):
    return changed(sound, tmp_path / "broken", NORM, 1, float(request.param))


@pytest.fixture
def overflowing(sound, tmp_path):
    return changed(sound, tmp_path / "overflowing", "lm_head.weight", ..., HUGE)


def test_c11_generate_refuses_weights_that_are_not_finite(broken, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "the cat"}\n')
    code, out, err = run(
        generate_command, f"--model={broken}", f"--input={prompts}", f"--output={output}"
    )
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert NORM in err
    assert "[1]" in err
    assert not output.exists() or not output.read_bytes()


def test_c11_logprobs_refuse_weights_that_are_not_finite(broken, tmp_path):
    lines, output = tmp_path / "ids.jsonl", tmp_path / "out.jsonl"
    lines.write_text('{"token_ids": [1, 2, 3]}\n')
    code, out, err = run(
        logprobs_command, f"--model={broken}", f"--input={lines}", f"--output={output}"
    )
    assert (code, out) == (2, "")
    assert NORM in err
    assert not output.exists() or not output.read_bytes()


def test_c11_convert_refuses_weights_that_are_not_finite(broken, tmp_path):
    target = tmp_path / "converted"
    code, out, err = run(convert_command, f"--from={broken}", f"--to={target}")
    assert (code, out) == (2, "")
    assert NORM in err
    assert not target.exists()


def test_c11_generate_samples_nothing_from_logits_that_overflow(overflowing, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "the cat"}\n{"prompt_token_ids": [5, 6, 7]}\n')
    code, out, err = run(
        generate_command, f"--model={overflowing}", f"--input={prompts}", f"--output={output}"
    )
    assert (code, out) == (2, "")
    assert "prompt 0" in err
    assert "token 0" in err
    assert "not finite" in err
    assert not output.exists() or not output.read_bytes()


def test_c11_logprobs_write_no_null_for_logits_that_overflow(overflowing, tmp_path):
    lines, output = tmp_path / "ids.jsonl", tmp_path / "out.jsonl"
    lines.write_text('\n{"token_ids": [9]}\n{"token_ids": [1, 2, 3]}\n')
    code, out, err = run(
        logprobs_command, f"--model={overflowing}", f"--input={lines}", f"--output={output}"
    )
    assert (code, out) == (2, "")
    assert "line 3" in err
    assert "token_ids[1]" in err
    assert [json.loads(line) for line in output.read_text().splitlines()] == [
        {"logprobs": [None], "entropies": [None]}
    ]


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def service():
    """Of an engine whose weights are finite; the values of token 9 overflow in the first layer."""
    flat = param_tree.flatten(sampler_lab.params_of(server_lab.SIZE, 0))
    flat = {path: np.array(leaf) for path, leaf in flat.items()}
    flat["embedding/table"][:, 0] = 0  # but for token 9, the first input of that layer is 0
    flat["embedding/table"][9] = [8, *[0] * 63]
    flat["layers/attention/v_proj"][0, 0] = HUGE
    engine = server_lab.make_engine()
    engine.load_weights(1, param_tree.unflatten(flat))
    engine.start()
    with server_lab.serving(engine, model_name="tiny_moe") as service:
        service.wait_for(lambda: engine.version == 1)
        yield service


@pytest.fixture(scope="module")
def healthy():
    """Of an engine whose weights give finite logits for every token, whichever is drawn."""
    engine = server_lab.make_engine()
    engine.start()
    with server_lab.serving(engine, model_name="tiny_moe") as service:
        yield service


def ask(service, path, body):
    """(status, text)."""
    connection = service.open(path, body)
    with contextlib.closing(connection):
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


GENERATE = {
    "session": "s",
    "ticket": 0,
    "attempt": 0,
    "turn": 0,
    "tokens": [1, 9, 3],
    "max_new_tokens": 4,
    "stop_token_ids": [],
}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [1, 9, 3], "max_tokens": 4, "logprobs": 1}),
        ("/v1/completions", {"prompt": [1, 9, 3], "max_tokens": 4, "temperature": 0}),
        ("/v1/completions", {"prompt": [1, 9, 3], "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/generate", GENERATE),
    ],
)
def test_c11_a_request_with_logits_that_overflow_gets_an_error_of_its_own(service, path, body):
    status, text = ask(service, path, body)
    assert status == 500
    assert "finite" in strict(text)["error"]["message"]
    sound = body | ({"tokens": [1, 2, 3]} if "tokens" in body else {"prompt": [1, 2, 3]})
    status, text = ask(service, path, sound)
    assert status == 200
    strict(text)


def test_c11_a_stream_of_logits_that_overflow_ends_with_an_error(service):
    body = {"prompt": [1, 9, 3], "max_tokens": 4, "stream": True, "logprobs": 1}
    _, text = ask(service, "/v1/completions", body)
    events = [strict(event[6:]) for event in text.split("\n\n") if event.startswith("data: {")]
    assert "finite" in events[-1]["error"]["message"]


def test_c23_policy_names_the_model_of_every_server(healthy):
    with openai.OpenAI(base_url=f"{healthy.url}/v1", api_key="none", max_retries=0) as client:
        for name in ("policy", "tiny_moe"):
            answer = client.completions.create(model=name, prompt=[1, 2, 3], max_tokens=2)
            assert answer.choices[0].finish_reason in ("stop", "length")
            assert client.models.retrieve(name).id == name
        assert {model.id for model in client.models.list()} == {"policy", "tiny_moe"}
        with pytest.raises(openai.NotFoundError, match=r"'policy' and 'tiny_moe'"):
            client.completions.create(model="gpt-4", prompt=[1, 2, 3])


def test_c23_the_snippet_of_the_readme_runs_as_it_is_written(healthy):
    pages = (ROOT / "README.md", ROOT / "docs/sampler.md")  # it was in the README once
    text = "".join(page.read_text() for page in pages if page.is_file())
    section = text.partition("**From any harness**")[2]
    snippet = section.partition("```python\n")[2].partition("```")[0]
    names = {"openai": openai}
    exec(snippet.replace("PORT", str(healthy.port)), names)
    (choice,) = names["answer"].choices
    exec(snippet.replace("PORT", str(healthy.port)), {})
    assert len(choice.rollout_logprobs) == len(choice.token_ids) == len(choice.policy_versions)
    names["client"].close()
    healthy.post("/release", {"session": "episode-1"})


def test_c24_a_bias_is_added_to_the_logits_before_the_temperature_divides_them(service):
    """Added after the division it gives -0.2685 where the two tokens have the odds of the case."""
    temperature, bias = 0.5, 5.0
    asked = GENERATE | {"tokens": [1, 2, 3], "max_new_tokens": 1, "session": "bias"}

    def answer(**changes):
        return json.loads(ask(service, "/generate", asked | changes)[1])

    logits = np.array(
        [answer(forced_tokens=[token])["untruncated_logprobs"][0] for token in (4, 5)]
    )
    shift = temperature * np.log(0.02187) - (logits[0] - logits[1])
    found = answer(
        forced_tokens=[4],
        allowed_token_ids=[4, 5],
        logit_bias=[[4, bias + shift]],
        temperature=temperature,
    )
    scaled = (logits + [bias + shift, 0]) / temperature
    expected = scaled[0] - np.logaddexp(*scaled)
    assert expected == pytest.approx(-0.0021, abs=5e-5)
    assert found["logprobs"][0] == pytest.approx(expected, abs=1e-5)
    # Greedy: the likeliest of logits + bias, not of the logits alone.
    greedy = {"allowed_token_ids": [4, 5], "temperature": 0}
    for token, other in ((4, 5), (5, 4)):
        gap = answer(forced_tokens=[other])["untruncated_logprobs"][0]
        gap -= answer(forced_tokens=[token])["untruncated_logprobs"][0]
        assert answer(logit_bias=[[token, gap + 0.01]], **greedy)["tokens"] == [token]
        assert answer(logit_bias=[[token, gap - 0.01]], **greedy)["tokens"] == [other]
