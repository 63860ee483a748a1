"""The wire's messages survive JSON exactly, and broken ones are refused with their field."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxrl_single import types, wire

# Three fields of what a sampler may record; the last holds an impossible token.
RECORDED = {
    "topk_tokens": [[3, 1], [6, 0]],
    "topk_logprobs": [[float(np.float32(-0.1)), -5.0], [0.0, -math.inf]],
    "full_logprobs": [[-1.0, -math.inf], [-2.0, float(np.float32(-0.3))]],
}
REQUEST = wire.Request(
    session="000000007-1",
    ticket=7,
    attempt=1,
    turn=2,
    tokens=[1, 5, 9],
    max_new_tokens=4,
    stop_token_ids=(6, 2),
    temperature=0.7,
)
COMPLETION = wire.Completion(
    tokens=[3, 6],
    logprobs=[float(np.float32(-0.1)), float(np.float32(-1e-7))],
    entropies=[0.0, float(np.float32(3.3))],
    policy_versions=[4, 5],
    finish_reason="stop",
)


def test_request_and_completion_survive_json_exactly():
    request = json.loads(json.dumps(wire.request_to_json(REQUEST)))
    assert wire.request_from_json(request) == REQUEST
    completion = json.loads(json.dumps(wire.completion_to_json(COMPLETION)))
    assert wire.completion_from_json(completion) == COMPLETION
    assert np.float32(wire.completion_from_json(completion).logprobs[0]) == np.float32(-0.1)


def test_recorded_rows_survive_json_exactly():
    given = dataclasses.replace(COMPLETION, **RECORDED)
    message = json.loads(
        json.dumps(wire.completion_to_json(given), allow_nan=False), parse_constant=pytest.fail
    )
    assert "aux_tokens" not in message
    assert wire.completion_from_json(message) == given


def test_every_field_survives_json_exactly():
    request = dataclasses.replace(
        REQUEST,
        seed=2**32 - 1,
        top_k=20,
        top_p=0.95,
        min_p=0.1,
        logit_bias=((3, -1.5), (4, 100.0)),
        allowed_token_ids=(3, 4, 6),
        stop=("</s>", "\n\n"),
        forced_tokens=(1, 2, 3, 4),
        record=False,
        policy_version=0,
    )
    completion = dataclasses.replace(
        COMPLETION,
        **RECORDED,
        logprobs=[-math.inf, 0.0],
        aux_tokens=[[1], [2]],
        aux_logprobs=[[-1.0], [-2.0]],
        untruncated_logprobs=[-3.0, -0.5],
        stop_reason=6,
        num_cached_tokens=2,
        expert_ids=[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[1, 0], [1, 2]]],
        expert_start=1,
    )
    for given, write, read in (
        (request, wire.request_to_json, wire.request_from_json),
        (completion, wire.completion_to_json, wire.completion_from_json),
    ):
        defaults = [
            f.name for f in dataclasses.fields(given) if getattr(given, f.name) == f.default
        ]
        assert not defaults  # else this test leaves a field out
        assert read(json.loads(json.dumps(write(given), allow_nan=False))) == given


def test_fields_at_their_defaults_are_left_out_and_may_be():
    assert set(wire.request_to_json(dataclasses.replace(REQUEST, temperature=1.0))) == {
        "session",
        "ticket",
        "attempt",
        "turn",
        "tokens",
        "max_new_tokens",
        "stop_token_ids",
    }
    assert "expert_start" not in wire.completion_to_json(COMPLETION)


def test_numpy_ids_become_json():
    request = wire.Request(
        "s",
        0,
        0,
        0,
        list(np.arange(1, 4, dtype=np.int32)),
        1,
        (6,),
        allowed_token_ids=tuple(np.arange(2)),
        logit_bias=((np.int64(3), np.float32(0.5)),),
    )
    message = json.loads(json.dumps(wire.request_to_json(request)))
    assert message["tokens"] == [1, 2, 3]
    assert message["allowed_token_ids"] == [0, 1]
    assert message["logit_bias"] == [[3, 0.5]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": [1, "2"]}, "tokens"),
        ({"tokens": [True]}, "tokens"),
        ({"ticket": 1.5}, "ticket"),
        ({"temperature": "hot"}, "temperature is 'hot', expected float"),
        ({"seed": None}, "seed is None, expected int"),
        ({"top_k": True}, "top_k is True"),
        ({"record": 1}, "record is 1, expected bool"),
        ({"logit_bias": [[1, 2.0], [1]]}, "logit_bias is .*expected list"),
        ({"logit_bias": [[1.5, 2.0]]}, "logit_bias is"),
        ({"logit_bias": {"1": 2.0}}, "logit_bias is"),
        ({"stop": "END"}, r"stop is 'END', expected list\[str\]"),
        ({"stop": ["END", 3]}, "stop is"),
        ({"forced_tokens": [1, None]}, "forced_tokens is"),
        ({"tokens": {}}, "tokens is {}"),
        ({"max_tokens": 3}, "unknown fields .*max_tokens"),
    ],
)
def test_a_broken_request_names_its_field(change, named):
    with pytest.raises(wire.InvalidMessage, match=named):
        wire.request_from_json(wire.request_to_json(REQUEST) | change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"logprobs": [0.0]}, "logprobs has 1 entries for 2 tokens"),
        ({"finish_reason": "eos"}, "'eos'.*allowed are"),
        ({"policy_versions": [1, None]}, "policy_versions"),
        ({"aux_tokens": [[1]]}, "aux_tokens has 1 entries for 2 tokens"),
        ({"aux_tokens": [[1], [1.5]]}, "aux_tokens is .*expected list"),
        ({"topk_logprobs": [[-1.0], ["x"]]}, "topk_logprobs is"),
        ({"full_logprobs": None}, "full_logprobs is None"),
        ({"untruncated_logprobs": [0.0]}, "untruncated_logprobs has 1 entries for 2 tokens"),
        ({"entropies": [0.0, None]}, "entropies is"),
        ({"stop_reason": 1.5}, "stop_reason is 1.5, expected int or str"),
        ({"expert_ids": [[1, 2]]}, "expert_ids is"),
        ({"routes": [[1], [2]]}, "unknown fields .*routes"),
    ],
)
def test_a_broken_completion_names_its_field(change, named):
    with pytest.raises(wire.InvalidMessage, match=named):
        wire.completion_from_json(wire.completion_to_json(COMPLETION) | change)


@pytest.mark.parametrize("message", [None, [], "request", {"session": "s"}])
def test_other_json_is_refused(message):
    with pytest.raises(wire.InvalidMessage):
        wire.request_from_json(message)


def test_wire_and_trajectories_know_the_same_names():
    assert wire.FINISH_REASONS == types.FINISH_REASONS
    assert list(wire.RECORDED_FIELDS) == list(types.ACTION_FIELDS)
