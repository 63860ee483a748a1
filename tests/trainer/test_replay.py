"""The trainer replays the sampler's choice of experts: the choice only, not the weights."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import trainer_cases as cases

from jaxrl_single import types
from jaxrl_single.data import packing, token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import forward

SHAPE = cases.real_config("tiny_moe")  # 4 experts, 2 of them for each token
ROUTING = packing.Routing(SHAPE.num_layers, SHAPE.experts_per_token, SHAPE.num_experts)
CHOICE = (1, 3)


@pytest.fixture(scope="module")
def policy():
    return api.build_policy(SHAPE)


@pytest.fixture(scope="module")
def params(policy):
    return policy.init(jax.random.key(0))


def routed(length, *, ticket, choice=CHOICE, unknown=()):
    """Every token of the episode takes the experts of `choice`; some are unknown."""
    plain = cases.trajectory([0] * 3 + [1] * (length - 3), ticket=ticket, seed=ticket)
    ids = np.broadcast_to(np.int16(choice), (length, SHAPE.num_layers, len(choice))).copy()
    ids[list(unknown)] = types.UNKNOWN_EXPERT
    return dataclasses.replace(plain, expert_ids=ids)


def make_micro(**options):
    given = [routed(length, ticket=i, **options) for i, length in enumerate((9, 7, 12))]
    return token_batch.micro_batch(cases.pack(given, rows=2, routing=ROUTING), 0)


@functools.cache
def program(policy):
    """(params, micro) -> log-probs, gradient of their sum over the sampled tokens."""

    def total(params, micro):
        outputs = forward.policy_forward(policy, params, micro, chunk=cases.CHUNK)
        return (outputs.logprobs * micro.action_mask).sum(), outputs.logprobs

    both = jax.jit(jax.value_and_grad(total, has_aux=True))

    def run(params, micro):
        (_, logprobs), gradient = both(params, micro)
        return jax.device_get((logprobs, gradient))

    return run


def of_experts(params, change):
    """Parameters whose router and experts went through `change`(array, axis of the experts)."""
    layers = dict(params["layers"])
    layers["router"] = {"kernel": change(layers["router"]["kernel"], 2)}
    layers["experts"] = {name: change(a, 1) for name, a in layers["experts"].items()}
    return {**params, "layers": layers}


def test_a_replayed_choice_is_that_of_a_model_with_no_other_experts(policy, params):
    """The weights are the router's own, renormalised over the two: equal to a router of two."""
    two = api.build_policy(dataclasses.replace(SHAPE, num_experts=2))
    kept = of_experts(params, lambda array, axis: np.take(array, CHOICE, axis))
    micro = make_micro()
    logprobs, gradient = program(policy)(params, micro)
    expected, slopes = program(two)(kept, dataclasses.replace(micro, expert_ids=None))
    np.testing.assert_allclose(logprobs, expected, atol=2e-5)
    found = of_experts(gradient, lambda array, axis: np.take(array, CHOICE, axis))
    cases.assert_close(found, slopes, atol=1e-4)  # sums over 19 tokens of up to 20 nats
    assert np.abs(slopes["layers"]["router"]["kernel"]).max() > 1e-3  # the router does learn
    others = of_experts(gradient, lambda array, axis: np.delete(array, CHOICE, axis))["layers"]
    assert not any(leaf.any() for leaf in jax.tree.leaves((others["router"], others["experts"])))


def test_the_choice_stays_when_the_router_has_moved_on(policy, params):
    """Whatever the other experts and their places in the router are, nothing changes."""

    def change(array, axis):
        moved = np.array(array)
        chosen = [slice(None)] * moved.ndim
        for expert in set(range(SHAPE.num_experts)) - set(CHOICE):
            chosen[axis] = expert
            moved[tuple(chosen)] = 3 - 5 * moved[tuple(chosen)]
        return moved

    micro, moved = make_micro(), of_experts(params, change)
    cases.assert_equal(program(policy)(params, micro)[0], program(policy)(moved, micro)[0])
    own = dataclasses.replace(micro, expert_ids=None)
    assert (program(policy)(params, own)[0] != program(policy)(moved, own)[0]).any()


def test_a_token_of_unknown_routing_takes_the_routers_choice(policy, params):
    micro = make_micro()
    nothing = np.full_like(micro.expert_ids, types.UNKNOWN_EXPERT)
    own = program(policy)(params, dataclasses.replace(micro, expert_ids=None))
    unknown = program(policy)(params, dataclasses.replace(micro, expert_ids=nothing))
    cases.assert_equal(unknown, own)
    # Tokens before the first known one are as without replay, in the same batch.
    mixed = program(policy)(params, make_micro(unknown=range(5)))[0]
    replayed = program(policy)(params, micro)[0]
    early = (micro.positions <= 5) & (micro.segment_ids > 0)
    np.testing.assert_array_equal(mixed[early], own[0][early])
    assert (mixed[early] != replayed[early]).any()
    assert (mixed[~early] != own[0][~early]).any()


def test_garbage_on_padding_changes_no_gradient(policy, params):
    micro = make_micro()
    padding = (micro.segment_ids == 0)[..., None, None]
    assert padding.any()
    garbage = dataclasses.replace(micro, expert_ids=np.where(padding, 30_000, micro.expert_ids))
    cases.assert_equal(program(policy)(params, garbage), program(policy)(params, micro))


def choosy_policy():
    """Moves hidden states by the number of the first expert; by itself it would take expert 0."""
    plain = cases.bigram_policy()

    def hidden(params, tokens, positions, segment_ids, expert_ids=None):
        states = plain.hidden(params, tokens)
        expert = 0 if expert_ids is None else expert_ids[..., 0, :1].astype(np.float32)
        return states + 0.1 * expert * np.float32([[np.arange(cases.VOCABULARY)]])

    def replay(params, tokens, positions, segment_ids, expert_ids):
        states = hidden(params, tokens, positions, segment_ids, expert_ids)
        return states, expert_ids[..., 0] > 0

    return dataclasses.replace(plain, hidden=hidden, replay=replay)


def test_the_reference_keeps_its_own_choice_and_the_fixed_log_probs_replay():
    """The KL to the reference sees the replay, the ratio to the policy before the update does not.

    Both are of the same weights here, so without a difference of routing both would be 0.
    """
    overrides = {"advantage": "batch_mean", "ratio_reference": "proximal"}
    trainer = cases.Trainer(policy=choosy_policy(), algorithm="three_spo", overrides=overrides)

    def metrics(choice):
        given = [routed(9, ticket=i, choice=choice) for i in range(4)]
        batch = cases.pack(given, rows=4, routing=ROUTING)
        state = trainer.state()
        state = dataclasses.replace(state, reference_params=trainer.state().policy_params)
        return trainer.step(batch, state=state)[1]

    own, other = metrics((0, 1)), metrics((3, 1))
    assert abs(own["policy/reference_kl"]) < 1e-6
    assert other["policy/reference_kl"] > 1e-3
    assert other["policy/clip_fraction"] == 0  # or the policy would differ from itself
    for name in ("routing/changed", "routing/changed_tokens"):
        assert (own[name], other[name]) == (0, 1)


def own_choice(policy, params, tokens):
    """[T, L, k] that the sampler's program records for the tokens of one segment."""
    cache = policy.init_cache(1, len(tokens))
    rows = [np.int32(row) for row in (tokens[None], [0], [0], [len(tokens)], [[0]])]
    return np.asarray(jax.jit(policy.prefill)(policy.serving(params), cache, *rows)[1][0])


def test_routers_tell_where_they_would_choose_other_experts(policy, params):
    tokens = np.random.default_rng(0).integers(0, cases.VOCABULARY, 16).astype(np.int32)
    own = own_choice(policy, params, tokens)
    replay = jax.jit(policy.replay)
    rows = tokens[None], np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    states, rerouted = replay(params, *rows, own[None])
    assert (rerouted.shape, rerouted.any()) == ((1, 16, SHAPE.num_layers), False)
    plain = jax.jit(policy.hidden)(params, *rows)
    np.testing.assert_allclose(states, plain, atol=2e-5)
    # The order says nothing; another expert in the place of one does; an unknown one does not.
    changed = own[:, :, ::-1].copy()
    for token, layer in ((3, 0), (7, 0), (15, 1)):
        changed[token, layer, 0] = min(set(range(4)) - set(own[token, layer].tolist()))
    changed[9] = types.UNKNOWN_EXPERT
    rerouted = np.asarray(replay(params, *rows, changed[None])[1][0])
    assert np.flatnonzero(rerouted[:, 0]).tolist() == [3, 7]
    assert rerouted[15, 1]
    assert not rerouted[:3].any(), "what comes before a change does not see it"
    padded = np.array(rows[2])
    padded[0, 7:] = 0
    rerouted = np.asarray(replay(params, *rows[:2], padded, changed[None])[1][0])
    assert np.flatnonzero(rerouted[:, 0]).tolist() == [3], "padding is not counted"


def test_the_step_reports_how_often_routing_would_change():
    """By tokens and layers: of 4 episodes of 9 tokens, two would be routed otherwise.

    In one of them a layer is as the router would choose, and nothing is known of two tokens.
    """
    trainer = cases.Trainer(policy=choosy_policy(), algorithm="m2po")
    given = [routed(9, ticket=i, choice=(0, 1)) for i in range(2)]
    given.append(routed(9, ticket=2, choice=(2, 1)))
    mixed = routed(9, ticket=3, choice=(3, 1), unknown=(0, 1)).expert_ids.copy()
    mixed[2:, 1, 0] = 0
    given.append(dataclasses.replace(routed(9, ticket=3), expert_ids=mixed))
    batch = cases.pack(given, rows=2, micro=1, routing=ROUTING)
    assert batch.tokens.shape[0] > 1, "several micro-batches"
    metrics = trainer.step(batch)[1]
    known, layers = 9 + 9 + 9 + 7, SHAPE.num_layers
    assert float(metrics["routing/changed_tokens"]) == pytest.approx((9 + 7) / known)
    changed = 9 * layers + 7 * (layers - 1)
    assert float(metrics["routing/changed"]) == pytest.approx(changed / (known * layers))
