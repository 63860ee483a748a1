"""KLPO on a tree small enough to enumerate: which routes and kernels are unbiased, to 1e-12.

Root with 3 actions: 0 and 1 end with rewards .2 and -.1, 2 leads to a child with 3 actions that end
with 1.1, -.5 and .3. Trainer and sampler are tables of logits. Every path (with every table of
auxiliary draws) is one trajectory of at most 2 tokens, weighted by its probability.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import bellman_bpo_exact, klpo, klpo_kernels, klpo_sequence

BETA = 0.4
SAMPLER = ((0.3, 0.25, 0.45), (0.6, 0.3, 0.1))
Q = np.array(SAMPLER)
THETA = np.array([[0.5, -0.2, 0.1], [-0.6, 0.9, 0.3]])
PATHS = ((0,), (1,), (2, 0), (2, 1), (2, 2))
REWARDS = (0.2, -0.1, 1.1, -0.5, 0.3)
VALUES = np.array([0.278, 0.54])  # of root and child
ACTION_VALUES = np.array([[0.2, -0.1, 0.54], [1.1, -0.5, 0.3]])
VISITS = np.array([1.0, 0.45])
EXACT = np.array(
    [[0.082425469, 0.091920047, -0.174345516], [-0.251328971, 0.208765462, 0.042563509]]
)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def closed_form():
    """-d(s) E_q[(Q - beta ell) (onehot(a) - q)] at each state, in numpy."""
    log_p = THETA - np.log(np.exp(THETA).sum(axis=1, keepdims=True))
    f = ACTION_VALUES - BETA * (log_p - np.log(Q))
    return -VISITS[:, None] * Q * (f - np.sum(Q * f, axis=1, keepdims=True))


@functools.lru_cache
def trajectories(num_draws, sampler, paths):
    """All paths with all tables of draws: actions, mask [N, 2], draws [N, 2, M], weights [N]."""
    rows = []
    for path in paths:
        pad = 2 - len(path)
        for table in itertools.product(range(len(sampler[0])), repeat=len(path) * num_draws):
            draws = np.reshape(np.array(table, int), (len(path), num_draws))
            drawn = [(s, v) for s, row in enumerate(draws) for v in (path[s], *row)]
            rows.append(
                (
                    (*path, *[0] * pad),
                    np.arange(2) < len(path),
                    np.pad(draws, ((0, pad), (0, 0))),
                    np.prod([sampler[s][v] for s, v in drawn]),
                )
            )
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def pick(rows, ids):
    return jnp.take_along_axis(rows, ids, axis=-1)


def everything(theta, rewards, num_draws, sampler, paths):
    """What the objectives read, by name, [N, 2, ...]."""
    actions, mask, draws, _ = trajectories(num_draws, sampler, paths)
    shape = (len(actions), *theta.shape)
    log_p = jnp.broadcast_to(jax.nn.log_softmax(theta), shape)
    log_q = jnp.broadcast_to(jnp.log(jnp.asarray(sampler)), shape)
    return {
        "policy_logprobs": pick(log_p, actions[..., None])[..., 0],
        "rollout_logprobs": pick(log_q, actions[..., None])[..., 0],
        "advantages": jnp.where(mask, rewards[:, None], jnp.nan),
        "keep": jnp.ones(mask.shape),
        "action_mask": jnp.asarray(mask),
        "trajectory_index": jnp.where(mask, 0, -1),
        "aux_policy_logprobs": pick(log_p, draws),
        "aux_rollout_logprobs": pick(log_q, draws),
        "full_policy_logprobs": log_p,
        "full_rollout_logprobs": log_q,
    }


TOKEN = ("policy_logprobs", "rollout_logprobs", "advantages", "keep", "action_mask")
FULL = ("full_policy_logprobs", "full_rollout_logprobs")
AUX = ("aux_policy_logprobs", "aux_rollout_logprobs")


def call(function, names, arrays, **settings):
    """A function of single trajectories over all of them: losses [N] and metrics [N] by name."""

    def one(arrays):
        index = (arrays["trajectory_index"], 1) if names[5:6] == ("trajectory_index",) else ()
        rest = [arrays[name] for name in names[5 + bool(index) :]]
        per_token, _, metrics = function(*(arrays[n] for n in TOKEN), *index, *rest, **settings)
        return jnp.sum(per_token), {name: total for name, (total, _) in metrics.items()}

    return jax.vmap(one)(arrays)


SEQUENCE = (*TOKEN, "trajectory_index")
token_full = functools.partial(call, klpo.token_full, (*TOKEN, *FULL), beta=BETA)
token_mc = functools.partial(call, klpo.token_mc, (*TOKEN, *AUX), beta=BETA)
token_binary = functools.partial(call, klpo.token_binary, TOKEN, beta=BETA)
sequence_full = functools.partial(call, klpo_sequence.sequence_full, (*SEQUENCE, *FULL), beta=BETA)
sequence_mc = functools.partial(call, klpo_sequence.sequence_mc, (*SEQUENCE, *AUX), beta=BETA)
sequence_binary = functools.partial(call, klpo_sequence.sequence_binary, SEQUENCE, beta=BETA)


def topk(function, names, num_listed):
    """The kernel with the first tokens of the vocabulary as head, those likeliest at q or not."""

    def listed(arrays):
        policy, rollout = (arrays[name] for name in FULL)
        order = jnp.argsort(-rollout, axis=-1)[..., :num_listed]
        arrays = arrays | {"topk_p": pick(policy, order), "topk_q": pick(rollout, order)}
        return call(function, (*names, "topk_p", "topk_q"), arrays, beta=BETA, tail_floor=1e-6)

    return listed


topk2 = topk(klpo.token_topk, TOKEN, 2)
topk1 = topk(klpo.token_topk, TOKEN, 1)
sequence_topk2 = topk(klpo_sequence.sequence_topk, SEQUENCE, 2)


def bellman(arrays):
    arrays = arrays | {"advantages": arrays["advantages"] - VALUES[0]}
    function = bellman_bpo_exact.bellman_bpo_exact
    return call(function, (*SEQUENCE, *FULL), arrays, eta=1.0 / BETA)


def uncentred(arrays):
    """-sg(h) log p, by draws whose log-probs do not depend on the policy."""
    constant = jnp.zeros_like(arrays["aux_policy_logprobs"])
    return token_mc(arrays | {"aux_policy_logprobs": constant})


def plug_in(arrays):
    """The square of the mean residual of the draws, which lacks the leave-one-out."""

    def one(arrays):
        kernel = klpo_kernels.mc(
            *(arrays[n] for n in ("policy_logprobs", "rollout_logprobs", "action_mask", *AUX))
        )
        reward = jnp.max(jnp.where(arrays["action_mask"], arrays["advantages"], -jnp.inf))
        residual = reward - BETA * jnp.sum(kernel[1])
        return -residual * jnp.sum(kernel[0]), {"loss": residual**2 / (2 * BETA)}

    return jax.vmap(one)(arrays)


@functools.lru_cache
def compiled(function, num_draws, sampler, paths):
    """Of theta and rewards: the gradient [N, 2, V] and the metrics [N] of each trajectory."""

    def losses(theta, rewards):
        return function(everything(theta, rewards, num_draws, sampler, paths))

    return jax.jit(jax.jacfwd(losses, has_aux=True))


def each(function, num_draws, *, theta=THETA, rewards=REWARDS, sampler=SAMPLER, paths=PATHS):
    """Gradients, metrics and weights of all trajectories."""
    weights = trajectories(num_draws, sampler, paths)[-1]
    tables = [len(sampler[0]) ** (len(path) * num_draws) for path in paths]
    run = compiled(function, num_draws, sampler, paths)
    return *run(theta, np.repeat(rewards, tables)), weights


def mean_gradient(function, num_draws, **tree):
    gradients, _, weights = each(function, num_draws, **tree)
    return np.tensordot(weights, gradients, 1)


def variance(function, num_draws):
    """Trace of the covariance of the gradient of one trajectory."""
    gradients, _, weights = each(function, num_draws)
    squares = np.sum(np.square(gradients), axis=(1, 2))
    return np.sum(weights * squares) - np.sum(mean_gradient(function, num_draws) ** 2)


def mean_metric(function, name, num_draws):
    _, metrics, weights = each(function, num_draws)
    return np.sum(weights * metrics[name])


def test_the_tree_is_the_published_one():
    weights = trajectories(0, SAMPLER, PATHS)[-1]
    np.testing.assert_allclose(weights, [0.3, 0.25, 0.27, 0.135, 0.045])
    np.testing.assert_allclose(closed_form(), EXACT, atol=1e-9)


def test_the_closed_form_is_the_gradient_of_the_canonical_loss():
    def canonical(theta):
        log_ratio = jax.nn.log_softmax(theta) - jnp.log(Q)
        kl = -jnp.sum(Q * log_ratio, axis=1, keepdims=True)
        delta = (ACTION_VALUES - VALUES[:, None]) / BETA - log_ratio - kl
        return BETA / 2 * jnp.sum(VISITS[:, None] * Q * delta**2)

    loss, gradient = jax.jit(jax.value_and_grad(canonical))(THETA)
    np.testing.assert_allclose(loss, 0.901295452628, atol=1e-12)
    np.testing.assert_allclose(gradient, closed_form(), atol=1e-12)


@pytest.mark.parametrize(
    ("function", "num_draws"),
    [
        (token_full, 0),
        (token_mc, 1),
        (token_mc, 2),
        (sequence_full, 0),
        (sequence_mc, 2),
        (topk2, 0),
        (sequence_topk2, 0),
        (bellman, 0),
    ],
    ids=["full", "mc1", "mc2", "sequence", "sequence_mc2", "topk2", "sequence_topk2", "bellman"],
)
def test_unbiased(function, num_draws):
    gradient = mean_gradient(function, num_draws)
    np.testing.assert_allclose(gradient, closed_form(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "num_draws", "bias"),
    [
        (plug_in, 2, 0.0500644854589),
        (token_binary, 0, 0.0433966292301),
        (topk1, 0, 0.0204185565533),
        (uncentred, 1, 0.169313105897),
    ],
    ids=["plug_in", "binary", "topk1", "uncentred"],
)
def test_bias(function, num_draws, bias):
    gradient = mean_gradient(function, num_draws)
    worst = np.max(np.abs(gradient - closed_form()))
    np.testing.assert_allclose(worst, bias, rtol=0, atol=1e-12)


def test_binary_gradient():
    expected = [[0.100953841, 0.071361215, -0.172315056], [-0.207932342, 0.186346883, 0.021585459]]
    np.testing.assert_allclose(mean_gradient(token_binary, 0), expected, atol=1e-9)


def test_regression_loss_is_unbiased_by_pairs_of_draws_only():
    exact = mean_metric(sequence_full, "policy/regression_loss", 0)
    pairs = mean_metric(sequence_mc, "policy/regression_loss", 2)
    np.testing.assert_allclose(pairs, exact, atol=1e-12)
    plugged = mean_metric(plug_in, "loss", 2)
    np.testing.assert_allclose(plugged - exact, 0.0705589314232, atol=1e-12)


def test_variance_of_the_draws_falls_as_one_over_their_number():
    least = variance(token_full, 0)
    np.testing.assert_allclose(least, 0.326351556969, atol=1e-11)
    by_draws = [variance(token_mc, num_draws) for num_draws in (1, 2, 3)]
    expected = [1.09127228518, 0.708811921076, 0.58132513304]
    np.testing.assert_allclose(by_draws, expected, atol=1e-11)
    excess = (np.array(by_draws) - least) * [1, 2, 3]
    np.testing.assert_allclose(excess, excess[0], rtol=1e-11)


def test_at_the_optimum_the_gradient_is_zero_and_every_path_has_the_same_residual():
    tilted = Q * np.exp(ACTION_VALUES / BETA)
    optimum = tilted / tilted.sum(axis=1, keepdims=True)
    expected = [[0.203952224, 0.080283508, 0.715764268], [0.969261143, 0.008876319, 0.021862539]]
    np.testing.assert_allclose(optimum, expected, atol=1e-9)
    for function, num_draws in ((token_full, 0), (token_mc, 1), (sequence_mc, 2), (bellman, 0)):
        gradient = mean_gradient(function, num_draws, theta=np.log(optimum))
        np.testing.assert_allclose(gradient, 0.0, atol=1e-12)
    _, metrics, _ = each(sequence_full, 0, theta=np.log(optimum))
    np.testing.assert_allclose(metrics["policy/residual"], VALUES[0], atol=1e-12)


def test_bellman_residual_is_that_of_the_sequence_route_without_the_value():
    delta = each(bellman, 0)[1]["policy/residual"]
    residual = each(sequence_full, 0)[1]["policy/residual"]
    np.testing.assert_allclose(BETA * delta + VALUES[0], residual, atol=1e-12)


@pytest.mark.parametrize("function", [token_full, sequence_full], ids=["token", "sequence"])
def test_chance_in_the_environment_does_not_bias(function):
    """The reward of action 0 is .9 or -.5, each half of the times, instead of .2."""
    noisy = [mean_gradient(function, 0, rewards=(r, *REWARDS[1:])) for r in (0.9, -0.5)]
    assert np.abs(noisy[0] - noisy[1]).max() > 0.01
    np.testing.assert_allclose((noisy[0] + noisy[1]) / 2, closed_form(), atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [token_binary, token_full, sequence_binary, sequence_full],
    ids=["binary", "full", "sequence_binary", "sequence"],
)
def test_with_two_actions_binary_is_exact(function):
    gradient = mean_gradient(
        function,
        0,
        theta=np.array([[0.5, -0.2], [-0.6, 0.9]]),
        sampler=((0.3, 0.7), (0.6, 0.4)),
        paths=((0,), (1, 0), (1, 1)),
        rewards=(0.2, 1.1, -0.5),
    )
    expected = [[0.18457302, -0.18457302], [-0.396847255, 0.396847255]]
    np.testing.assert_allclose(gradient, expected, atol=1e-9)
