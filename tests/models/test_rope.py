"""Rotary positions of every kind: against transformers, by hand, and in config.json."""

import dataclasses
import json
import math
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.models import config, hf_rope, rope, sizes

CONTEXT = 64  # max_position_embeddings of the golden configs
GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden" / "ropes.json").read_text())
TINY = sizes.SIZES["tiny"]
SCALINGS = (
    None,
    config.RopeScaling("linear", 3.0),
    config.RopeScaling("dynamic", 2.5, original_length=CONTEXT),
    config.RopeScaling("llama3", 8.0, original_length=32, slow_turns=1.0, fast_turns=4.0),
    config.RopeScaling("yarn", 4.0, original_length=32),
    config.RopeScaling("yarn", 4.0, 32, 2.0, 16.0, attention_factor=1.25, truncate=False),
)


def _golden_shape(golden):
    found = {"rope_parameters": golden["rope_parameters"]}
    return dataclasses.replace(
        TINY,
        head_size=32,
        rope_theta=golden["rope_parameters"]["rope_theta"],
        rotary_fraction=golden["rope_parameters"]["partial_rotary_factor"],
        rope_scaling=hf_rope.read(pathlib.Path("x"), found, context_length=CONTEXT),
    )


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g["rope_parameters"]["rope_type"])
def test_angles_are_those_of_transformers(golden):
    shape = _golden_shape(golden)
    position = (golden["length"] or 40) - 1

    cos, sin = rope.rotation(shape, jnp.array([[position]]))

    angles = position * np.array(golden["frequencies"])
    assert cos.shape == (1, 1, 12)
    factor = golden["attention_factor"]
    # float32 angles up to 1000 on both sides.
    np.testing.assert_allclose(cos[0, 0], factor * np.cos(angles), atol=2e-4)
    np.testing.assert_allclose(sin[0, 0], factor * np.sin(angles), atol=2e-4)
    if golden["length"] is None:
        np.testing.assert_allclose(rope.frequencies(shape), golden["frequencies"], rtol=1e-6)


def test_dynamic_positions_are_plain_up_to_the_original_length_and_then_slower():
    plain = dataclasses.replace(TINY, rope_theta=100.0)
    dynamic = dataclasses.replace(plain, rope_scaling=SCALINGS[2])
    positions = jnp.arange(0, 3 * CONTEXT)

    cos, _ = rope.rotation(dynamic, positions)
    plain_cos, _ = rope.rotation(plain, positions)

    np.testing.assert_allclose(cos[:CONTEXT], plain_cos[:CONTEXT], atol=1e-5)
    np.testing.assert_allclose(cos[:, 0], plain_cos[:, 0], atol=1e-5)  # the fastest pair stays
    # 1 + 2.5 x (2 - 1) = 3.5 at twice the length, to the power H / (H - 2).
    theta = 100.0 * 3.5 ** (16 / 14)
    expected = (2 * CONTEXT - 1) * theta ** (-np.arange(8) / 8)
    np.testing.assert_allclose(cos[2 * CONTEXT - 1], np.cos(expected), atol=1e-4)
    assert np.abs(cos[CONTEXT:, 3] - plain_cos[CONTEXT:, 3]).max() > 0.5


def test_pairs_turn_and_what_is_behind_them_stays():
    shape = dataclasses.replace(TINY, rotary_fraction=0.5)
    x = np.random.default_rng(0).normal(size=(3, 2, 16)).astype(np.float32)
    positions = jnp.array([0, 1, 7])

    turned = np.asarray(rope.rotate(x, rope.rotation(shape, positions)))

    pairs = x[..., :4] + 1j * x[..., 4:8]
    angles = np.array([0, 1, 7])[:, None, None] * 10_000.0 ** (-np.arange(4) / 4)
    expected = pairs * np.exp(1j * angles)
    np.testing.assert_array_equal(turned[..., 8:], x[..., 8:])
    np.testing.assert_allclose(turned[..., :4], expected.real, atol=1e-5)
    np.testing.assert_allclose(turned[..., 4:8], expected.imag, atol=1e-5)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s.kind if s else "none")
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_what_is_written_means_the_same_when_it_is_read(scaling, name):
    found = json.loads(json.dumps({name: hf_rope.write(scaling)}))

    assert hf_rope.read(pathlib.Path("x"), found, context_length=CONTEXT) == scaling


def test_what_is_left_out_has_the_usual_values():
    found = {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": None}}

    scaling = hf_rope.read(pathlib.Path("x"), found, context_length=CONTEXT)

    assert scaling == config.RopeScaling("yarn", 4, original_length=CONTEXT)
    shape = dataclasses.replace(TINY, rope_scaling=scaling)
    assert rope.attention_factor(shape) == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kind": "longrope"}, "rope scaling 'longrope', allowed are"),
        ({"factor": 0.5}, "factor 0.5, must be at least 1"),
        ({"original_length": 0}, "original_length 0, must be positive"),
        ({"fast_turns": 1.0}, "slow_turns 1.0 and fast_turns 1.0, must be"),
    ],
)
def test_a_scaling_that_cannot_be_is_refused(changes, problem):
    with pytest.raises(ValueError, match=f"model config: .*{problem}"):
        dataclasses.replace(SCALINGS[3], **changes)
