"""Checkpoints in Hugging Face layout: equal numbers, equal bytes."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_single import atomic
from jaxrl_single.models import api, config, hf, pretrained, sizes
from tests.models import model_lab

INDEX = "model.safetensors.index.json"
GOLDEN = pathlib.Path(__file__).parent / "golden"
NAMES = ("qwen3", "qwen3_moe", "llama", "qwen2", "glm4_moe")
# Two float32 programs that add in different orders, and whose rotary frequencies are rounded
# differently; measured 3e-5 for log-probs down to -11.
TOLERANCE = 1e-4


def our_logprobs(shape, params, tokens) -> np.ndarray:
    policy = api.build_policy(shape)
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    hidden = jax.jit(policy.hidden)(params, tokens, positions, np.ones_like(tokens))
    return np.asarray(jax.nn.log_softmax(hidden @ policy.unembedding(params).T))


@functools.cache
def random_model(size, dtype, tied):
    """(config, params as numpy), all random: the scales of norms are not 1."""
    shape = dataclasses.replace(
        sizes.get(size, vocab_size=model_lab.VOCAB_SIZE, dtype=dtype), tie_embeddings=tied
    )
    return shape, random_params(shape)


@functools.cache
def random_params(shape):
    leaves = jax.eval_shape(api.build_policy(shape).init, jax.random.key(0))
    rng = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: _random(rng, leaf), leaves)


def _random(rng, leaf) -> np.ndarray:
    array = rng.uniform(0.5, 1.5, leaf.shape)
    if len(leaf.shape) > 2:
        array = rng.standard_normal(leaf.shape) * leaf.shape[-2] ** -0.5
    return array.astype(leaf.dtype)


def assert_same_bytes(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for found, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()


def read_files(directory):
    """All tensors of a directory's safetensors by name, without hf.py."""
    tensors = {}
    for path in directory.glob("model*.safetensors"):
        tensors |= safetensors.numpy.load_file(path)
    return tensors


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_transformers(name):
    shape, params = hf.load(GOLDEN / name, dtype="float32")
    expected = safetensors.numpy.load_file(GOLDEN / name / "expected.safetensors")
    found = our_logprobs(shape, params, expected["tokens"])
    assert expected["logprobs"].min() < -8, "the golden model should not be near uniform"
    np.testing.assert_allclose(found, expected["logprobs"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_wrote_comes_back_byte_by_byte(name, tmp_path):
    shape, params = hf.load(GOLDEN / name)
    assert shape.dtype == "bfloat16"
    hf.save(tmp_path / "out", shape, params, context_length=64)
    theirs, ours = read_files(GOLDEN / name), read_files(tmp_path / "out")
    assert sorted(ours) == sorted(theirs)
    for tensor, array in theirs.items():
        assert ours[tensor].tobytes() == array.tobytes(), tensor
    if name != "qwen3_moe":  # one file of theirs too, so the files are equal
        written = (tmp_path / "out" / "model.safetensors").read_bytes()
        assert written == (GOLDEN / name / "model.safetensors").read_bytes()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", config.DTYPES)
@pytest.mark.parametrize("size", model_lab.SIZES + model_lab.OTHER_SIZES)
def test_round_trip_is_exact(size, dtype, tied, tmp_path):
    shape, params = random_model(size, dtype, tied)
    hf.save(tmp_path / "out", shape, params, context_length=512, stop_token_ids=(7,))
    found, loaded = hf.load(tmp_path / "out")
    assert found == shape
    assert_same_bytes(loaded, params)
    description = hf.describe(tmp_path / "out")
    assert (description.context_length, description.stop_token_ids) == (512, (7,))


def test_shards(tmp_path):
    shape, params = random_model("tiny_moe", "float32", False)
    hf.save(tmp_path / "out", shape, params, context_length=64, max_shard_bytes=100_000)
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    files = sorted(set(index["weight_map"].values()))
    assert index["metadata"]["total_size"] == total
    assert files == [path.name for path in sorted((tmp_path / "out").glob("*.safetensors"))]
    assert len(files) >= total // 100_000
    for file in files:
        shard = safetensors.numpy.load_file(tmp_path / "out" / file)
        assert sum(array.nbytes for array in shard.values()) <= 100_000
        assert all(index["weight_map"][name] == file for name in shard)
    assert_same_bytes(hf.load(tmp_path / "out")[1], params)


def test_a_whole_checkpoint_goes_before_the_index_of_an_earlier_one(tmp_path):
    """As save_pretrained leaves it, when it wrote several files and then one."""
    shape, old = random_model("tiny_moe", "float32", False)
    hf.save(tmp_path / "old", shape, old, context_length=64, max_shard_bytes=100_000)
    new = jax.tree.map(lambda leaf: leaf + 1, old)
    hf.save(tmp_path / "new", shape, new, context_length=64)
    for path in [*(tmp_path / "old").glob("*.safetensors"), tmp_path / "old" / INDEX]:
        shutil.copy(path, tmp_path / "new")
    assert_same_bytes(hf.load(tmp_path / "new")[1], new)


def test_of_a_tensor_in_two_shards_the_one_counts_that_the_index_names(tmp_path):
    shape, params = random_model("tiny_moe", "float32", False)
    hf.save(tmp_path / "out", shape, params, context_length=64, max_shard_bytes=100_000)
    index = json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"]
    first, last = min(index.values()), max(index.values())
    for name, file in ((first, last), (last, first)):
        shard = safetensors.numpy.load_file(tmp_path / "out" / name)
        copied = next(n for n in index if index[n] == file)
        tensor = safetensors.numpy.load_file(tmp_path / "out" / file)[copied]
        shard[copied] = np.zeros_like(tensor)
        safetensors.numpy.save_file(shard, tmp_path / "out" / name)
    assert_same_bytes(hf.load(tmp_path / "out")[1], params)


def test_single_tensors_are_those_of_the_file(tmp_path):
    shape, params = random_model("tiny_moe", "bfloat16", False)
    hf.save(tmp_path / "out", shape, params, context_length=64)
    given = dict(hf.tensors(shape, params))
    written = read_files(tmp_path / "out")
    assert sorted(given) == sorted(written)
    assert all(given[name].tobytes() == written[name].tobytes() for name in written)


def test_another_dtype_on_request():
    _, params = hf.load(GOLDEN / "qwen3")
    shape, wide = hf.load(GOLDEN / "qwen3", dtype="float32")
    assert shape.dtype == "float32"
    assert_same_bytes(wide, jax.tree.map(lambda leaf: leaf.astype(np.float32), params))


def test_params_on_a_device_are_written_too(tmp_path):
    shape, params = random_model("tiny", "float32", False)
    hf.save(tmp_path / "out", shape, jax.tree.map(jnp.asarray, params), context_length=64)
    assert_same_bytes(hf.load(tmp_path / "out")[1], params)


def test_nothing_of_it_loads_jax():
    code = (
        "import sys; from jaxrl_single.models import hf; "
        f"hf.load({str(GOLDEN / 'qwen3')!r}); assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tokenizer_files_come_along(tmp_path):
    shape, params = random_model("tiny", "float32", False)
    chat = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"
    hf.save(tmp_path / "a", shape, params, context_length=64, tokenizer=chat)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "a" / name).read_bytes() == (chat / name).read_bytes()
    assert not (tmp_path / "a" / "expected.json").exists()
    lone = chat / "tokenizer.json"
    hf.save(tmp_path / "b", shape, params, context_length=64, tokenizer=lone)
    assert (tmp_path / "b" / "tokenizer.json").read_bytes() == lone.read_bytes()


def test_nothing_is_written_of_a_checkpoint_that_fails(tmp_path):
    shape, params = random_model("tiny", "float32", False)
    with pytest.raises(OSError, match=r"no\.json"):
        hf.save(tmp_path / "out", shape, params, context_length=64, tokenizer=tmp_path / "no.json")
    wrong = params | {"final_norm": {"scale": np.ones((3,), np.float32)}}
    with pytest.raises(ValueError, match=r"final_norm/scale is \(\(3,\).*expected \(\(64,\)"):
        hf.save(tmp_path / "out", shape, wrong, context_length=64)
    with pytest.raises(ValueError, match=r"embedding/table is .*float32.*expected .*bfloat16"):
        hf.save(
            tmp_path / "out",
            dataclasses.replace(shape, dtype="bfloat16"),
            params,
            context_length=64,
        )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="choose another directory"):
        hf.save(tmp_path / "out", shape, params, context_length=64)


def test_what_a_killed_process_left_is_removed(tmp_path):
    shape, params = random_model("tiny", "float32", False)
    code = "import os; print(os.getpid())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    left = tmp_path / f"{atomic.PREFIX}{dead.strip()}-0-out"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    hf.save(tmp_path / "out", shape, params, context_length=64)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _scaled(kind, **fields):
    return {"rope_scaling": config.RopeScaling(kind, factor=4.0, **fields)}


CASES = {
    "qwen3": ("tiny", {}),
    "qwen3, tied": ("tiny", {"tie_embeddings": True}),
    "qwen3_moe": ("tiny_moe", {}),
    "qwen3_moe, not normalised": ("tiny_moe", {"normalize_experts": False}),
    "llama, tied": ("tiny_llama", {}),
    "llama": ("tiny_llama", {"tie_embeddings": False}),
    "llama3": ("tiny_llama", _scaled("llama3", original_length=16, fast_turns=4.0)),
    "dynamic": ("tiny_llama", _scaled("dynamic", original_length=64)),
    "qwen2": ("tiny_qwen2", {}),
    "qwen2, tied": ("tiny_qwen2", {"tie_embeddings": True}),
    "yarn": ("tiny_qwen2", _scaled("yarn", original_length=16)),
    "yarn, all set": (
        "tiny_qwen2",
        _scaled("yarn", original_length=16, attention_factor=1.25, truncate=False, slow_turns=2.0),
    ),
    "linear": ("tiny", _scaled("linear")),
    "glm4_moe": ("tiny_glm", {}),
    "glm4_moe with norms": ("tiny_glm", {"qk_norm": True, "attention_bias": False}),
    "glm4_moe, no dense layer": (
        "tiny_glm",
        {"num_dense_layers": 0, "normalize_experts": False, "num_shared_experts": 2},
    ),
}


@pytest.mark.long
def test_transformers_reads_what_we_write_and_we_what_it_writes(tmp_path):
    python = os.environ.get("JAXRL_HF_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True).returncode:
        pytest.skip("no transformers; JAXRL_HF_PYTHON may name a python that has it")
    tokens = np.random.default_rng(0).integers(0, model_lab.VOCAB_SIZE, (3, 40))
    models = {}
    for number, (name, (size, changes)) in enumerate(CASES.items()):
        shape = dataclasses.replace(sizes.get(size, vocab_size=model_lab.VOCAB_SIZE), **changes)
        models[name] = (tmp_path / f"ours{number}", tmp_path / f"theirs{number}", shape)
        hf.save(models[name][0], shape, random_params(shape), context_length=64)
    pairs = [list(map(str, paths)) for *paths, _ in models.values()]
    done = subprocess.run(
        [python, str(pathlib.Path(__file__).with_name("run_transformers.py"))],
        input=json.dumps({"tokens": tokens.tolist(), "pairs": pairs}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answers = map(json.loads, done.stdout.splitlines()[-len(pairs) :])
    for (name, (_, theirs, shape)), answer in zip(models.items(), answers, strict=True):
        assert answer["problems"] == {}, name
        ours = our_logprobs(shape, random_params(shape), tokens.astype(np.int32))
        np.testing.assert_allclose(ours, answer["logprobs"], atol=TOLERANCE, rtol=0, err_msg=name)
        found, loaded = hf.load(theirs)
        assert found == shape, name
        assert_same_bytes(loaded, random_params(shape))


def test_the_text_of_a_checkpoint_is_written_again_over_what_is_there(tmp_path):
    """At every start of a run, templates of their own directory among it."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "additional_chat_templates").mkdir(parents=True)
    target.mkdir()
    for content in ("first", "second"):
        (source / "additional_chat_templates" / "tool_use.jinja").write_text(content)
        pretrained.write_text(source, target)
        written = target / "additional_chat_templates" / "tool_use.jinja"
        assert written.read_text() == content
