"""One episode: environment x sampler -> Trajectory. The only place that builds token arrays.

Token-in, token-out: the ids that the sampler returned are what the trajectory holds and what the
next turn continues; text made from them goes to the environment and to `messages` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import numbers
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from jaxrl_single import types, wire
from jaxrl_single.envs import base
from jaxrl_single.envs import chat as chat_lib
from jaxrl_single.rollout import action_rows, routing
from jaxrl_single.rollout import client as client_lib


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of an episode; hitting one truncates it, with the reward earned until then.

    Attributes:
      max_turns: actions.
      max_turn_tokens: tokens of one action; an action cut by it does not reach the environment.
      max_tokens: tokens of the whole episode, prompt and observations included.
    """

    max_turns: int
    max_turn_tokens: int
    max_tokens: int

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}, must be >= 1")


async def run_episode(
    ticket: types.Ticket,
    env: base.Env,
    client: client_lib.SamplerClient,
    chat: chat_lib.Chat,
    limits: Limits,
    *,
    source: str = "policy",
) -> types.Trajectory:
    """Runs a ticket to its end and records it.

    The environment is closed and the sampler's session released in any case. A failure of the
    environment (kind "env"), of its judgement ("reward"), of the sampler ("sampler"), or a prompt
    that leaves no room for an action ("limit") makes the trajectory an error with the traceback;
    only cancellation goes through.

    A reward lies on the last token of the action that earned it. The observation after the last
    turn is recorded only if the episode was cut and it fits: then it is part of the state whose
    value a bootstrap would ask for.

    Args:
      source: "policy", or "script" when `client` is a script: then nothing was sampled.
    """
    record = _Record(chat)
    failures: list[types.EpisodeError] = []
    started = time.monotonic()
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.push_async_callback(_attempt, failures, "env", env.close)
        cleanup.push_async_callback(_attempt, failures, "sampler", client.release, ticket.key)
        await _attempt(failures, "env", _play, ticket, env, client, limits, record, source)
    record.seconds["total"] = time.monotonic() - started
    if record.success is None and record.truncated and getattr(env, "gives_success", False):
        record.success = False
    return record.trajectory(
        ticket,
        env_name=getattr(env, "name", type(env).__name__),
        source=source,
        error=failures[0] if failures else None,
    )


def failed_episode(
    ticket: types.Ticket, error: Exception, *, kind: str, source: str = "policy"
) -> types.Trajectory:
    """The error trajectory of a ticket whose episode could not even begin."""
    nothing = _Record(None)
    return nothing.trajectory(ticket, env_name="", source=source, error=_describe(kind, error))


class _Fault(Exception):
    """Carries the kind of a failure whose cause is `__cause__`, or itself."""

    def __init__(self, kind: str, message: str = ""):
        super().__init__(message)
        self.kind = kind


async def _attempt(
    failures: list[types.EpisodeError],
    kind: str,
    function: Callable[..., Awaitable[Any]],
    *arguments: Any,
) -> None:
    try:
        await function(*arguments)
    except _Fault as fault:
        failures.append(_describe(fault.kind, fault.__cause__ or fault))
    except base.RewardError as error:
        failures.append(_describe("reward", error))
    except (Exception, asyncio.CancelledError) as error:
        _reraise_own_cancellation(error)
        failures.append(_describe(kind, error))


def _reraise_own_cancellation(error: BaseException) -> None:
    """Goes on when only something that the episode waited for was cancelled: a failure of that."""
    if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():
        raise error


def _describe(kind: str, error: BaseException) -> types.EpisodeError:
    last_line = traceback.format_exception_only(error)[-1].strip()
    trace = "".join(traceback.format_exception(error))
    return types.EpisodeError(kind, f"{last_line}\n{trace}")


async def _play(
    ticket: types.Ticket,
    env: base.Env,
    client: client_lib.SamplerClient,
    limits: Limits,
    record: _Record,
    source: str,
) -> None:
    # The attempt counts too: a retry that met the same bad luck would be no retry.
    with record.clock("environment"):
        question = await env.reset(ticket.task, seed=ticket.number * 256 + ticket.attempt)
    prompt = record.chat.prompt(question)
    if len(prompt) >= limits.max_tokens:
        raise _Fault(
            "limit",
            f"the prompt of task {ticket.task.id!r} has {len(prompt)} tokens and env.max_tokens "
            f"is {limits.max_tokens}: no room for an action; raise it or drop the task",
        )
    record.observe("user", question, prompt)
    for turn in range(limits.max_turns):
        budget = min(limits.max_turn_tokens, limits.max_tokens - len(record.tokens))
        if budget < 1:
            break
        completion = await _sample(ticket, turn, client, budget, record, source)
        record.act(completion)
        if completion.finish_reason != "stop":
            break
        with record.clock("environment"):
            result = await env.step(record.chat.action_text(completion.tokens))
        record.judge(result)
        if result.terminated or result.truncated:
            return
        observation = record.chat.observation(result.observation)
        if len(record.tokens) + len(observation) > limits.max_tokens:
            record.messages.append({"role": "tool", "content": result.observation})
            break
        record.observe("tool", result.observation, observation)
    record.truncated = True


async def _sample(
    ticket: types.Ticket,
    turn: int,
    client: client_lib.SamplerClient,
    budget: int,
    record: _Record,
    source: str,
) -> wire.Completion:
    request = wire.Request(
        session=ticket.key,
        ticket=ticket.number,
        attempt=ticket.attempt,
        turn=turn,
        tokens=list(record.tokens),
        max_new_tokens=budget,
        stop_token_ids=record.chat.stop_token_ids,
        temperature=ticket.temperature,
    )
    try:
        with record.clock("sampling"):
            completion = await client.generate(request)
        _check(completion, request, source)
        record.rows.append(completion, where=f"turn {turn}", sampled=source == "policy")
        num_tokens = len(request.tokens) + len(completion.tokens)
        record.routing.append(completion, num_tokens=num_tokens, where=f"turn {turn}")
    except (Exception, asyncio.CancelledError) as error:
        _reraise_own_cancellation(error)
        raise _Fault("sampler") from error
    if turn == 0 and not completion.tokens:
        raise _Fault(
            "limit",
            f"the sampler's context has no room after the {len(request.tokens)} tokens of the "
            f"prompt of task {ticket.task.id!r}",
        )
    return completion


def _check(completion: wire.Completion, request: wire.Request, source: str) -> None:
    """Refuses what could not be trained on, at the border where the culprit is known."""
    tokens, turn = completion.tokens, request.turn
    lengths = [len(completion.logprobs), len(completion.entropies)]
    lengths.append(len(completion.policy_versions))
    if lengths != [len(tokens)] * 3 or len(tokens) > request.max_new_tokens:
        raise ValueError(
            f"turn {turn}: {len(tokens)} tokens with {lengths} logprobs, entropies and versions; "
            f"all must be equal and at most max_new_tokens = {request.max_new_tokens}"
        )
    if completion.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"turn {turn}: the sampler ended it as {completion.finish_reason!r}")
    if completion.finish_reason == "stop" and tokens[-1:] not in (
        [token] for token in request.stop_token_ids
    ):
        raise ValueError(
            f"turn {turn}: finish_reason is 'stop' but the last token is {tokens[-1:]}, "
            f"stop tokens are {request.stop_token_ids}"
        )
    if source != "policy":
        return
    for name, values, good in (
        ("logprobs", completion.logprobs, lambda x: -math.inf < x <= types.LOGPROB_ROUNDING),
        ("policy_versions", completion.policy_versions, lambda x: x >= 0),
    ):
        bad = [value for value in values if not good(value)]
        if bad:
            raise ValueError(
                f"turn {turn}: {name} holds {bad[0]}; log-probabilities are finite and <= 0, "
                "versions are >= 0"
            )


class _Record:
    """Grows token by token; `trajectory` freezes it."""

    def __init__(self, chat: chat_lib.Chat | None):
        self.chat = chat
        self.tokens: list[int] = []
        self.messages: list[dict[str, str]] = []
        self.seconds: dict[str, float] = {"sampling": 0.0, "environment": 0.0, "total": 0.0}
        self.rows = action_rows.ActionRows()
        self.routing = routing.Routing()
        self.success: bool | None = None
        self.truncated = False
        self._terminated = False
        self._reward = 0.0
        self._action_mask: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._turn_ids: list[int] = []
        self._rewards: list[float] = []
        self._entropies: list[float] = []
        self._finish_reasons: list[str] = []

    @contextlib.contextmanager
    def clock(self, name: str):
        """Adds the seconds spent inside to `seconds[name]`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - started

    def observe(self, role: str, text: str, token_ids: list[int]) -> None:
        """Appends tokens that the policy reads."""
        count = len(token_ids)
        self._extend(token_ids, False, [0.0] * count, [0.0] * count, [types.NOT_SAMPLED] * count)
        self.messages.append({"role": role, "content": text})

    def act(self, completion: wire.Completion) -> None:
        """Appends tokens that the policy sampled; ends their turn."""
        self._extend(
            completion.tokens,
            True,
            completion.logprobs,
            completion.entropies,
            completion.policy_versions,
        )
        self._finish_reasons.append(completion.finish_reason)
        text = self.chat.action_text(completion.tokens)
        self.messages.append({"role": "assistant", "content": text})

    def judge(self, result: base.StepResult) -> None:
        """Books what the environment said about the last action."""
        if not isinstance(result.reward, numbers.Real) or not math.isfinite(result.reward):
            raise _Fault(
                "reward",
                f"turn {len(self._finish_reasons) - 1}: the environment's reward is "
                f"{result.reward!r}, it must be a finite number",
            )
        self._rewards[-1] += float(result.reward)
        self._reward += float(result.reward)
        self._terminated = bool(result.terminated)
        self.truncated = bool(result.truncated)
        if "success" in result.info:
            self.success = bool(result.info["success"])
        if result.terminated and result.observation:
            self.messages.append({"role": "tool", "content": result.observation})

    def _extend(
        self,
        token_ids: list[int],
        sampled: bool,
        logprobs: list[float],
        entropies: list[float],
        versions: list[int],
    ) -> None:
        self.tokens.extend(token_ids)
        self._action_mask.extend([sampled] * len(token_ids))
        self._turn_ids.extend([len(self._finish_reasons)] * len(token_ids))
        self._rewards.extend([0.0] * len(token_ids))
        self._logprobs.extend(logprobs)
        self._entropies.extend(entropies)
        self._versions.extend(versions)

    def trajectory(
        self,
        ticket: types.Ticket,
        *,
        env_name: str,
        source: str,
        error: types.EpisodeError | None,
    ) -> types.Trajectory:
        """The finished recording; with an error it has neither reward nor verdict."""
        return types.Trajectory(
            run_id=ticket.run_id,
            ticket=ticket.number,
            attempt=ticket.attempt,
            task_id=ticket.task.id,
            **self._arrays(),
            **self.rows.arrays(),
            expert_ids=self.routing.array(len(self.tokens)),
            reward=None if error else self._reward,
            terminated=self._terminated and error is None,
            truncated=self.truncated and error is None,
            group_id=ticket.group_id,
            split=ticket.split,
            source=source,
            env=env_name,
            purpose=ticket.purpose,
            temperature=ticket.temperature,
            success=None if error else self.success,
            finish_reasons=tuple(self._finish_reasons),
            error=error,
            timings=dict(self.seconds),
            messages=tuple(self.messages),
        )

    def _arrays(self) -> dict[str, np.ndarray]:
        lists = {
            "tokens": self.tokens,
            "action_mask": self._action_mask,
            "rollout_logprobs": self._logprobs,
            "policy_versions": self._versions,
            "turn_ids": self._turn_ids,
            "rewards": self._rewards,
            "entropies": self._entropies,
            "segment_ids": [1] * len(self.tokens),
        }
        return {name: np.array(lists[name], dtype) for name, dtype in types.TOKEN_FIELDS.items()}
