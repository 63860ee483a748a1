"""A run that starts from somebody's weights, in their tokenizer and chat template."""

import json

import jax
import numpy as np
import pytest

from jaxrl_single import param_tree, store, workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.models import api, hf, sizes
from jaxrl_single.run import convert
from jaxrl_single.weights import filesystem
from tests.e2e import runs
from tests.models import gguf_lab

pytestmark = pytest.mark.slow

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OVERRIDES = (
    "mode=sync",
    "model.dtype=float32",
    "warm_start.num_steps=0",
    "value_pretraining.max_steps=0",
    "rl.num_steps=1",
    "rl.critic_only_steps=0",
    "eval.num_tasks=8",
    "env.max_turn_tokens=24",
    "env.system_prompt={tools}",  # the template shows none, and a description is long in bytes
    "env.max_tokens=480",
    "batch.row_length=480",
)
CONFIG = "configs/smollm2_135m_tools.py:tiny"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """(a GGUF file with one token per byte, its parameters)."""
    shape = sizes.get("tiny_llama", vocab_size=264)
    leaves = jax.eval_shape(api.build_policy(shape).init, jax.random.key(0))
    rng = np.random.default_rng(2)
    params = jax.tree.map(
        lambda leaf: (0.1 * rng.standard_normal(leaf.shape)).astype(leaf.dtype), leaves
    )
    path = tmp_path_factory.mktemp("weights") / "bytes.gguf"

    def text(writer):
        gguf_lab.add_text(writer, SPECIAL)
        writer.add_chat_template(TEMPLATE)

    gguf_lab.write(path, "llama", shape, params, text=text, context_length=512)
    return path, params


@pytest.fixture(scope="module")
def finished(weights, tmp_path_factory):
    """The workdir of a short run from these weights."""
    root = tmp_path_factory.mktemp("pretrained") / "run"
    process = runs.start(root, f"model.path={weights[0]}", *OVERRIDES, config=CONFIG)
    runs.finish(process, root, timeout_s=900)
    return root


def fetch(root, version):
    paths = workdir.Workdir(root)
    store = filesystem.FileWeights(paths.weights, workdir.run_id_of(paths))
    return param_tree.flatten(store.fetch(version)[0])


def test_the_first_version_is_the_checkpoint(weights, finished):
    first = fetch(finished, 0)
    for path, array in param_tree.flatten(weights[1]).items():
        np.testing.assert_array_equal(first[path], array, err_msg=path)


def test_episodes_are_in_the_language_of_the_checkpoint(weights, finished):
    text = text_lib.HfText.load(weights[0])
    assert text_lib.HfText.load(finished / "tokenizer").stop_token_ids == (1,)
    files = store.all_files(finished / "trajectories", "eval")
    assert files
    for file in files:
        tokens = store.decode(file.read_bytes()).tokens.tolist()
        said = text.decode(tokens, keep_special=True)
        assert said.startswith("<|im_start|>")
        assert "<|im_start|>assistant\n" in said


def test_the_run_is_exported_with_what_it_came_with(finished, tmp_path):
    said = convert.convert(finished, tmp_path / "policy")
    assert said.startswith("version 1 is in")
    shape, params = hf.load(tmp_path / "policy")
    for path, array in fetch(finished, 1).items():
        np.testing.assert_array_equal(param_tree.flatten(params)[path], array)
    assert hf.describe(tmp_path / "policy").context_length == 512
    text = text_lib.HfText.load(tmp_path / "policy")
    assert text.render_text([{"role": "user", "content": "x"}]).startswith("<|im_start|>user\nx")
    said = convert.convert(finished, tmp_path / "critic", critic=True)
    assert said.startswith("critic of rl, step 1")
    critic = hf.load(tmp_path / "critic")[1]
    assert critic["value_head"]["kernel"].shape == (64, 1)
    assert "unembedding" not in critic
    assert json.loads((tmp_path / "critic" / "config.json").read_text())["num_labels"] == 1
    assert shape.vocab_size == 264


def test_a_checkpoint_that_cannot_be_used_stops_the_start(weights, tmp_path):
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(weights[0].read_bytes()[:4000])
    text = runs.run(tmp_path / "a", f"model.path={torn}", *OVERRIDES, config=CONFIG, expect=2)
    assert "model.path" in text
    assert "torn.gguf" in text
    long = ("env.max_tokens=600", "batch.row_length=600")
    text = runs.run(
        tmp_path / "b", f"model.path={weights[0]}", *OVERRIDES[:-2], *long, config=CONFIG, expect=2
    )
    assert "env.max_tokens is 600" in text
    assert "was made for 512 tokens" in text
