"""Named sizes, and shapes that are refused."""

import dataclasses
import math

import pytest

from jaxrl_single.models import hf_names, sizes


def test_a_named_size_takes_the_vocabulary_and_the_run_time_choices():
    tiny = sizes.get("tiny_moe", vocab_size=48, dtype="bfloat16", remat=True)

    assert (tiny.vocab_size, tiny.dtype, tiny.remat) == (48, "bfloat16", True)
    assert (
        dataclasses.replace(tiny, vocab_size=64, dtype="float32", remat=False)
        == (sizes.SIZES["tiny_moe"])
    )


def test_an_unknown_size_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'huge', known sizes are \[.*'tiny', .*'tiny_moe'"):
        sizes.get("huge", vocab_size=48)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dtype": "float16"}, "dtype 'float16', allowed are"),
        ({"moe_form": "sparse"}, "moe_form 'sparse', allowed"),
        ({"vocab_size": 0}, "vocab_size 0, must be positive"),
        ({"num_heads": 3}, "num_heads 3, must be a multiple of num_kv_heads 2"),
        ({"head_size": 15}, "15 entries of a head turn .* must be even"),
        ({"experts_per_token": 0}, "must lie in 1 .. 4"),
        ({"experts_per_token": 5}, "must lie in 1 .. 4"),
        ({"num_experts": 0}, "must lie in 0 .. 0"),
        ({"router": "tanh"}, "router 'tanh', allowed are"),
        ({"num_dense_layers": 2}, "num_dense_layers 2 .* must lie in 0 .. 1"),
        ({"num_dense_layers": 1}, "dense_d_ff 0 with num_dense_layers 1, must be positive"),
        ({"num_shared_experts": -1}, "num_shared_experts -1"),
        ({"rotary_fraction": 0.0}, "0 entries of a head turn"),
        ({"rotary_fraction": 0.45}, "7 entries of a head turn .* must be even and lie in 2 .. 16"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(changes, problem):
    with pytest.raises(ValueError, match=f"model config: .*{problem}"):
        dataclasses.replace(sizes.SIZES["tiny_moe"], **changes)


def test_layers_before_those_with_experts_are_dense():
    glm = sizes.SIZES["tiny_glm"]
    assert (glm.num_moe_layers, glm.rotary_size) == (2, 8)
    assert sizes.SIZES["tiny"].num_moe_layers == 0
    with pytest.raises(ValueError, match=r"num_shared_experts 1 with num_experts 0"):
        dataclasses.replace(sizes.SIZES["tiny"], num_shared_experts=1)


# Parameters of the published models in millions, as their cards and reports have them.
@pytest.mark.parametrize(
    ("size", "millions"),
    [
        ("qwen3_0.6b", (590, 600)),
        ("qwen3_4b", (4000, 4050)),
        ("qwen3_235b_a22b", (234_500, 235_500)),
        ("qwen2.5_0.5b", (490, 500)),
        ("qwen2.5_7b", (7600, 7630)),
        ("llama3.2_1b", (1230, 1240)),
        ("llama3.1_8b", (8000, 8050)),
        ("smollm2_135m", (134, 135)),
        ("smollm2_360m", (360, 363)),
        ("smollm2_1.7b", (1700, 1720)),
        ("glm4.5_air", (106_000, 107_000)),
        ("glm4.5", (350_000, 358_000)),
    ],
)
def test_published_models_have_their_size(size, millions):
    shapes = hf_names.leaf_shapes(sizes.SIZES[size]).values()
    count = sum(math.prod(shape) for shape in shapes) / 1e6
    assert millions[0] < count < millions[1]
