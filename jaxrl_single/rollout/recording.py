"""The recording of an episode: token arrays that grow turn by turn."""

from __future__ import annotations

import contextlib
import math
import numbers
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl_single import types, wire
from jaxrl_single.envs import base, chat, user_code
from jaxrl_single.rollout import action_rows, routing

MAX_TEXT = 1_000_000  # characters that an environment may say at one time
_MAX_NAME = 100  # characters of an environment's name


class Recording:
    """Grows token by token; `trajectory` freezes it.

    Attributes:
      tokens: of the whole episode, segment after segment.
      segment_start: of these, where the present segment begins.
      messages: what was said, for people.
      seconds: by name, see `types.Trajectory.timings`.
      success, truncated: see `types.Trajectory`.
      env_name: see `types.Trajectory.env`.
      facts: see `types.Trajectory.facts`.
    """

    def __init__(self):
        self.tokens: list[int] = []
        self.segment_start = 0
        self.messages: list[dict[str, str]] = []
        self.seconds: dict[str, float] = {"sampling": 0.0, "environment": 0.0, "total": 0.0}
        self.success: bool | None = None
        self.truncated = False
        self.env_name = ""
        self.facts: dict[str, float] = {}
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

    @property
    def num_actions(self) -> int:
        """Tokens that the policy, or a script, said."""
        return sum(self._action_mask)

    def end(self) -> None:
        """Nothing follows: the last action was the whole answer."""
        self._terminated = True

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
          RewardError: the reward is no number that training can use, see `types.MAX_REWARD`.
          TypeError, ValueError: the rest is not what `base.StepResult` says.
        """
        turn = len(self._finish_reasons) - 1
        _check_result(result)
        reward = _checked_reward(result.reward, turn)
        self._rewards[-1] += reward
        self._reward = _checked_reward(self._reward + reward, turn)
        self._terminated = bool(result.terminated)
        self.truncated = bool(result.truncated)
        if result.info.get("success") is not None:
            self.success = _checked_success(result.info["success"])
        self.facts |= _facts(result.info)
        if len(self.facts) > types.MAX_FACTS:
            raise ValueError(
                f"info has given {len(self.facts)} numbers by name, allowed are {types.MAX_FACTS}"
            )
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
            env=self.env_name,
            purpose=ticket.purpose,
            temperature=ticket.temperature,
            success=None if error else self.success,
            finish_reasons=tuple(self._finish_reasons),
            error=error,
            timings=dict(self.seconds),
            facts=dict(self.facts),
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


def name_of(env: base.Env) -> str:
    """The name of an environment, or of its class.

    Raises:
      TypeError: it is no text.
    """
    name = getattr(env, "name", type(env).__name__)
    if not isinstance(name, str):
        raise TypeError(f"the environment's name is a {type(name).__name__}, expected a str")
    return user_code.writable(name, _MAX_NAME)


def check_text(text: Any, where: str) -> None:
    """Raises TypeError or ValueError unless an environment's text is one, and of a sane length."""
    if not isinstance(text, str):
        raise TypeError(f"{where} gave a {type(text).__name__}, expected a str")
    if len(text) > MAX_TEXT:
        raise ValueError(
            f"{where} gave {len(text)} characters, allowed are {MAX_TEXT}; cut what is longer"
        )


def _check_result(result: Any) -> None:
    if not isinstance(result, base.StepResult):
        raise TypeError(
            f"step gave a {type(result).__name__}, expected jaxrl_single.envs.base.StepResult"
        )
    if not isinstance(result.observation, str | tuple | list):
        raise TypeError(
            f"step gave an observation of type {type(result.observation).__name__}, expected a "
            "str, or a tuple of them"
        )
    if not result.texts:
        raise ValueError("step gave an observation without any text; give '' where there is none")
    for text in result.texts:
        check_text(text, "an observation of step")
    check_text("".join(result.texts), "the observation of step")
    if result.role not in chat.ROLES:
        raise ValueError(f"role is {result.role!r}, allowed are {chat.ROLES}")
    if not isinstance(result.info, Mapping):
        raise TypeError(f"info is a {type(result.info).__name__}, expected a dict")
    for name in ("terminated", "truncated"):
        _checked_verdict(name, getattr(result, name))


def _checked_reward(reward: Any, turn: int) -> float:
    """A number within `types.MAX_REWARD`; True and False are none, for they may be verdicts."""
    sound = isinstance(reward, numbers.Real) and not isinstance(reward, bool)
    try:
        value = float(reward) if sound else math.nan
    except (OverflowError, ValueError):
        value = math.inf
    if not abs(value) <= types.MAX_REWARD:
        raise base.RewardError(
            f"turn {turn}: the environment's reward is {user_code.shorten(repr(reward), 80)}, it "
            f"must be a finite number, at most {types.MAX_REWARD:g} to either side of 0"
        )
    return value


def _facts(info: Mapping[Any, Any]) -> dict[str, float]:
    """The numbers of an info that become metrics."""
    found = {}
    for name, value in info.items():
        named = isinstance(name, str) and name != "success" and types.FACT_NAME.fullmatch(name)
        if named and isinstance(value, numbers.Real | np.bool_):
            with contextlib.suppress(OverflowError, ValueError):
                found[str(name)] = float(value)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _checked_success(success: Any) -> bool:
    return _checked_verdict("info['success']", success)


def _checked_verdict(name: str, verdict: Any) -> bool:
    """True, False, or a number that means one of them; any other text or number may mean both."""
    if not isinstance(verdict, bool | np.bool_ | numbers.Real) or verdict not in (0, 1):
        raise ValueError(
            f"{name} is {user_code.shorten(repr(verdict), 80)}, expected True or False"
        )
    return bool(verdict)
