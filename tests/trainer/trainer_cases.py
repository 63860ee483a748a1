"""Trajectories, batches and small models for the trainer's tests."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import types
from jaxrl_single.algorithms import table
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import packing
from jaxrl_single.models import api, sizes
from jaxrl_single.trainer import optim, step
from jaxrl_single.trainer import state as state_lib

VOCABULARY = 12
CHUNK = 16
CRITIC_RULES = (("value_head/.*", "train"), (".*/(experts|mlp)/.*", "train"), (".*", "frozen"))


def trajectory(mask, *, rng=None, seed=0, ticket=0, reward=None, **changes):
    """A finished episode with the given action mask; everything else is random but valid."""
    rng = rng or np.random.default_rng(seed)
    mask = np.array(mask, bool)
    length = len(mask)
    reward = float(rng.integers(2)) if reward is None else reward
    rewards = np.zeros(length, np.float32)
    rewards[np.flatnonzero(mask)[-1]] = reward
    fields = {
        "run_id": "run",
        "ticket": ticket,
        "attempt": 0,
        "task_id": f"task/{ticket}",
        "group_id": ticket,
        "tokens": rng.integers(0, VOCABULARY, length).astype(np.int32),
        "action_mask": mask,
        "rollout_logprobs": np.where(mask, rng.uniform(-4, -1, length), 0).astype(np.float32),
        "policy_versions": np.where(mask, 0, types.NOT_SAMPLED).astype(np.int32),
        "turn_ids": np.cumsum(np.diff(mask, prepend=False) & mask, dtype=np.int32),
        "rewards": rewards,
        "entropies": np.where(mask, rng.uniform(0, 3, length), 0).astype(np.float32),
        "segment_ids": np.ones(length, np.int32),
        "reward": reward,
        "terminated": True,
        "truncated": False,
    }
    made = types.Trajectory(**(fields | changes))
    types.validate(made)
    return made


def trajectories(number, *, seed=0, longest=20):
    """Of several lengths and turns, so that packing and denominators have something to mix up."""
    rng = np.random.default_rng(seed)
    made = []
    for ticket in range(number):
        mask = [False] * int(rng.integers(1, 4))
        while not any(mask) or (len(mask) < longest - 6 and rng.random() < 0.6):
            mask += [True] * int(rng.integers(1, 5)) + [False] * int(rng.integers(0, 3))
        temperature = float(rng.choice([0.7, 1.0]))
        made.append(trajectory(mask, rng=rng, ticket=ticket, temperature=temperature))
    return made


def pack(
    given,
    *,
    rows=8,
    micro=None,
    row_length=24,
    slots=None,
    on_limit="terminal",
    recorded=None,
    routing=None,
):
    return packing.pack(
        given,
        num_trajectories=slots or max(len(given), 1),
        row_length=row_length,
        rows_per_micro_batch=micro or rows,
        row_buckets=(rows,),
        on_limit=on_limit,
        recorded=recorded or {},
        routing=routing,
    )


def real_config(size):
    return sizes.get(size, vocab_size=VOCABULARY)


_REAL = api.build_policy(real_config("tiny"))


def policy_of(**functions):
    """A policy of the given functions, in the place of a real one's."""
    return dataclasses.replace(_REAL, **functions)


def small_policy(size=8):
    """Reads the mean of what came before in the segment: causal, and quick to compile."""

    def init(key):
        keys = jax.random.split(key, 3)
        draw = lambda key, *shape: jax.random.normal(key, shape)  # noqa: E731
        return {
            "embedding": {"table": draw(keys[0], VOCABULARY, size)},
            "layers": {"mlp": {"up": draw(keys[1], 1, size, size)}},
            "unembedding": {"table": draw(keys[2], VOCABULARY, size)},
        }

    return policy_of(
        init=init,
        hidden=_mean_of_segment,
        unembedding=lambda params: params["unembedding"]["table"],
    )


def small_critic(size=8):
    """The same with a value head."""

    def init(key):
        params = small_policy(size).init(key)
        head = {"kernel": 0.3 * jnp.ones((size, 1)), "bias": jnp.zeros((1,))}
        return {name: params[name] for name in ("embedding", "layers")} | {"value_head": head}

    def values(params, *rows):
        head = params["value_head"]
        return (_mean_of_segment(params, *rows) @ head["kernel"])[..., 0] + head["bias"][0]

    return api.Critic(config=real_config("tiny"), init=init, values=values, from_policy=None)


def _mean_of_segment(params, tokens, positions, segment_ids, expert_ids=None):
    del expert_ids  # it has no experts
    real = segment_ids > 0
    table = params["embedding"]["table"]
    onehot = jax.nn.one_hot(jnp.where(real, tokens, 0), VOCABULARY)
    embedded = jnp.where(real[..., None], onehot @ table, 0.0)
    place = jnp.arange(tokens.shape[1])
    seen = segment_ids[:, :, None] == segment_ids[:, None, :]
    seen = seen & (place[:, None] >= place[None, :])[None]
    count = jnp.where(real, positions + 1, 1)[..., None]
    mean = jnp.einsum("bts,bsd->btd", seen.astype(jnp.float32), embedded) / count
    return jnp.tanh(mean @ params["layers"]["mlp"]["up"][0]) + embedded


def bigram_policy():
    """Logits of the next token are a row of `params["unembedding"]["table"].T`: [next, token]."""
    return policy_of(
        init=lambda key: {
            "unembedding": {"table": jax.random.normal(key, (VOCABULARY, VOCABULARY))}
        },
        hidden=lambda params, tokens, *_: jax.nn.one_hot(tokens, VOCABULARY),
        unembedding=lambda params: params["unembedding"]["table"],
    )


def lookup_critic():
    """The value after a token is its entry in `params["value_head"]["kernel"]`."""
    return api.Critic(
        config=real_config("tiny"),
        init=lambda key: {"value_head": {"kernel": jax.random.normal(key, (VOCABULARY,))}},
        values=lambda params, tokens, *_: (
            jax.nn.one_hot(tokens, VOCABULARY) @ params["value_head"]["kernel"]
        ),
        from_policy=None,
    )


def optimizer(params, *, rules=optim.ALL_TRAIN, transform=None, clip_norm=0.0):
    transform = transform or optim.adamw(0.05, b1=0.9, b2=0.95, weight_decay=0.1)
    return optim.build(params, rules=rules, transforms={"train": transform}, clip_norm=clip_norm)


class Trainer:
    """Models, optimisers and a jitted train step over them."""

    def __init__(
        self,
        *,
        policy=None,
        critic=None,
        algorithm="sao",
        overrides=None,
        policy_transform=None,
        critic_transform=None,
        critic_rules=CRITIC_RULES,
        clip_norm=0.0,
        critic_first=True,
        kl=None,
        state_shardings=None,
    ):
        self.policy = policy or small_policy()
        self.critic = critic or small_critic()
        self.algorithm = table.get(algorithm, overrides)
        policy_params = self.policy.init(jax.random.key(1))
        critic_params = self.critic.init(jax.random.key(2))
        policy_optimizer = optimizer(policy_params, transform=policy_transform, clip_norm=clip_norm)
        critic_optimizer = optimizer(
            critic_params, rules=critic_rules, transform=critic_transform, clip_norm=clip_norm
        )
        self.initial = state_lib.init_train_state(
            policy_params,
            critic_params,
            policy_optimizer=policy_optimizer,
            critic_optimizer=critic_optimizer,
            reference_params={},
            algorithm_state=update_lib.init_state(self.algorithm, num_tasks=8),
            key=jax.random.key(3),
        )
        self.jitted = step.make_train_step(
            self.policy,
            self.critic,
            self.algorithm,
            policy_optimizer=policy_optimizer,
            critic_optimizer=critic_optimizer,
            critic_first=critic_first,
            chunk=CHUNK,
            kl=kl,
            state_shardings=state_shardings,
        )

    def state(self):
        """A fresh copy of the initial state: steps donate what they get."""
        return jax.tree.map(jnp.copy, self.initial)

    def step(self, batch, *, state=None, critic_only=False):
        state = self.state() if state is None else state
        return self.jitted(state, batch, np.bool_(critic_only))[:2]

    def evidence(self, batch, *, critic_only=False):
        """What the first step from the initial state says about each token."""
        return self.jitted(self.state(), batch, np.bool_(critic_only))[2]


def assert_equal(left, right):
    """Two pytrees are the same, bit for bit (NaN equals NaN)."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True
    ):
        name = optim.path_name(path)
        np.testing.assert_array_equal(_plain(a), _plain(b), err_msg=name, strict=True)


def assert_close(left, right, *, atol):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True
    ):
        name = optim.path_name(path)
        np.testing.assert_allclose(_plain(a), _plain(b), atol=atol, rtol=atol, err_msg=name)


def any_differs(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return any((_plain(a) != _plain(b)).any() for a, b in pairs)


def _plain(leaf):
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
