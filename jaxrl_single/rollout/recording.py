"""The recording of an episode: token arrays that grow turn by turn."""

from __future__ import annotations

import contextlib
import math
import numbers
import time

import numpy as np

from jaxrl_single import types, wire
from jaxrl_single.envs import base, chat
from jaxrl_single.rollout import action_rows, routing


class Recording:
    """Grows token by token; `trajectory` freezes it.

    Attributes:
      tokens: of the whole episode, segment after segment.
      segment_start: of these, where the present segment begins.
      messages: what was said, for people.
      seconds: by name, see `types.Trajectory.timings`.
      success, truncated: see `types.Trajectory`.
    """

    def __init__(self):
        self.tokens: list[int] = []
        self.segment_start = 0
        self.messages: list[dict[str, str]] = []
        self.seconds: dict[str, float] = {"sampling": 0.0, "environment": 0.0, "total": 0.0}
        self.success: bool | None = None
        self.truncated = False
        self._rows = action_rows.ActionRows()
        self._routing = routing.Routing()
        self._terminated = False
        self._reward = 0.0
        self._action_mask: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._turn_ids: list[int] = []
        self._rewards: list[float] = []
        self._entropies: list[float] = []
        self._segment_ids: list[int] = []
        self._num_segments = 1
        self._finish_reasons: list[str] = []

    @contextlib.contextmanager
    def clock(self, name: str):
        """Adds the seconds spent inside to `seconds[name]`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - started

    @property
    def context(self) -> list[int]:
        """A copy of what the policy reads before its next token: the present segment."""
        return self.tokens[self.segment_start :]

    @property
    def num_context(self) -> int:
        return len(self.tokens) - self.segment_start

    def say(self, role: str, *texts: str) -> None:
        """Notes messages, whether or not the policy reads them."""
        self.messages.extend({"role": role, "content": text} for text in texts)

    def observe(self, observed: chat.Observed) -> None:
        """Appends tokens that the policy reads, in a segment of their own if they open one."""
        if observed.opens_segment:
            self.segment_start = len(self.tokens)
            self._num_segments += 1
        count = len(observed.ids)
        self._extend(observed.ids, False, [0.0] * count, [0.0] * count, [types.NOT_SAMPLED] * count)

    def check(self, completion: wire.Completion, *, where: str, sampled: bool) -> None:
        """Takes over what the sampler recorded besides the tokens; `act` follows.

        Args:
          where: begins the messages of errors.
          sampled: by a policy, not by a script.

        Raises:
          ValueError: it is not what its names say.
        """
        self._rows.append(completion, where=where, sampled=sampled)
        num_tokens = self.num_context + len(completion.tokens)
        self._routing.append(
            completion, num_tokens=num_tokens, where=where, offset=self.segment_start
        )

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

    def judge(self, result: base.StepResult) -> None:
        """Books what the environment said about the last action.

        Raises:
          RewardError: the reward is no finite number.
        """
        if not isinstance(result.reward, numbers.Real) or not math.isfinite(result.reward):
            raise base.RewardError(
                f"turn {len(self._finish_reasons) - 1}: the environment's reward is "
                f"{result.reward!r}, it must be a finite number",
            )
        self._rewards[-1] += float(result.reward)
        self._reward += float(result.reward)
        self._terminated = bool(result.terminated)
        self.truncated = bool(result.truncated)
        if "success" in result.info:
            self.success = bool(result.info["success"])
        if result.terminated:
            self.say(result.role, *filter(None, result.texts))

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
        self._segment_ids.extend([self._num_segments] * len(token_ids))

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
            **self._rows.arrays(),
            expert_ids=self._routing.array(len(self.tokens)),
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
            "segment_ids": self._segment_ids,
        }
        return {name: np.array(lists[name], dtype) for name, dtype in types.TOKEN_FIELDS.items()}
