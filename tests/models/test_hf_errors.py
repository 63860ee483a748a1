"""What is wrong with a checkpoint is told by the name of the file, field or tensor."""

import dataclasses
import json
import pathlib
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_single.models import hf, sizes

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture
def dense(tmp_path):
    return pathlib.Path(shutil.copytree(GOLDEN / "qwen3", tmp_path / "dense"))


@pytest.fixture
def moe(tmp_path):
    return pathlib.Path(shutil.copytree(GOLDEN / "qwen3_moe", tmp_path / "moe"))


def change_config(directory, removed=(), **fields):
    path = directory / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))


def change_tensors(directory, change):
    """Rewrites the one file of a checkpoint after `change(tensors)`."""
    path = directory / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def same(actual, expected):
    return all(
        a.tobytes() == b.tobytes()
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    )


def test_older_spellings_mean_the_same(moe):
    new = hf.describe(moe)
    change_config(
        moe,
        removed=("num_local_experts", "rope_parameters", "dtype"),
        num_experts=4,
        rope_theta=300.0,
        rope_scaling=None,
        torch_dtype="bfloat16",
    )
    assert hf.describe(moe) == new
    assert (new.model.num_experts, new.model.rope_theta) == (4, 300.0)
    assert (new.model.head_size, new.model.norm_eps, new.model.d_ff) == (6, 1e-5, 12)
    assert (new.context_length, new.stop_token_ids) == (64, (3, 4))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "bert"}, r"model_type is 'bert'; this package reads \['glm4_moe', 'llama"),
        ({"model_type": None}, "model_type is None"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; our qwen3_moe has 'silu' only"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing, which 'yarn' needs"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling and .* contradict"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type is 'longrope'; this"),
        ({"rope_scaling": {"type": "yarn", "mscale": 1}}, r"rope_scaling has \['mscale'\]; of 'ya"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "factor is '4', expected a number"),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, "factor 0.5, must be at least 1"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', expected an object or null"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1, expected bool"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"rope_theta": 1e6}, "rope_parameters.rope_theta and rope_theta contradict each other"),
        ({"rope_parameters": None}, "rope_parameters.rope_theta or rope_theta is missing"),
        ({"num_local_experts": None}, "num_experts or num_local_experts is missing"),
        ({"hidden_size": "16"}, "hidden_size is '16', expected int"),
        ({"hidden_size": True}, "hidden_size is True, expected int"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected bool"),
        ({"dtype": None}, "dtype or torch_dtype is missing"),
        ({"dtype": "float16"}, r"dtype is 'float16'; choose one of \('float32', 'bfloat16'\)"),
        ({"num_key_value_heads": 3}, "num_heads 4, must be a multiple of num_kv_heads 3"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
    ],
)
def test_a_config_that_our_model_does_not_compute(moe, fields, message):
    change_config(moe, **fields)
    with pytest.raises(ValueError, match=message):
        hf.load(moe)


def test_routers_that_do_not_normalise_say_so_by_nothing(moe):
    assert hf.describe(moe).model.normalize_experts
    change_config(moe, removed=("norm_topk_prob",))  # transformers takes false then
    assert not hf.describe(moe).model.normalize_experts


@pytest.fixture
def glm(tmp_path):
    return pathlib.Path(shutil.copytree(GOLDEN / "glm4_moe", tmp_path / "glm"))


@pytest.mark.parametrize("field", ["n_group", "topk_group"])
def test_groups_of_experts_are_refused(glm, field):
    change_config(glm, **{field: 2})
    with pytest.raises(ValueError, match=f"{field} is 2; our glm4_moe has 1 only"):
        hf.load(glm)


def test_layers_that_predict_further_tokens_are_left_out(glm):
    _, before = hf.load(glm)

    def change(tensors):
        tensors["model.layers.2.eh_proj.weight"] = np.ones((16, 32), np.float32)

    change_tensors(glm, change)
    change_config(glm, num_nextn_predict_layers=1)
    assert same(hf.load(glm)[1], before)
    change_config(glm, num_nextn_predict_layers=0)
    with pytest.raises(ValueError, match=r"1 unknown \(model\.layers\.2\.eh_proj\.weight\)"):
        hf.load(glm)


def test_a_bias_that_config_json_denies_is_unknown(glm):
    change_config(glm, attention_bias=False)
    with pytest.raises(ValueError, match=r"6 unknown \(model\.layers\.0\.self_attn\.k_proj\.bias"):
        hf.load(glm)


def test_fields_that_llama_leaves_out(tmp_path):
    llama = pathlib.Path(shutil.copytree(GOLDEN / "llama", tmp_path / "llama"))
    new = hf.describe(llama).model
    absent = ("head_dim", "num_key_value_heads", "tie_word_embeddings", "rope_parameters")
    change_config(llama, removed=absent)
    expected = {"head_size": 4, "num_kv_heads": 4, "rope_theta": 10_000.0, "rope_scaling": None}
    assert hf.describe(llama).model == dataclasses.replace(new, **expected)


def test_a_shape_of_no_family_names_what_is_odd(tmp_path):
    shape = dataclasses.replace(sizes.SIZES["tiny"], attention_bias=True)
    with pytest.raises(ValueError, match=r"no family .* closest, but for \{'attention_bias': True"):
        hf.save(tmp_path / "out", shape, {}, context_length=64)


def test_a_config_that_is_no_object(moe):
    (moe / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object, found a list"):
        hf.load(moe)
    (moe / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        hf.load(moe)


def test_float16_can_be_converted(dense):
    _, before = hf.load(dense, dtype="float32")
    change_config(dense, dtype="float16")
    change_tensors(
        dense, lambda tensors: tensors.update({k: v.astype("f2") for k, v in tensors.items()})
    )
    shape, params = hf.load(dense, dtype="float32")
    assert shape.dtype == "float32"
    np.testing.assert_allclose(params["final_norm"]["scale"], before["final_norm"]["scale"])


def test_missing_and_unknown_tensors_are_named(dense):
    def change(tensors):
        tensors["model.layers.1.self_attn.q_proj.bias"] = np.zeros(24, np.float32)
        del tensors["model.layers.0.mlp.up_proj.weight"], tensors["model.norm.weight"]

    change_tensors(dense, change)
    with pytest.raises(ValueError, match="2 missing") as error:
        hf.load(dense)
    assert "(model.layers.0.mlp.up_proj.weight, model.norm.weight)" in str(error.value)
    assert "1 unknown (model.layers.1.self_attn.q_proj.bias)" in str(error.value)


def test_a_config_of_more_layers_names_the_first_missing_tensors(dense):
    change_config(dense, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"11 missing \(model\.layers\.2\.input_layernorm.*\.\.\."):
        hf.load(dense)


def test_a_tensor_of_another_shape(dense):
    change_config(dense, vocab_size=40)
    with pytest.raises(ValueError, match=r"embed_tokens\.weight has shape \[32, 16\].*\[40, 16\]"):
        hf.load(dense)


def test_quantized_tensors(dense):
    def change(tensors):
        tensors["model.norm.weight"] = np.ones(16, np.int8)

    change_tensors(dense, change)
    with pytest.raises(ValueError, match=r"model\.norm\.weight is int8; quantized"):
        hf.load(dense)


def test_a_tied_unembedding_may_be_there_if_it_is_the_embedding(dense):
    _, before = hf.load(dense)

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    def disturb(tensors):
        tensors["lm_head.weight"][5, 3] += ml_dtypes.bfloat16(1)

    change_tensors(dense, add)
    assert same(hf.load(dense)[1], before)
    change_tensors(dense, disturb)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from the embedding"):
        hf.load(dense)


def test_rotary_buffers_of_old_releases_are_left_out(dense):
    _, before = hf.load(dense)

    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    change_tensors(dense, change)
    assert same(hf.load(dense)[1], before)


def test_no_safetensors(dense):
    (dense / "model.safetensors").rename(dense / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor .*save_pretrained"):
        hf.load(dense)


def test_a_torn_file(moe):
    path = moe / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors: torn"):
        hf.load(moe)


def test_a_missing_shard(moe):
    (moe / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"'model-00003-of-00003\.safetensors', which is"):
        hf.load(moe)


def test_an_index_that_contradicts_its_shards(moe):
    path = moe / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    names = sorted(set(index["weight_map"].values()))
    index["weight_map"]["lm_head.weight"] = names[-1]
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lm_head\.weight is not in model-00003-of-00003"):
        hf.load(moe)
    index["weight_map"]["lm_head.weight"] = "../dense/model.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"'\.\./dense/model\.safetensors', which is not"):
        hf.load(moe)
    path.write_text("{}")
    with pytest.raises(ValueError, match="expected an object weight_map"):
        hf.load(moe)
