"""What the engines of benchmarks/sampler.py share: workloads in on stdin, seconds out on stdout.

A line of input is a workload as JSON; it is played once and answered by one line that begins with
RESULT. What an engine prints besides goes to stderr. Python's own library only: each engine lives
in an environment of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Turn:
    """Reads `tokens`, the prompt or an observation, and samples exactly `num_new` tokens."""

    tokens: list[int]
    num_new: int


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sessions that all begin at once; each goes on to its next turn when it likes.

    Attributes:
      sessions: [session][turn].
      seed: of the draws.
    """

    sessions: list[list[Turn]]
    seed: int

    @property
    def num_new(self) -> int:
        """Tokens to sample in all."""
        return sum(turn.num_new for session in self.sessions for turn in session)


def serve(make: Callable[[], Callable[[Workload], int]]) -> None:
    """Plays workloads until stdin ends.

    Args:
      make: starts the engine; what it returns plays a workload and says how many of the wanted
        tokens came.
    """
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines and their processes print
    play = make()
    for line in sys.stdin:
        message = json.loads(line)
        sessions = [[Turn(**turn) for turn in session] for session in message["sessions"]]
        workload = Workload(sessions, message["seed"])
        began = time.perf_counter()
        num_tokens = play(workload)
        seconds = time.perf_counter() - began
        if num_tokens != workload.num_new:
            raise RuntimeError(f"{num_tokens} tokens were sampled instead of {workload.num_new}")
        print("RESULT " + json.dumps({"seconds": seconds}), file=results, flush=True)


def play_in_batches(
    workload: Workload, generate: Callable[[list[list[int]], int], list[list[int]]]
) -> int:
    """For engines that take a batch and give it back as a whole: turn by turn.

    Args:
      generate: (whole contexts, new tokens) -> the new tokens of each; it runs to the longest
        turn, and of shorter ones only the wanted tokens count.
    """
    contexts = [[] for _ in workload.sessions]
    num_tokens = 0
    for turns in zip(*workload.sessions, strict=True):
        contexts = [[*context, *turn.tokens] for context, turn in zip(contexts, turns, strict=True)]
        answers = generate(contexts, max(turn.num_new for turn in turns))
        for context, turn, answer in zip(contexts, turns, answers, strict=True):
            context.extend(answer[: turn.num_new])
            num_tokens += len(answer[: turn.num_new])
    return num_tokens
