"""What the engine refuses, and what it says then."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import param_tree, wire
from jaxrl_single.models import api
from jaxrl_single.sampler import restrict
from jaxrl_single.sampler import slots as slots_lib

_UINT32_FIELDS = ("ticket", "attempt", "turn", "seed")  # name a token's randomness
_LARGEST_BIAS = 1000  # nats: forbids a token, or all others
_RANGES = {  # field -> what it must be, in words and as a test that NaN fails
    "max_new_tokens": (">= 1", lambda number: number >= 1),
    # Logits that are divided by less may be infinite.
    "temperature": (
        "0 (greedy) or in 0.0001 .. 10000",
        lambda number: number == 0 or 1e-4 <= number <= 1e4,
    ),
    "top_k": (">= 0 (0 = off)", lambda number: number >= 0),
    "top_p": ("in (0, 1]", lambda number: 0 < number <= 1),
    "min_p": ("in [0, 1]", lambda number: 0 <= number <= 1),
}


class NotFinite(FloatingPointError):
    """The weights, finite themselves, compute no distribution for an episode; others go on.

    Attributes:
      place: of the token that could not be sampled, from 0 in the episode.
    """

    def __init__(self, session: str, *, version: int, place: int, num_sampled: int):
        super().__init__(
            f"session {session!r}: the weights of version {version} give logits that are not "
            f"finite for token {place} of the episode, after {num_sampled} sampled ones; nothing "
            "is sampled from them. Look for a weight that is much too large, or compute in float32"
        )
        self.place = place


def request_tokens(request: wire.Request, *, vocab_size: int, has_text: bool = True) -> np.ndarray:
    """request.tokens as int32, after all of the request was found right.

    Args:
      has_text: whether the engine can turn tokens into text, which stop strings need.

    Raises:
      ValueError: something is wrong; the message names the session and the field.
    """
    where = f"request of session {request.session!r}"
    if not len(request.tokens):
        raise ValueError(f"{where}: tokens must be a list of at least one token id")
    for name in ("tokens", "forced_tokens", "allowed_token_ids"):
        _ids(getattr(request, name), vocab_size, f"{where}: {name}")
    _ids(request.stop_token_ids, 2**31, f"{where}: stop_token_ids")
    _numbers(request, where)
    _limits(request, vocab_size, where)
    if len(request.forced_tokens) > request.max_new_tokens:
        raise ValueError(
            f"{where}: {len(request.forced_tokens)} forced_tokens, max_new_tokens is "
            f"{request.max_new_tokens}; it must be their number or more"
        )
    if len(request.stop_token_ids) > slots_lib.MAX_STOP_TOKENS:
        raise ValueError(
            f"{where}: {len(request.stop_token_ids)} stop_token_ids, "
            f"at most {slots_lib.MAX_STOP_TOKENS}"
        )
    if request.stop and not has_text:
        raise ValueError(
            f"{where}: stop {request.stop}; this engine has no tokenizer, use stop_token_ids"
        )
    if not all(request.stop):
        raise ValueError(f"{where}: stop {request.stop}; a stop string must not be empty")
    return np.asarray(request.tokens, np.int32)


def same_form(ours: api.Params, theirs: api.Params) -> None:
    """Raises ValueError unless both have the same paths, shapes and dtypes."""
    forms = [
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): (leaf.shape, leaf.dtype)
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        }
        for params in (ours, theirs)
    ]
    odd = sorted(path for path in forms[0] | forms[1] if forms[0].get(path) != forms[1].get(path))
    if odd:
        path = odd[0]
        raise ValueError(
            f"these weights do not fit the engine's model: {path} is {forms[1].get(path)}, "
            f"expected {forms[0].get(path)} (shape, dtype; None = absent); "
            f"{len(odd)} tensors differ in all"
        )


def finite(params: api.Params) -> None:
    """Raises ValueError if a number of params is infinite or not a number."""
    odd = [path for path, leaf in param_tree.flatten(params).items() if not _is_finite(leaf)]
    if odd:
        raise ValueError(
            f"these weights can't be used: {odd[0]} holds a number that is not finite; "
            f"{len(odd)} tensors do in all"
        )


def _is_finite(leaf: np.ndarray | jax.Array) -> bool:
    """Where it lies: arrays of the host are not sent to a device for this."""
    if isinstance(leaf, jax.Array):
        return bool(jnp.isfinite(leaf).all())
    return param_tree.not_finite(leaf) is None


def _ids(ids: Sequence[int], vocab_size: int, where: str) -> None:
    """Raises ValueError for the first of the ids that is not in the vocabulary."""
    try:
        numbers = np.asarray(ids, np.int64)
    except OverflowError:
        numbers = np.asarray([min(max(number, -1), vocab_size) for number in ids], np.int64)
    odd = np.flatnonzero((numbers < 0) | (numbers >= vocab_size))
    if len(odd):
        raise ValueError(f"{where}[{odd[0]}] is {ids[odd[0]]}, ids are 0 .. {vocab_size - 1}")


def _numbers(request: wire.Request, where: str) -> None:
    for name in _UINT32_FIELDS:
        number = getattr(request, name)
        if number is not None and not 0 <= number < 2**32:
            raise ValueError(f"{where}: {name} {number}, must lie in 0 .. 2^32 - 1")
    for name, (allowed, is_right) in _RANGES.items():
        number = getattr(request, name)
        if not is_right(number):
            raise ValueError(f"{where}: {name} {number}, must be {allowed}")


def _limits(request: wire.Request, vocab_size: int, where: str) -> None:
    """Checks biases and allowed tokens: how many, which, and that one can be drawn."""
    biased = [token for token, _ in request.logit_bias]
    _ids(biased, vocab_size, f"{where}: logit_bias")
    for name, tokens in (("logit_bias", biased), ("allowed_token_ids", request.allowed_token_ids)):
        if len(tokens) > restrict.MAX_BIASED:
            raise ValueError(
                f"{where}: {name} names {len(tokens)} tokens, at most {restrict.MAX_BIASED}"
            )
    twice = [token for token, count in collections.Counter(biased).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: logit_bias names token {twice[0]} twice; name it once")
    for token, value in request.logit_bias:
        if not -_LARGEST_BIAS <= value <= _LARGEST_BIAS:
            raise ValueError(
                f"{where}: logit_bias of token {token} is {value}, "
                f"must lie in -{_LARGEST_BIAS} .. {_LARGEST_BIAS}"
            )
