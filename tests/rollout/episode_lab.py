"""Episodes with prepared answers, so that each token, log-prob and version is known."""

import asyncio

from jaxrl_single import types, wire
from jaxrl_single.envs import calculator, chat
from jaxrl_single.rollout import episode

CHAT = chat.CharChat.build()
TASK = types.Task("calculator/train/0", "(37+58)*46", "4370")
TICKET = types.Ticket("run", 12, 1, TASK, temperature=0.7, group_id=11, purpose="rl")
LIMITS = episode.Limits(max_turns=5, max_turn_tokens=12, max_tokens=96)
RIGHT = ("<call>37+58", "<call>95*46", "<answer>4370")


class Prepared:
    """Answers turn k with the k-th prepared answer and notes all that it is asked."""

    def __init__(self, *answers, version=3):
        self._answers = list(answers)
        self._version = version
        self.requests = []
        self.released = []

    async def generate(self, request):
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, wire.Completion):
            return answer
        return completion(answer, version=self._version + request.turn)

    async def release(self, session):
        self.released.append(session)


def completion(text, *, version=0, finish_reason="stop"):
    ids = CHAT.action_ids(text)
    if finish_reason == "length":
        ids = ids[:-1]
    return wire.Completion(
        tokens=ids,
        logprobs=[-0.5 - 0.25 * place for place in range(len(ids))],
        entropies=[0.125 * place for place in range(len(ids))],
        policy_versions=[version] * len(ids),
        finish_reason=finish_reason,
    )


class Watched:
    """Wraps an environment; notes what it got and whether it was closed."""

    def __init__(self, env):
        self._env = env
        self.name = "watched"
        self.gives_success = getattr(env, "gives_success", False)
        self.seeds, self.actions, self.closed = [], [], 0

    async def reset(self, task, seed):
        self.seeds.append(seed)
        return await self._env.reset(task, seed)

    async def step(self, action):
        self.actions.append(action)
        return await self._env.step(action)

    async def close(self):
        self.closed += 1
        await self._env.close()


def run(client, env=None, *, limits=LIMITS, ticket=TICKET, source="policy"):
    env = env or Watched(calculator.Calculator())
    trajectory = asyncio.run(episode.run_episode(ticket, env, client, CHAT, limits, source=source))
    if trajectory.error is None:
        types.validate(trajectory)
    assert client.released == [ticket.key]
    return trajectory
