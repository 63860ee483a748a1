"""What an environment is to a rollout: three coroutines. No jax, no token ids."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from jaxrl_single import types


class RewardError(RuntimeError):
    """The environment worked but judging the episode failed (a verifier died, timed out ...).

    Raise it from `step`; the episode is then recorded as an error of kind "reward", never as a
    reward of 0.
    """


class ToolError(RuntimeError):
    """A tool failed, not the model that called it; the episode is an error of kind "tool"."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The environment's answer to one action.

    Attributes:
      observation: text for the agent, or several texts, each a message of its own (answers to
        several calls of tools); not shown to it when the episode ends here.
      reward: earned by this action; a finite number, at most types.MAX_REWARD to either side of 0.
      terminated: the episode is over by the environment's own rules.
      truncated: the environment had to cut the episode (a sandbox ran out of time).
      info: "success" (bool) is the evaluator's verdict so far; the last one counts. Other finite
        numbers (bools too) of names that types.FACT_NAME matches become metrics env/NAME, the last
        of an episode; what else is in it stays unread.
      role: who says the observation, of chat.ROLES: "tool", or "user" for a person who answers,
        and for models whose chat template knows no tools.
    """

    observation: str | tuple[str, ...]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    role: str = "tool"

    @property
    def texts(self) -> tuple[str, ...]:
        """The observation as messages."""
        return (self.observation,) if isinstance(self.observation, str) else self.observation


class Env(Protocol):
    """One episode at a time; a rollout makes one environment per episode.

    Any exception, SystemExit too, and any wrong type in a result makes the episode an error with
    its traceback; other episodes go on. So does a method that takes longer than env.step_timeout_s,
    and one that blocks the event loop for so long, or for half of supervisor.heartbeat_s.
    An environment may define two more attributes:
      name: str, recorded in each trajectory; without it the name of the class is taken.
      gives_success: True when every episode has a verdict; then an episode that a limit cuts
        before the first verdict counts as no success. Without it such an episode has no verdict.
    """

    async def reset(self, task: types.Task, seed: int) -> str:
        """Begins the episode.

        Args:
          task: what to do.
          seed: of the environment's own randomness; the same for the same ticket and attempt.

        Returns:
          What the agent reads first.
        """
        ...

    async def step(self, action: str) -> StepResult:
        """Applies one complete action of the agent."""
        ...

    async def close(self) -> None:
        """Frees everything; called once, also after a failed `reset` or a cancellation."""
        ...
