"""What the engine refuses, and what it says then."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl_single import wire
from jaxrl_single.models import api
from jaxrl_single.sampler import slots as slots_lib


def request_tokens(request: wire.Request, *, vocab_size: int) -> np.ndarray:
    """request.tokens as int32, after all of the request was found right."""
    where = f"request of session {request.session!r}"
    tokens = np.asarray(request.tokens, np.int32)
    if tokens.ndim != 1 or not len(tokens):
        raise ValueError(f"{where}: tokens must be a list of at least one token id")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        at = int(np.flatnonzero((tokens < 0) | (tokens >= vocab_size))[0])
        raise ValueError(f"{where}: tokens[{at}] is {tokens[at]}, ids are 0 .. {vocab_size - 1}")
    if not 0 < request.temperature < float("inf"):
        raise ValueError(f"{where}: temperature {request.temperature}, must be > 0 and finite")
    if request.max_new_tokens < 1:
        raise ValueError(f"{where}: max_new_tokens {request.max_new_tokens}, must be >= 1")
    if len(request.stop_token_ids) > slots_lib.MAX_STOP_TOKENS:
        raise ValueError(
            f"{where}: {len(request.stop_token_ids)} stop_token_ids, "
            f"at most {slots_lib.MAX_STOP_TOKENS}"
        )
    return tokens


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
