"""Named sizes, and shapes that are refused."""

import dataclasses

import pytest

from jaxrl_single.models import sizes


def test_a_named_size_takes_the_vocabulary_and_the_run_time_choices():
    tiny = sizes.get("tiny_moe", vocab_size=48, dtype="bfloat16", remat=True)

    assert (tiny.vocab_size, tiny.dtype, tiny.remat) == (48, "bfloat16", True)
    assert (
        dataclasses.replace(tiny, vocab_size=64, dtype="float32", remat=False)
        == (sizes.SIZES["tiny_moe"])
    )


def test_an_unknown_size_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'huge', known sizes are \[.*'tiny', 'tiny_moe'"):
        sizes.get("huge", vocab_size=48)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dtype": "float16"}, "dtype 'float16', allowed are"),
        ({"moe_form": "sparse"}, "moe_form 'sparse', allowed"),
        ({"vocab_size": 0}, "vocab_size 0, must be positive"),
        ({"num_heads": 3}, "num_heads 3, must be a multiple of num_kv_heads 2"),
        ({"head_size": 15}, "head_size 15, must be even"),
        ({"experts_per_token": 0}, "must lie in 1 .. 4"),
        ({"experts_per_token": 5}, "must lie in 1 .. 4"),
        ({"num_experts": 0}, "must lie in 0 .. 0"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(changes, problem):
    with pytest.raises(ValueError, match=f"model config: .*{problem}"):
        dataclasses.replace(sizes.SIZES["tiny_moe"], **changes)
