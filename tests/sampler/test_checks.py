"""What the engine refuses: the message names the session, the field and what is allowed."""

import dataclasses

import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single.sampler import checks


def _tokens(request, **changes) -> np.ndarray:
    return checks.request_tokens(request, **({"vocab_size": 24} | changes))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": []}, "tokens must be a list of at least one"),
        ({"tokens": [1, 24]}, r"tokens\[1\] is 24, ids are 0 .. 23"),
        ({"tokens": [3, 4, -1]}, r"tokens\[2\] is -1, ids"),
        ({"tokens": [1, 2**70]}, rf"tokens\[1\] is {2**70}, ids are"),
        ({"tokens": [-(2**63), 2]}, r"tokens\[0\] is -9223372036854775808, ids are"),
        ({"forced_tokens": (1, 2, 3, 4, 5, 99)}, r"forced_tokens\[5\] is 99"),
        ({"forced_tokens": (1,) * 7}, "7 forced_tokens, max_new_tokens is 6; it must be"),
        ({"allowed_token_ids": (-3,)}, r"allowed_token_ids\[0\] is -3"),
        ({"allowed_token_ids": (1,) * 301}, "allowed_token_ids names 301 tokens, at most 300"),
        ({"logit_bias": ((24, 1.0),)}, r"logit_bias\[0\] is 24"),
        ({"logit_bias": ((3, 1.0), (5, 0.0), (3, 2.0))}, "logit_bias names token 3 twice"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias of token 3 is nan, must lie in -1000"),
        ({"logit_bias": ((3, -1e9),)}, "logit_bias of token 3 is -1000000000.0"),
        ({"stop_token_ids": (2**31,)}, r"stop_token_ids\[0\] is 2147483648"),
        ({"stop_token_ids": (-1,)}, r"stop_token_ids\[0\] is -1"),
        ({"stop_token_ids": tuple(range(9))}, "9 stop_token_ids, at most 8"),
        ({"stop": ("a", "")}, r"stop \('a', ''\); a stop string must not be empty"),
        ({"temperature": -0.5}, "temperature -0.5, must be 0 .greedy. or in 0.0001 .. 10000"),
        ({"temperature": 1e-9}, "temperature 1e-09"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"max_new_tokens": 0}, "max_new_tokens 0, must be >= 1"),
        ({"top_k": -1}, "top_k -1, must be >= 0"),
        ({"top_p": 0.0}, r"top_p 0.0, must be in \(0, 1\]"),
        ({"top_p": float("nan")}, "top_p nan"),
        ({"min_p": 1.5}, r"min_p 1.5, must be in \[0, 1\]"),
        ({"seed": -1}, "seed -1, must lie in 0 .. 2.32 - 1"),
        ({"seed": 2**32}, "seed 4294967296"),
        ({"ticket": 2**32}, "ticket 4294967296"),
        ({"turn": -1}, "turn -1"),
    ],
)
def test_a_wrong_request_is_refused_by_field(change, named):
    with pytest.raises(ValueError, match=f"request of session 'bad': {named}"):
        _tokens(lab.request("bad", **change))


def test_the_ends_of_what_is_allowed_are_allowed():
    request = lab.request(
        tokens=[0, 23],
        max_new_tokens=300,
        forced_tokens=tuple(range(24)) * 12 + tuple(range(12)),
        allowed_token_ids=tuple(range(24)) * 12 + tuple(range(12)),
        logit_bias=((0, -1000.0), (23, 1000.0)),
        stop_token_ids=(0, 24, 2**31 - 1),
        stop=("end",),
        temperature=1e-4,
        top_k=10**30,
        top_p=1e-300,
        min_p=1.0,
        seed=2**32 - 1,
        ticket=2**32 - 1,
    )
    tokens = _tokens(request)
    assert tokens.tolist() == [0, 23]
    assert tokens.dtype == np.int32
    _tokens(dataclasses.replace(request, temperature=0.0, seed=0, top_p=1.0, min_p=0.0))


def test_stop_strings_need_text():
    with pytest.raises(ValueError, match="no tokenizer, use stop_token_ids"):
        _tokens(lab.request(stop=("x",)), has_text=False)
    assert _tokens(lab.request(), has_text=False).tolist() == [1, 2, 3]


def test_one_wrong_token_of_many_is_found():
    tokens = np.random.default_rng(0).integers(0, 24, 100_000).tolist()
    np.testing.assert_array_equal(_tokens(lab.request(tokens=tokens)), tokens)
    tokens[77_777] = 24
    with pytest.raises(ValueError, match=r"tokens\[77777\] is 24"):
        _tokens(lab.request(tokens=tokens))


def test_weights_of_another_form_are_refused_by_name():
    params = lab.params_of("tiny_moe", 0)
    checks.same_form(params, dict(params))
    for changed, named in (
        ({"final_norm": {"scale": np.ones(3, np.float32)}}, r"final_norm/scale is \(\(3,\)"),
        ({"final_norm": {}}, "final_norm/scale is None"),
        ({"value_head": np.ones(1)}, r"value_head .* expected None"),
    ):
        with pytest.raises(ValueError, match=named):
            checks.same_form(params, params | changed)
