"""A vLLM server as a `SamplerClient`: token ids in and out, a log-prob and a version per token.

vLLM keeps nothing of a session but its prefix cache, so any turn is a request of its own. When
its weights change it ends the requests it is working on; their tokens are kept, and the turn goes
on from them under the new weights, within the same budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from jaxrl_single import types, wire
from jaxrl_single.rollout import connections

# Whole rows cost JSON for every entry. From them follow the entropies, which vLLM does not give.
MAX_ROW = 512
_VERB = "inference/v1/generate"
_RETRY_S = 1.0  # between tries when the server does not answer
_log = logging.getLogger(__name__)


class _Failed(Exception):
    """No answer, or one that says that the server is not well."""


class VllmClient:
    """Samples over POST /inference/v1/generate of vLLM. Use it on one event loop.

    Entropies are NaN when the vocabulary has more than MAX_ROW tokens or a request restricts them.

    Args:
      url: of a server that `launch/vllm.sh` has started.
      context_length: most tokens of an episode.
      vocab_size: V.
      seed: of all draws; with the names in a request it makes the seed of each.
      record: likeliest tokens and whole rows are possible, the latter up to MAX_ROW tokens.
      token: the server's --api-key, or None.
      patience_s: seconds from the first failure of a request in which a later try must succeed.
      on_unknown_weights: called when the server, started again perhaps, samples with weights that
        have no version; the request is tried again.

    Raises:
      ValueError: vLLM can't record this.
    """

    def __init__(
        self,
        url: str,
        *,
        context_length: int,
        vocab_size: int,
        seed: int,
        record: types.Record = types.RECORD_NOTHING,
        token: str | None = None,
        patience_s: float = 600.0,
        on_unknown_weights: Callable[[], None] = lambda: None,
    ):
        self._url = url.rstrip("/")
        self._context_length = context_length
        self._whole = vocab_size <= MAX_ROW
        if record.num_aux or record.experts or (record.full and not self._whole):
            raise ValueError(
                f"vLLM records no further draws, no experts, and whole rows of at most {MAX_ROW} "
                f"tokens; asked for {record} with {vocab_size} tokens"
            )
        self._record = record
        self._seed = seed
        self._token = token
        self._patience_s = patience_s
        self._on_unknown_weights = on_unknown_weights
        self._http: aiohttp.ClientSession | None = None
        self._running: dict[str, asyncio.Task] = {}
        self._num_posted = 0
        self._busy_since = 0.0
        self._busy_seconds = 0.0
        self.num_tokens = 0

    @property
    def num_running(self) -> int:
        """Requests without an answer."""
        return len(self._running)

    @property
    def busy_seconds(self) -> float:
        """In which the server had at least one request of ours."""
        running = time.monotonic() - self._busy_since if self._num_posted else 0.0
        return self._busy_seconds + running

    async def generate(self, request: wire.Request) -> wire.Completion:
        """See `client.SamplerClient`.

        Raises:
          ValueError: the request is wrong, or asks for what vLLM can't do.
          FloatingPointError: a log-prob is not finite.
          RuntimeError: the server has not answered for `patience_s`.
        """
        _refuse(request)
        turn = _Turn(request, self._record if request.record else types.RECORD_NOTHING)
        limit = min(request.max_new_tokens, self._context_length - len(request.tokens))
        while len(turn.tokens) < limit:
            task = asyncio.ensure_future(self._choice(request, turn, limit))
            self._running[request.session] = task
            try:
                choice = await task
            except asyncio.CancelledError:
                if self._running.get(request.session) is task:
                    raise  # somebody cancelled us, not the session
                return turn.completion("cancelled")
            finally:
                if self._running.get(request.session) is task:
                    del self._running[request.session]
            whole = self._whole and not _restricted(request)
            self.num_tokens += turn.add(choice, whole=whole)
            if choice["finish_reason"] != "abort":
                return turn.completion(choice["finish_reason"], choice["stop_reason"])
        return turn.completion("length")

    async def release(self, session: str) -> None:
        """See `client.SamplerClient`. The server ends a request whose connection is closed."""
        task = self._running.pop(session, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Closes all connections; requests that wait fail."""
        if self._http is not None:
            await self._http.close()

    async def _choice(self, request: wire.Request, turn: _Turn, limit: int) -> dict[str, Any]:
        """Asks until there is an answer."""
        message = {
            "token_ids": [*request.tokens, *turn.tokens],
            "sampling_params": self._sampling(request, turn, limit),
        }
        deadline = None
        while True:
            try:
                return await self._post(message)
            except _Failed as error:
                deadline = deadline or time.monotonic() + self._patience_s
                if time.monotonic() + _RETRY_S > deadline:
                    raise RuntimeError(
                        f"vLLM has not answered for {self._patience_s:g} s: {error}"
                    ) from error
                _log.warning("asking vLLM again: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _sampling(self, request: wire.Request, turn: _Turn, limit: int) -> dict[str, Any]:
        seed = self._seed if request.seed is None else request.seed
        sampling = {
            "max_tokens": limit - len(turn.tokens),
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "min_p": request.min_p,
            "seed": _seed(seed, request, index=len(turn.tokens)),
            "stop_token_ids": list(request.stop_token_ids),
            "ignore_eos": True,  # the stop tokens of the request are all there are
            # Of a restricted distribution most of a row is -inf, which JSON does not have.
            "logprobs": -1 if self._whole and not _restricted(request) else self._record.topk,
        }
        if request.logit_bias:
            sampling["logit_bias"] = {str(token): bias for token, bias in request.logit_bias}
        if request.allowed_token_ids:
            sampling["allowed_token_ids"] = list(request.allowed_token_ids)
        if request.stop:
            sampling["stop"] = list(request.stop)
        return sampling

    async def _post(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._http is None:
            self._http = connections.open_session(self._token)
        try:
            with self._busy():
                async with self._http.post(f"{self._url}/{_VERB}", json=message) as found:
                    status, body = found.status, await found.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _Failed(f"{type(error).__name__}: {error}") from error
        reason = f"{self._url} answers {status}: {body[:300].decode(errors='replace')}"
        if status in (408, 429) or status >= 500:
            raise _Failed(reason)
        if status != 200:
            raise ValueError(f"{reason}; is it a server that launch/vllm.sh has started?")
        choice = json.loads(body)["choices"][0]
        if choice["finish_reason"] == "error":
            raise _Failed(f"{self._url} could not finish a request")
        unknown = _unknown_weights(choice)
        if unknown:
            self._on_unknown_weights()
            raise _Failed(f"its weights are {unknown!r}, no version that was loaded")
        _check(choice)
        return choice

    @contextlib.contextmanager
    def _busy(self):
        if not self._num_posted:
            self._busy_since = time.monotonic()
        self._num_posted += 1
        try:
            yield
        finally:
            self._num_posted -= 1
            if not self._num_posted:
                self._busy_seconds += time.monotonic() - self._busy_since


@dataclasses.dataclass
class _Turn:
    """What was sampled of a turn until now; of several answers if weights changed meanwhile."""

    request: wire.Request
    record: types.Record
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    entropies: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    rows: list[list[dict[str, Any]]] = dataclasses.field(default_factory=list)

    def add(self, choice: dict[str, Any], *, whole: bool) -> int:
        """Takes over an answer; returns how many tokens it brought."""
        entries = choice["logprobs"]["content"] if choice["token_ids"] else []
        self.tokens += choice["token_ids"]
        self.logprobs += [entry["logprob"] for entry in entries]
        for span in choice["weight_versions"] or []:
            self.versions += [int(span["version"])] * (span["end"] - span["start"])
        for entry in entries:
            # The sampled token comes first, and again in its place if that is not far down.
            row = {likely["token_id"]: likely for likely in entry["top_logprobs"]}
            row = sorted(row.values(), key=lambda likely: likely["rank"])
            self.entropies.append(_entropy(row) if whole else math.nan)
            self.rows.append(row)
        return len(choice["token_ids"])

    def completion(self, reason: str, stop_reason: str | int | None = None) -> wire.Completion:
        greedy = self.request.temperature == 0
        return wire.Completion(
            self.tokens,
            [0.0] * len(self.tokens) if greedy else self.logprobs,
            self.entropies,
            self.versions,
            reason,
            stop_reason=stop_reason if reason == "stop" else None,
            # vLLM tells one of the two.
            untruncated_logprobs=None if _restricted(self.request) else self.logprobs,
            **self._recorded(),
        )

    def _recorded(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.record.topk:
            top = [row[: self.record.topk] for row in self.rows]
            fields["topk_tokens"] = [[likely["token_id"] for likely in row] for row in top]
            fields["topk_logprobs"] = [[likely["logprob"] for likely in row] for row in top]
        if self.record.full:
            ordered = [sorted(row, key=lambda likely: likely["token_id"]) for row in self.rows]
            fields["full_logprobs"] = [[likely["logprob"] for likely in row] for row in ordered]
        return fields


def _restricted(request: wire.Request) -> bool:
    """Whether it draws from another distribution than the full one."""
    cut = request.top_k or request.top_p < 1 or request.min_p
    return bool(cut or request.logit_bias or request.allowed_token_ids)


def _refuse(request: wire.Request) -> None:
    if not request.tokens or request.max_new_tokens < 1:
        raise ValueError("a request needs at least one token and max_new_tokens >= 1")
    if request.forced_tokens:
        raise ValueError("forced_tokens: vLLM can't score given tokens with its decode steps")
    if request.policy_version is not None:
        raise ValueError(
            f"policy_version is {request.policy_version}: vLLM serves the version that was loaded "
            "last; leave it None"
        )


def _seed(seed: int, request: wire.Request, *, index: int) -> int:
    """Of the request's draws from token `index` of the turn on; below 2^63."""
    names = (seed, request.ticket, request.attempt, request.turn, index)
    digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _unknown_weights(choice: dict[str, Any]) -> str:
    """The label of weights that are no version of ours, "" if all are."""
    labels = [span["version"] for span in choice["weight_versions"] or []]
    return next((label for label in labels if not label.isdecimal()), "")


def _check(choice: dict[str, Any]) -> None:
    count = len(choice["token_ids"])
    tagged = sum(span["end"] - span["start"] for span in choice["weight_versions"] or [])
    if tagged != count or (count and len(choice["logprobs"]["content"]) != count):
        raise ValueError(
            f"vLLM answers {count} tokens, of which {tagged} have a version; all tokens need one "
            "and a log-prob"
        )
    for entry in choice["logprobs"]["content"] if count else ():
        value = entry["logprob"]
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise FloatingPointError(
                f"vLLM gives a sampled token the log-prob {value}: its weights compute no finite "
                "logits for this request"
            )


def _entropy(row: list[dict[str, Any]]) -> float:
    logprobs = [likely["logprob"] for likely in row]
    return -math.fsum(math.exp(value) * value for value in logprobs if value > -math.inf)
