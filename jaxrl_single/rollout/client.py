"""What a rollout needs of a sampler; implementations are handed in, never imported here."""

from __future__ import annotations

from typing import Protocol

from jaxrl_single import wire


class SamplerClient(Protocol):
    """Samples turns of episodes. In one process, over HTTP, or from a script.

    A client may define one more method: `hear(text)` is told each text of the environment before
    the request that holds its ids (several messages at once with line breaks between).
    """

    async def generate(self, request: wire.Request) -> wire.Completion:
        """Samples one turn.

        A session has at most one request at a time. Its tokens grow from turn to turn, or begin
        anew where the context was rewritten.

        Raises:
          ValueError: the request itself is wrong (no tokens, temperature <= 0, ...).
          RuntimeError: the sampler failed or was stopped.
        """
        ...

    async def release(self, session: str) -> None:
        """Forgets the session and frees its cache; a running request ends as "cancelled".

        Unknown sessions are ignored, so it can be called in any clean-up.
        """
        ...
