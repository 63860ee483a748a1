"""A script in the place of the sampler: demonstrations go through the same episode code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_single import types, wire
from jaxrl_single.envs import base, table
from jaxrl_single.envs import chat as chat_lib
from jaxrl_single.rollout import episode, scheduler


class ScriptedClient:
    """Plays one episode by a script; nothing is sampled, so log-probs are 0 and versions -1."""

    def __init__(self, script: table.Script, chat: chat_lib.Chat):
        self._script = script
        self._chat = chat
        self._num_read = 0  # tokens of the episode that the script knows

    async def generate(self, request: wire.Request) -> wire.Completion:
        """Lets the script read what is new and act; its action is cut at the budget."""
        observation = self._chat.observation_text(request.tokens[self._num_read :])
        whole = self._chat.action_ids(await self._script.act(observation))
        token_ids = whole[: request.max_new_tokens]
        self._num_read = len(request.tokens) + len(token_ids)
        return wire.Completion(
            tokens=token_ids,
            logprobs=[0.0] * len(token_ids),
            entropies=[0.0] * len(token_ids),
            policy_versions=[types.NOT_SAMPLED] * len(token_ids),
            finish_reason="stop" if len(token_ids) == len(whole) else "length",
        )

    async def release(self, session: str) -> None:
        """Holds nothing for the session."""


async def demonstrate(
    tickets: Sequence[types.Ticket],
    *,
    make_env: Callable[[], base.Env],
    make_script: table.MakeScript,
    chat: chat_lib.Chat,
    limits: episode.Limits,
    mistake_rate: float,
    seed: int,
    max_in_flight: int = 64,
) -> list[types.Trajectory]:
    """Plays each ticket by a script of its own.

    Args:
      tickets: what to play; a ticket's number and `seed` fix its mistakes.
      mistake_rate: chance of a mistake at each action.
      max_in_flight: episodes at once, for environments that wait.

    Returns:
      The trajectories in the order of the tickets, source "script"; failed ones with their error.
    """

    def client_for(ticket: types.Ticket) -> ScriptedClient:
        rng = np.random.default_rng([seed, ticket.number])
        return ScriptedClient(make_script(ticket.task, mistake_rate=mistake_rate, rng=rng), chat)

    worker = scheduler.Scheduler(
        sink=lambda trajectory: None,
        make_env=make_env,
        client_for=client_for,
        chat=chat,
        limits=limits,
        max_in_flight=max_in_flight,
        source="script",
    )
    return await worker.drain(tickets)
