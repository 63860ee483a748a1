"""Our engine under benchmarks/sampler.py: ours.py MODEL_DIRECTORY NUM_SESSIONS CONTEXT"""

import sys
import threading
from collections.abc import Callable

import worker

from jaxrl_single import wire
from jaxrl_single.models import api, hf
from jaxrl_single.sampler import engine as engine_lib


def make(directory: str, num_sessions: int, context: int) -> Callable[[worker.Workload], int]:
    shape, params = hf.load(directory)
    engine = engine_lib.Engine(
        api.build_policy(shape),
        params,
        0,
        num_slots=num_sessions,
        cache_length=context,
        page_size=32,
        # A step reads the whole cache, so its size should follow the tokens that there are.
        cache_sizes=(0.25, 0.375, 0.5, 0.625, 0.75, 0.875),
        decode_chunk=8,
        decode_slots=(16, 32, 48),
        prefill_pages=(16, 64),
        seed=0,
        max_fed_tokens=4,
    )
    engine.warm_up()
    engine.start()
    return lambda workload: _Play(engine, workload).run()


class _Play:
    """One workload; a session's next turn is handed in as soon as the one before has ended."""

    def __init__(self, engine: engine_lib.Engine, workload: worker.Workload):
        self._engine = engine
        self._workload = workload
        self._left = len(workload.sessions)
        self._num_tokens = 0
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> int:
        for number in range(len(self._workload.sessions)):
            self._submit(number, 0, [])
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._num_tokens

    def _name(self, number: int) -> str:
        return f"{self._workload.seed}-{number}"

    def _submit(self, number: int, index: int, context: list[int]) -> None:
        turn = self._workload.sessions[number][index]
        request = wire.Request(
            session=self._name(number),
            ticket=number,
            attempt=0,
            turn=index,
            tokens=[*context, *turn.tokens],
            max_new_tokens=turn.num_new,
            stop_token_ids=(),
            seed=self._workload.seed,
        )
        future = self._engine.submit(request)
        future.add_done_callback(lambda done: self._finish(done, number, index, request))

    def _finish(self, done, number: int, index: int, request: wire.Request) -> None:
        try:
            answer = done.result()
            self._num_tokens += len(answer.tokens)
            if index + 1 < len(self._workload.sessions[number]):
                self._submit(number, index + 1, [*request.tokens, *answer.tokens])
                return
            self._engine.release(self._name(number))
        except BaseException as error:
            self._error = error
            self._done.set()
            return
        self._left -= 1
        if not self._left:
            self._done.set()


if __name__ == "__main__":
    worker.serve(lambda: make(sys.argv[1], *map(int, sys.argv[2:])))
