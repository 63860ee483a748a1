"""One episode: environment x sampler -> Trajectory.

Token-in, token-out: the ids that the sampler returned are what the trajectory holds and what the
next turn continues; text made from them goes to the environment and to `messages` only. Where the
language rewrites what was said before, a new segment begins: its context is read, not trained, so
each sampled token is trained once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jaxrl_single import types, wire
from jaxrl_single.envs import base, user_code
from jaxrl_single.envs import chat as chat_lib
from jaxrl_single.rollout import client as client_lib
from jaxrl_single.rollout import recording


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of an episode; hitting one truncates it, with the reward earned until then.

    Attributes:
      max_turns: actions.
      max_turn_tokens: tokens of one action; an action cut by it does not reach the environment.
      max_tokens: tokens of a segment (mostly that is the whole episode), prompt and observations
        included.
      max_episode_tokens: the same of all segments together; None = no bound.
      env_s: seconds for each reset, step and close of the environment; a longer one makes the
        episode an error, for nobody would ever wait enough for one that hangs. None = no bound.
      block_s: seconds that one of them may hold the event loop, and with it all other episodes.
        None = no bound.
    """

    max_turns: int
    max_turn_tokens: int
    max_tokens: int
    max_episode_tokens: int | None = None
    env_s: float | None = None
    block_s: float | None = None

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value is not None and value < 1 and not name.endswith("_s"):
                raise ValueError(f"{name} is {value}, must be >= 1")

    def room(self, record: recording.Recording, observed: chat_lib.Observed | None = None) -> int:
        """Tokens that may still be sampled in the present segment, after `observed` if given."""
        more = len(observed.ids) if observed else 0
        opens = observed is not None and observed.opens_segment
        context = more + (0 if opens else record.num_context)
        room = self.max_tokens - context
        if self.max_episode_tokens is None:
            return room
        return min(room, self.max_episode_tokens - len(record.tokens) - more)


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
    environment (kind "env"), of a tool ("tool"), of its judgement ("reward"), of the sampler
    ("sampler"), or a prompt that leaves no room for an action ("limit") makes the trajectory an
    error with the traceback, whatever was raised; only the cancellation of this task goes through.

    A reward lies on the last token of the action that earned it. The observation after the last
    turn is recorded only if the episode was cut and it fits: then it is part of the state whose
    value a bootstrap would ask for.

    Args:
      source: "policy", or "script" when `client` is a script: then nothing was sampled.
    """
    record = recording.Recording()
    failures: list[types.EpisodeError] = []
    started = time.monotonic()
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.push_async_callback(_attempt, failures, "env", _in_time, limits, env, "close")
        cleanup.push_async_callback(_attempt, failures, "sampler", client.release, ticket.key)
        await _attempt(failures, "env", _play, ticket, env, client, chat, limits, record, source)
        await _attempt(failures, "env", _name, env, record)
    record.seconds["total"] = time.monotonic() - started
    return record.trajectory(
        ticket,
        source=source,
        error=failures[0] if failures else None,
    )


def failed_episode(
    ticket: types.Ticket, error: BaseException, *, kind: str, source: str = "policy"
) -> types.Trajectory:
    """The error trajectory of a ticket whose episode could not even begin, or has no other end."""
    return recording.Recording().trajectory(ticket, source=source, error=_describe(kind, error))


def outcome(
    ticket: types.Ticket, task: asyncio.Task[types.Trajectory], *, source: str = "policy"
) -> types.Trajectory:
    """The trajectory of a task that has ended and that nobody outside of it has cancelled."""
    if task.cancelled():
        error = asyncio.CancelledError("the environment cancelled the task of its own episode")
        return failed_episode(ticket, error, kind="env", source=source)
    return task.result()


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
    except base.ToolError as error:
        failures.append(_describe("tool", error))
    except BaseException as error:
        if user_code.is_ours(error):
            raise
        failures.append(_describe(kind, error))


def _describe(kind: str, error: BaseException) -> types.EpisodeError:
    return types.EpisodeError(kind, user_code.describe(error))


async def _name(env: base.Env, record: recording.Recording) -> None:
    """Takes over the two attributes of an environment, which may be programs as well."""
    record.env_name = recording.name_of(env)
    if record.success is None and record.truncated and getattr(env, "gives_success", False):
        record.success = False


async def _play(
    ticket: types.Ticket,
    env: base.Env,
    client: client_lib.SamplerClient,
    chat: chat_lib.Chat,
    limits: Limits,
    record: recording.Recording,
    source: str,
) -> None:
    dialogue, hear = chat.dialogue(), getattr(client, "hear", _ignore)
    # The attempt counts too: a retry that met the same bad luck would be no retry.
    with record.clock("environment"):
        seed = ticket.number * 256 + ticket.attempt
        question = await _in_time(limits, env, "reset", ticket.task, seed)
    recording.check_text(question, "reset")
    record.observe(_prompt(ticket, dialogue, question, limits))
    record.say("user", question)
    hear(question)
    for turn in range(limits.max_turns):
        budget = min(limits.max_turn_tokens, limits.room(record))
        if budget < 1:
            break
        completion = await _sample(ticket, turn, client, chat, budget, record, source)
        record.act(completion)
        action = dialogue.act(completion.tokens)
        record.say("assistant", action)
        if completion.finish_reason != "stop":
            break
        with record.clock("environment"):
            result = await _in_time(limits, env, "step", action)
        record.judge(result)
        if result.terminated or result.truncated:
            return
        observed = dialogue.observe(*result.texts, role=result.role)
        record.say(result.role, *result.texts)
        if limits.room(record, observed) < 0:
            break
        record.observe(observed)
        hear("\n".join(result.texts))
    record.truncated = True


async def _in_time(limits: Limits, env: base.Env, method: str, *args: Any) -> Any:
    """Awaits a method of the environment, within the limits."""
    return await user_code.run(
        lambda: getattr(env, method)(*args),
        name=f"{type(env).__qualname__}.{method}",
        limit_s=limits.env_s,
        block_s=limits.block_s,
    )


def _ignore(text: str) -> None:
    """What most samplers do with texts: they read the ids."""


def _prompt(
    ticket: types.Ticket, dialogue: chat_lib.Dialogue, question: str, limits: Limits
) -> chat_lib.Observed:
    ids = dialogue.prompt(question)
    if len(ids) >= limits.max_tokens:
        raise _Fault(
            "limit",
            f"the prompt of task {ticket.task.id!r} has {len(ids)} tokens and env.max_tokens "
            f"is {limits.max_tokens}: no room for an action; raise it or drop the task",
        )
    return chat_lib.Observed(ids)


async def _sample(
    ticket: types.Ticket,
    turn: int,
    client: client_lib.SamplerClient,
    chat: chat_lib.Chat,
    budget: int,
    record: recording.Recording,
    source: str,
) -> wire.Completion:
    request = wire.Request(
        session=ticket.key,
        ticket=ticket.number,
        attempt=ticket.attempt,
        turn=turn,
        tokens=record.context,
        max_new_tokens=budget,
        stop_token_ids=chat.stop_token_ids,
        temperature=ticket.temperature,
    )
    try:
        with record.clock("sampling"):
            completion = await client.generate(request)
        _check(completion, request, source)
        record.check(completion, where=f"turn {turn}", sampled=source == "policy")
    except BaseException as error:
        if user_code.is_ours(error):
            raise
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
