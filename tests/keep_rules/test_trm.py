"""TRM and its proxies: published cases, both limits, padding of the vocabulary."""

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import trm
from tests.keep_rules import fixture

exact = jax.jit(trm.trm, static_argnums=4)
PROXIES = {
    name: jax.jit(getattr(trm, name), static_argnums=3)
    for name in ("trm_k2_max", "trm_k3_max", "trm_k3_mean")
}

LOG_RATIO = np.float32(fixture.LOG_RATIO)
OWNERS = (fixture.MASK, fixture.INDEX, 1)


def rows_with(kls):
    """Rows of two tokens, rollout (1/2, 1/2), with the given KL(rollout || policy).

    That divergence of (p, 1 - p) is -log(4 p (1 - p)) / 2.
    """
    p = 0.5 + 0.5 * np.sqrt(1.0 - np.exp(-2.0 * np.asarray(kls)))
    return np.float32(np.log(np.stack([p, 1 - p], -1))), np.full((len(kls), 2), np.log(0.5))


@pytest.mark.parametrize(
    ("kls", "by_max", "by_mean"),
    [
        ((0.01, 0.02, 0.004), 1, 0),
        ((0.0, 0.06, 0.0), 0, 0),
        ((0.0005, 0.0009, 0.0012), 1, 1),
    ],
)
def test_published_limits(kls, by_max, by_mean):
    policy, rollout = rows_with(kls)
    owners = (np.ones(3, bool), np.zeros(3, np.int32), 1)
    for max_kl, mean_kl, expected in (
        (0.05, np.inf, by_max),
        (np.inf, 0.001, by_mean),
        (0.05, 0.001, by_max * by_mean),
    ):
        keep = exact(policy, np.float32(rollout), *owners, max_kl=max_kl, mean_kl=mean_kl)
        np.testing.assert_array_equal(keep, np.full(3, expected))


def test_the_divergence_is_of_rollout_to_policy():
    """(0.9, 0.1) against (0.5, 0.5): 0.368 nats this way, 0.511 the other."""
    rollout, policy = np.float32(np.log([[0.9, 0.1]])), np.float32(np.log([[0.5, 0.5]]))
    owners = (np.ones(1, bool), np.zeros(1, np.int32), 1)
    for limit, expected in ((0.368, 0.0), (0.3682, 1.0)):
        assert exact(policy, rollout, *owners, max_kl=limit, mean_kl=np.inf)[0] == expected


def test_tokens_that_the_sampler_could_not_draw_have_no_share():
    rollout, policy = np.float32([[0.0, -np.inf]]), np.float32(np.log([[0.5, 0.5]]))
    owners = (np.ones(1, bool), np.zeros(1, np.int32), 1)
    for limit, expected in ((0.6931, 0.0), (0.6932, 1.0)):  # log 2
        assert exact(policy, rollout, *owners, max_kl=limit, mean_kl=limit)[0] == expected


@pytest.mark.parametrize(
    ("name", "statistic"),
    [
        ("trm_k2_max", 2.650949055),
        ("trm_k3_max", 3.208240531),
        ("trm_k3_mean", 0.925985040),
    ],
)
def test_proxies_on_the_fixture_of_all_gates(name, statistic):
    for factor, expected in ((0.999999, "00000"), (1.000001, "11111")):
        assert fixture.bits(PROXIES[name](LOG_RATIO, *OWNERS, limit=statistic * factor)) == expected
