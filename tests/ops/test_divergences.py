"""Divergences: worked numbers, saturation, gradients, relations between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.ops import divergences

log1mexp = jax.jit(divergences.log1mexp)
kl2 = jax.jit(divergences.kl2, static_argnames="eps")
k3 = jax.jit(divergences.k3)
full_kl = jax.jit(divergences.full_kl)
topk_kl = jax.jit(divergences.topk_kl, static_argnames="tail_floor")
topk_tv = jax.jit(divergences.topk_tv)
complement_ratio = jax.jit(divergences.complement_ratio, static_argnames="eps")
gradient_of_log1mexp = jax.jit(jax.grad(divergences.log1mexp))
saturated_kl2 = jax.jit(jax.value_and_grad(divergences.kl2, (0, 1)), static_argnames="eps")
log_tail = jax.jit(jax.value_and_grad(divergences.log_tail), static_argnames="floor")
gradient_of_kl2 = jax.jit(jax.grad(divergences.kl2, 1), static_argnames="eps")
gradient_of_k3 = jax.jit(jax.value_and_grad(divergences.k3))

Q = np.array([0.5, 0.3, 0.15, 0.05])
P = np.array([0.4, 0.3, 0.2, 0.1])
# Probabilities of one token under two policies, from all but impossible to all but certain.
SAMPLED_Q = np.array([0.60, 0.02, 0.90, 0.30, 0.005])
SAMPLED_P = np.array([0.50, 0.12, 0.97, 0.29, 0.0005])


def log(x):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, np.float64))


@pytest.mark.parametrize(
    ("x", "expected"), [(-1e-9, -20.7232658374), (-1.0, -0.458675145387), (-np.inf, 0.0)]
)
def test_log1mexp(x, expected):
    with jax.enable_x64(True):
        assert log1mexp(np.float64(x)) == pytest.approx(expected, rel=1e-11)
    assert log1mexp(np.float32(x)) == pytest.approx(expected, rel=1e-6)


def test_log1mexp_at_zero():
    assert log1mexp(np.float32(0.0)) == -np.inf


@pytest.mark.parametrize("x", [-1e-9, -1e-7, -0.1, -0.6931, -0.6932, -1.0, -50.0, -200.0, -np.inf])
def test_gradient_of_log1mexp(x):
    """-exp(x) / (1 - exp(x)) on both sides of the switch, no NaN from the branch not taken."""
    expected = -np.exp(x) / -np.expm1(x)
    got = gradient_of_log1mexp(np.float32(x))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 0.999, 9.92591578304e-4),
        (0.999, 1.0, 5.9092544462e-3),
        (0.5, 1.0, 6.21460859841),
        (0.5, 1e-9, 6.21460859842),
        (0.5, 0.0, 6.21460859842),
    ],
)
def test_kl2(p, q, expected):
    with jax.enable_x64(True):
        got = kl2(log(p), log(q), eps=1e-6)
        np.testing.assert_allclose(got, expected, rtol=1e-11)
    got = kl2(np.float32(log(p)), np.float32(log(q)), eps=1e-6)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("eps", [1e-6, 1e-8])
def test_kl2_in_float32_equals_float64_up_to_the_clipping(eps):
    """1 - 1e-8 is 1 in float32: only clipping the log-probs tells the two apart."""
    p, q = np.meshgrid([0.0, 1e-7, 0.3, 0.9, 1 - 1e-6, 1.0], [0.0, 1e-5, 0.3, 0.999, 1.0])
    a, b = np.clip(p, eps, 1 - eps), np.clip(q, eps, 1 - eps)
    expected = a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b))
    got = kl2(np.float32(log(p)), np.float32(log(q)), eps=eps)
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=2e-7)


def test_kl2_on_the_fixture_of_all_gates():
    q, p = np.float32(log(SAMPLED_Q)), np.float32(log(SAMPLED_P))
    forward = [0.020135514, 0.069642862, 0.052986103, 0.000241221, 0.007023071]
    backward = [0.020410997, 0.120296152, 0.036535085, 0.000239641, 0.003358868]
    np.testing.assert_allclose(kl2(q, p, eps=1e-8), forward, atol=1e-7)
    np.testing.assert_allclose(kl2(p, q, eps=1e-8), backward, atol=1e-7)


@pytest.mark.parametrize(("q", "p"), [(0.3, 0.5), (0.9, 0.5), (0.5, 0.999)])
def test_gradient_of_kl2_gives_the_complement_ratio(q, p):
    """d kl2(q, p) / d log p = (p - q) / (1 - p) = (1 - q) / (1 - p) - 1."""
    with jax.enable_x64(True):
        gradient = np.asarray(gradient_of_kl2(log(q), log(p), eps=1e-9))
        ratio = np.asarray(complement_ratio(log(p), log(q), eps=1e-15))
    np.testing.assert_allclose(gradient, (p - q) / (1 - p), rtol=1e-9)
    np.testing.assert_allclose(1.0 + gradient, ratio, rtol=1e-9)


@pytest.mark.parametrize(("log_p", "log_q"), [(0.0, -1e4), (-1e4, 0.0), (0.0, 0.0), (0.0, -np.inf)])
def test_saturated_kl2_is_finite_with_gradient_zero(log_p, log_q):
    value, gradient = saturated_kl2(np.float32(log_p), np.float32(log_q), eps=1e-6)
    assert np.isfinite(value)
    assert tuple(gradient) == (0.0, 0.0)


def test_k2_and_k3_on_the_fixture_of_all_gates():
    log_ratio = np.float32(log(SAMPLED_P) - log(SAMPLED_Q))
    expected_k2 = [0.016620575, 1.605200998, 0.002805103, 0.000574658, 2.650949055]
    expected_k3 = [0.01565489, 3.208240531, 0.00287647, 0.000568218, 1.402585093]
    np.testing.assert_allclose(divergences.k2(log_ratio), expected_k2, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(k3(log_ratio), expected_k3, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("x", "gradient"), [(-1e4, -1.0), (0.0, 0.0), (1.0, np.e - 1), (1e4, 0.0)])
def test_k3_stays_finite(x, gradient):
    value, got = gradient_of_k3(np.float32(x))
    assert np.isfinite(value)
    np.testing.assert_allclose(got, gradient, rtol=1e-6)


def test_full_and_topk_kl():
    """The gap between both is the tail mass times the divergence of the tails."""
    with jax.enable_x64(True):
        full = float(full_kl(log(Q), log(P)))
        topk = float(topk_kl(log(Q[:2]), log(P[:2]), tail_floor=1e-6))
    assert full == pytest.approx(0.0337621057613, rel=1e-11)
    assert topk == pytest.approx(0.0304787540355, rel=1e-11)
    tail_q, tail_p = Q[2:] / 0.2, P[2:] / 0.3
    assert full - topk == pytest.approx(0.2 * np.sum(tail_q * np.log(tail_q / tail_p)), rel=1e-9)


def test_topk_of_two_heads():
    head_q, head_p = np.float32(log([0.6, 0.3])), np.float32(log([0.4, 0.35]))
    assert divergences.topk_tv(head_q, head_p) == pytest.approx(0.2, abs=1e-6)
    kl = topk_kl(head_q, head_p, tail_floor=1e-6)
    assert kl == pytest.approx(0.105404787729, abs=1e-6)


def test_gradient_of_topk_kl_with_respect_to_logits():
    @jax.jit
    @jax.grad
    def gradient(logits):
        return divergences.topk_kl(log(Q[:2]), jax.nn.log_softmax(logits)[:2], tail_floor=1e-6)

    with jax.enable_x64(True):
        got = gradient(log(P))
    np.testing.assert_allclose(got, [-0.1, 0.0, 1 / 15, 1 / 30], atol=1e-12)


def test_one_listed_token_is_the_binary_kl():
    with jax.enable_x64(True):
        topk = np.asarray(topk_kl(log(Q)[:, None], log(P)[:, None], tail_floor=1e-9))
        np.testing.assert_allclose(topk, kl2(log(Q), log(P), eps=1e-9), atol=1e-15)
    expected = [0.0204109972601, 0.0, 0.0083786176762, 0.0167065011788]
    np.testing.assert_allclose(topk, expected, atol=1e-13)


def test_all_but_one_listed_token_is_the_full_kl():
    with jax.enable_x64(True):
        topk = topk_kl(log(Q[:3]), log(P[:3]), tail_floor=1e-9)
        np.testing.assert_allclose(topk, full_kl(log(Q), log(P)), atol=1e-14)


def test_impossible_tokens_have_no_share_and_no_gradient():
    """q = 0 with any p, p = 0 included: 0 log 0 = 0."""
    log_q, log_p = np.float32(log([0.5, 0.5, 0.0, 0.0])), np.float32(log([0.25, 0.5, 0.25, 0.0]))
    value, gradient = jax.jit(jax.value_and_grad(divergences.full_kl, 1))(log_q, log_p)
    assert value == pytest.approx(0.5 * np.log(2.0), abs=1e-7)
    np.testing.assert_allclose(gradient, [-0.5, -0.5, 0.0, 0.0], atol=1e-7)


def test_nan_comes_through():
    assert np.isnan(divergences.full_kl(jnp.array([np.nan, 0.0]), jnp.zeros(2)))


def test_a_list_that_holds_everything_leaves_the_floor():
    """Rounding may even leave the head more than 1."""
    head = np.float32(np.log([0.7, 0.3000002]))
    value, gradient = log_tail(head, floor=1e-6)
    assert value == pytest.approx(np.log(1e-6), rel=1e-6)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


@pytest.mark.parametrize(
    ("q", "p", "expected"),
    [
        (0.001, 0.01, 1.00825688073),
        (0.5, 0.9, 3.0),
        (0.9, 0.5, 1 / 3),
        (0.1, 1.0, 10.0),
        (0.0, 1.0, 11.0),
        (1.0, 1.0, 1.0),
    ],
)
def test_complement_ratio(q, p, expected):
    got = complement_ratio(np.float32(log(p)), np.float32(log(q)), eps=0.1)
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_float32_at_least_and_float64_stays():
    half = jnp.full(3, -0.5, jnp.bfloat16)
    assert kl2(half, half, eps=1e-6).dtype == jnp.float32
    with jax.enable_x64(True):
        double = np.full(3, -1.5)
        assert full_kl(double, double).dtype == jnp.float64
        assert topk_kl(double, double, tail_floor=1e-6).dtype == jnp.float64
