"""A script in the place of the sampler: demonstrations go through the same episode code."""

from __future__ import annotations

from jaxrl_single import types, wire
from jaxrl_single.envs import chat as chat_lib
from jaxrl_single.envs import table


class ScriptedClient:
    """Plays one episode by a script; nothing is sampled, so log-probs are 0 and versions -1."""

    def __init__(self, script: table.Script, chat: chat_lib.Chat):
        self._script = script
        self._chat = chat
        self._heard = ""

    def hear(self, text: str) -> None:
        """What the environment has said; from the ids of a chat template it cannot be read."""
        self._heard = text

    async def generate(self, request: wire.Request) -> wire.Completion:
        """Lets the script act on what it heard last; its action is cut at the budget."""
        whole = self._chat.action_ids(await self._script.act(self._heard))
        token_ids = whole[: request.max_new_tokens]
        return wire.Completion(
            tokens=token_ids,
            logprobs=[0.0] * len(token_ids),
            entropies=[0.0] * len(token_ids),
            policy_versions=[types.NOT_SAMPLED] * len(token_ids),
            finish_reason="stop" if len(token_ids) == len(whole) else "length",
        )

    async def release(self, session: str) -> None:
        """Holds nothing for the session."""
