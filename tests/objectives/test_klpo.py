"""KLPO's token route and kernels: worked numbers, gradients for the logits, edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import klpo, klpo_kernels

Q = np.array([0.5, 0.3, 0.15, 0.05])
P = np.array([0.4, 0.3, 0.2, 0.1])
ALL = np.ones(1, bool)
ONE = np.ones(1)
binary = jax.jit(functools.partial(klpo.token_binary, beta=0.1))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def each_action(kernel, listed=()):
    """theta to the loss and the metrics of one token, for each of the four it may be."""
    log_q, head = jnp.log(jnp.asarray(Q)), np.array(listed, int)

    def loss(theta, action):
        log_p = jax.nn.log_softmax(theta)
        token = (log_p[None, action], log_q[None, action], ONE, ONE, ALL)
        if kernel == "full":
            output = klpo.token_full(*token, log_p[None], log_q[None], beta=0.1)
        elif kernel == "topk":
            rows = log_p[None, head], log_q[None, head]
            output = klpo.token_topk(*token, *rows, beta=0.1, tail_floor=1e-6)
        else:
            output = klpo.token_binary(*token, beta=0.1)
        return output[0][0], {name: total for name, (total, _) in output[2].items()}

    return jax.vmap(jax.value_and_grad(loss, has_aux=True), (None, 0))


@functools.lru_cache
def evaluated(kernel, listed=()):
    return jax.jit(each_action(kernel, listed))(np.log(P), np.arange(4))


def single(kernel, *, action=0, listed=()):
    (value, metrics), gradient = evaluated(kernel, listed)
    return value[action], gradient[action], {k: x[action] for k, x in metrics.items()}


@pytest.mark.parametrize(
    ("kernel", "loss", "gradient"),
    [
        ("full", -0.265384031941, [-0.511157178, 0.306694307, 0.153347153, 0.051115718]),
        ("topk", 0.595081294541, [-0.511157178, 0.306694307, 0.136308581, 0.06815429]),
        ("binary", 0.780614307224, [-0.511157178, 0.255578589, 0.170385726, 0.085192863]),
    ],
)
def test_golden_loss_and_gradient_for_the_logits(kernel, loss, gradient):
    listed = (0, 1) if kernel == "topk" else ()
    value, got, metrics = single(kernel, listed=listed)
    np.testing.assert_allclose(value, loss, atol=1e-12)
    np.testing.assert_allclose(got, gradient, atol=1e-9)
    np.testing.assert_allclose(metrics["policy/return_coefficient"], 1.02231435513, atol=1e-11)


def test_golden_divergences():
    """What the top-K kernel lacks is the KL within the tail, weighted by the tail's mass."""
    exact = single("full")[2]["policy/kernel_kl"]
    listed = single("topk", listed=(0, 1))[2]
    np.testing.assert_allclose(exact, 0.0337621057613, atol=1e-13)
    np.testing.assert_allclose(listed["policy/kernel_kl"], 0.0304787540355, atol=1e-13)
    np.testing.assert_allclose(listed["policy/tail_mass"], 0.2, atol=1e-13)
    tail_q, tail_p = np.array([0.75, 0.25]), np.array([2, 1]) / 3
    within = 0.2 * np.sum(tail_q * np.log(tail_q / tail_p))
    np.testing.assert_allclose(exact - listed["policy/kernel_kl"], within, atol=1e-13)


@pytest.mark.parametrize(
    ("action", "kl", "omega"),
    [
        (0, 0.0204109972601, 0.833333333333),
        (1, 0.0, 1.0),
        (2, 0.0083786176762, 1.0625),
        (3, 0.0167065011788, 1.05555555556),
    ],
)
def test_golden_binary(action, kl, omega):
    metrics = single("binary", action=action)[2]
    np.testing.assert_allclose(metrics["policy/kernel_kl"], kl, atol=1e-12)
    np.testing.assert_allclose(metrics["policy/omega_mean"], omega, atol=1e-11)


def test_golden_coefficients_on_the_listed_tokens():
    """q - rho p with rho = .2 / .3, and the gradient of the kernel's KL is minus theirs."""
    arrays = (np.log(P[:1]), np.log(Q[:1]), ALL)

    def score(listed):
        return klpo_kernels.topk(*arrays, listed, np.log(Q[None, :2]), tail_floor=1e-6)[0][0]

    gradient = jax.jit(jax.grad(score))(np.log(P[None, :2]))
    np.testing.assert_allclose(-gradient, [[0.233333333, 0.1]], atol=1e-9)


def test_one_listed_token_that_is_the_action_is_binary():
    listed, binary = single("topk", listed=(0,)), single("binary")
    np.testing.assert_allclose(listed[0], binary[0], rtol=1e-12)
    np.testing.assert_allclose(listed[1], binary[1], rtol=1e-12)
    for name in ("policy/kernel_kl", "policy/return_coefficient"):
        np.testing.assert_allclose(listed[2][name], binary[2][name], rtol=1e-12)


def test_all_but_one_listed_is_full():
    """The action is the token that is not listed."""
    few, full = single("topk", listed=(3, 0, 1), action=2), single("full", action=2)
    np.testing.assert_allclose(few[1], full[1], rtol=1e-12)
    np.testing.assert_allclose(few[2]["policy/kernel_kl"], full[2]["policy/kernel_kl"], rtol=1e-11)


LOGITS = np.array([[0.2, -0.1, 0.4], [-0.3, 0.5, 0.1]])
SAMPLER = np.array([[0.3, 0.3, 0.4], [0.2, 0.5, 0.3]])
DRAWS = np.array([[0, 2], [1, 1]])


def test_golden_monte_carlo():
    """Both draws of the second token are the action: its score, and its gradient, are 0."""
    at, log_q = np.arange(2), np.log(SAMPLER)

    def loss(theta):
        log_p = jax.nn.log_softmax(theta)
        per_token, weights, metrics = klpo.token_mc(
            log_p[at, np.array([2, 1])],
            log_q[at, np.array([2, 1])],
            jnp.ones(2),
            jnp.ones(2),
            jnp.ones(2, bool),
            log_p[at[:, None], DRAWS],
            log_q[at[:, None], DRAWS],
            beta=0.1,
        )
        return jnp.sum(per_token), (per_token, weights, metrics)

    gradient, (per_token, weights, metrics) = jax.jit(jax.grad(loss, has_aux=True))(LOGITS)
    np.testing.assert_allclose(per_token, [-0.0996964858579, 0.0], atol=1e-12)
    np.testing.assert_allclose(gradient, [[0.498482429, 0, -0.498482429], [0, 0, 0]], atol=1e-9)
    np.testing.assert_array_equal(weights, [1.0, 1.0])
    total, count = metrics["policy/return_coefficient"]
    np.testing.assert_allclose(total, 0.996964859 + 1.005810333, atol=2e-9)
    np.testing.assert_allclose(metrics["policy/kernel_kl"][0], -0.07419245 + 0.058103333, atol=2e-9)
    assert count == 2


def test_reward_zero_still_pulls_back_to_the_sampler():
    """h = 0 - .1 log(.5 / .4)."""
    token = (np.log(0.5 * ONE), np.log(0.4 * ONE), np.zeros(1), ONE, ALL)
    per_token, _, metrics = binary(*token)
    np.testing.assert_allclose(
        metrics["policy/return_coefficient"][0], -0.0223143551314, atol=1e-12
    )
    omega = 0.6 / 0.5
    np.testing.assert_allclose(per_token, 0.0223143551314 * omega * np.log(0.5), atol=1e-12)


def test_keep_multiplies_the_loss_and_its_gradient():
    @jax.jit
    @jax.value_and_grad
    def loss(policy, keep):
        return binary(policy, np.log(ONE * 0.4), ONE, keep, ALL)[0][0]

    whole, whole_gradient = loss(np.log(0.5 * ONE), ONE)
    part, part_gradient = loss(np.log(0.5 * ONE), ONE * 0.25)
    np.testing.assert_allclose([part, part_gradient[0]], [whole / 4, whole_gradient[0] / 4])


def test_a_kernel_without_draws_is_refused():
    empty = jnp.zeros((1, 0))
    with pytest.raises(ValueError, match="at least one auxiliary draw"):
        klpo.token_mc(ONE, ONE, ONE, ONE, ALL, empty, empty, beta=0.1)


@functools.lru_cache
def rows_loss(kernel):
    """Of rows log p and log q, which the loss of their first token reads as `kernel` does."""

    def loss(log_p, log_q):
        token = (log_p[:, 0], log_q[:, 0], ONE, ONE, ALL)
        if kernel == "full":
            return klpo.token_full(*token, log_p, log_q, beta=0.1)[0][0]
        return klpo.token_topk(*token, log_p, log_q, beta=0.1, tail_floor=1e-6)[0][0]

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize("policy", [-np.inf, np.nan, -3.0])
@pytest.mark.parametrize("kernel", ["full", "topk"])
def test_tokens_that_the_sampler_excludes_count_nowhere(kernel, policy):
    """Where q is 0, log p may be anything; top-K counts them as part of the tail."""
    log_q = np.array([[np.log(0.5), -np.inf, np.log(0.3)]])
    log_p = np.array([[np.log(0.4), policy, np.log(0.3)]])
    value, gradient = rows_loss(kernel)(log_p, log_q)
    expected, short = rows_loss(kernel)(log_p[:, [0, 2]], log_q[:, [0, 2]])
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, [[short[0, 0], 0.0, short[0, 1]]], rtol=1e-12)


@pytest.mark.parametrize("policy", [0.0, 5e-6, -1e-9])
@pytest.mark.parametrize("rollout", [0.0, -1e-12, -0.7])
def test_saturated_tokens_are_counted_and_finite_in_float32(policy, rollout):
    policy, rollout, one = (np.full(1, x, np.float32) for x in (policy, rollout, 1.0))
    value, gradient, metrics = saturated(policy, rollout, one)
    assert metrics["policy/saturated_tokens"] == (1, 1)
    omega = 1.0 if rollout > -0.1 else -np.expm1(np.float64(rollout[0])) / 6e-8
    np.testing.assert_allclose(metrics["policy/omega_mean"][0], omega, rtol=1e-5)
    coefficient = metrics["policy/return_coefficient"][0]
    np.testing.assert_allclose(gradient[0], -coefficient * omega, rtol=1e-5)
    assert np.isfinite(value)


def test_omega_keeps_its_digits_next_to_saturation():
    """In float32 1 - exp(-1e-6) is 9.5e-7."""
    policy, rollout, one = (np.full(1, x, np.float32) for x in (-2e-6, -1e-6, 1.0))
    _, _, metrics = saturated(policy, rollout, one)
    np.testing.assert_allclose(metrics["policy/omega_mean"][0], 0.50000025, rtol=1e-6)
    assert metrics["policy/saturated_tokens"][0] == 0


@jax.jit
def saturated(policy, rollout, one):
    def loss(policy):
        per_token, _, metrics = klpo.token_binary(policy, rollout, one, one, ALL, beta=0.1)
        return per_token[0], metrics

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(policy)
    return value, gradient, metrics


def test_a_tail_under_the_floor_counts_as_the_floor():
    """q leaves 1e-9 and p 1e-3: rho = 1e-6 / 1e-3."""
    policy, rollout = np.log(ONE * 0.999)[:, None], np.log(ONE - 1e-9)[:, None]
    token = (policy[:, 0], rollout[:, 0], ALL)

    def score(rows):
        score, _, metrics = klpo_kernels.topk(*token, rows, rollout, tail_floor=1e-6)
        return score[0], metrics

    gradient, metrics = jax.jit(jax.grad(score, has_aux=True))(policy)
    assert metrics["policy/floored_tokens"] == (1, 1)
    np.testing.assert_allclose(metrics["policy/tail_mass"][0], 1e-6)
    np.testing.assert_allclose(-gradient, [[1 - 1e-9 - 1e-3 * 0.999]], rtol=1e-9)
