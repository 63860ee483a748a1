"""The sampler's experts, as on CPU and as elsewhere, against a loop; a token and its company."""

import jax
import numpy as np
import numpy_decoder
import pytest

from jaxrl_single.models import platform, serving_experts

EXPERTS, PER_TOKEN, D, F = 5, 2, 6, 4


def _kernels():
    rng = np.random.default_rng(0)
    shapes = ((EXPERTS, D, F), (EXPERTS, D, F), (EXPERTS, F, D))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _tokens(num_tokens, *, seed, crowded=None):
    """x [D, T], mixing, chosen; all tokens choose expert `crowded` if one is named."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(num_tokens, EXPERTS))
    scores[:, 3] = -50  # nobody's choice
    if crowded is not None:
        scores[:, crowded] = 50
    chosen = np.argsort(-scores, axis=1)[:, :PER_TOKEN].astype(np.int32)
    mixing = np.zeros((num_tokens, EXPERTS), np.float32)
    shares = rng.dirichlet([1] * PER_TOKEN, num_tokens).astype(np.float32)
    np.put_along_axis(mixing, chosen, shares, axis=1)
    return rng.normal(size=(D, num_tokens)).astype(np.float32), mixing, chosen


def _apply(x, real, mixing, chosen):
    gate, up, down = _kernels()
    gate_up = np.concatenate([gate, up], axis=2).transpose(0, 2, 1)
    apply = jax.jit(lambda *args: serving_experts.apply(*args))
    return np.asarray(apply(x, real, mixing, chosen, gate_up, down.transpose(0, 2, 1)))


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(("num_tokens", "crowded"), [(37, None), (37, 4), (37, 0), (3, None)])
def test_every_real_token_gets_its_experts(num_tokens, crowded, on_cpu, monkeypatch):
    monkeypatch.setattr(platform, "on_cpu", lambda: on_cpu)
    x, mixing, chosen = _tokens(num_tokens, seed=1, crowded=crowded)
    real = np.arange(num_tokens) % 4 != 1

    out = _apply(x, real, mixing, chosen)

    expected = numpy_decoder.mixture(x.T.astype(np.float64), mixing, *_kernels()).T
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[:, real], expected[:, real], rtol=1e-4, atol=1e-5)


def test_a_token_is_the_same_to_the_bit_in_any_company_and_place():
    x, mixing, chosen = _tokens(24, seed=2)
    real = np.ones(24, bool)
    alone = _apply(x, np.arange(24) == 7, mixing, chosen)[:, 7]
    company = _tokens(24, seed=3, crowded=chosen[7, 0])
    moved = [array.copy() for array in company]
    moved[0][:, 20], moved[1][20], moved[2][20] = x[:, 7], mixing[7], chosen[7]

    np.testing.assert_array_equal(_apply(x, real, mixing, chosen)[:, 7], alone)
    np.testing.assert_array_equal(_apply(moved[0], real, moved[1], moved[2])[:, 20], alone)
