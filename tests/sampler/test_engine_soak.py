"""A long life of one engine: sessions come, go and are cancelled at random, and weights change.

Nothing leaks, nothing is compiled, and every answer can be had again from a fresh engine.
"""

import dataclasses
import resource

import jax
import numpy as np
import pytest
import sampler_lab as lab

NUM_TOKENS = 50_000  # to be generated
WARM = 10_000  # after so many, memory must be flat
SHAPE = {"cache_sizes": (0.25,), "max_fed_tokens": 6}
STEPS_PER_VERSION = 60  # at random; never two swaps while one prompt is read
MAX_GROWTH_MB = 40  # of the process, from WARM on; the answers that the test keeps are 20 MB of it


@dataclasses.dataclass
class Session:
    """A session's turns as asked and answered; the plan of a session depends on its number."""

    number: int
    turns: list = dataclasses.field(default_factory=list)  # (request, answer)
    future: object = None

    def next_request(self):
        """None when the session has had all its turns."""
        rng = np.random.default_rng((self.number, len(self.turns)))
        if self.turns:
            asked, answer = self.turns[-1]
            if len(self.turns) == 1 + self.number % 3 or len(asked.tokens) > 50:
                return None
            tokens = asked.tokens + answer.tokens + rng.integers(0, 24, rng.integers(1, 9)).tolist()
        else:
            shared = lab.prompts_of([33], seed=self.number % 4)[0]
            tokens = (
                shared[: rng.integers(1, 34)] + rng.integers(0, 24, rng.integers(0, 4)).tolist()
            )
        return lab.request(
            f"session {self.number}",
            tokens,
            ticket=self.number,
            turn=len(self.turns),
            max_new_tokens=int(rng.integers(1, 22)),
            temperature=float(rng.uniform(0.6, 1.5)),
        )

    @property
    def versions(self):
        return {v for _, answer in self.turns for v in answer.policy_versions}


def _weights(version):
    return lab.params_of("tiny_moe", version % 3)


def _live(engine):
    """Runs the life; returns its sessions, ended ones and cancelled ones."""
    rng = np.random.default_rng(0)
    running, ended, memory = [], [], []
    steps_left = STEPS_PER_VERSION
    while engine.stats()["tokens"] < NUM_TOKENS or running:
        more = engine.stats()["tokens"] < NUM_TOKENS
        while more and len(running) < rng.integers(4, 20):
            running.append(Session(len(running) + len(ended)))
            running[-1].asked = running[-1].next_request()
            running[-1].future = engine.submit(running[-1].asked)
        engine.step()
        steps_left -= 1
        if not steps_left:
            engine.load_weights(engine.version + 1, _weights(engine.version + 1))
            steps_left = int(rng.integers(5, 2 * STEPS_PER_VERSION))
        unfinished = [session for session in running if not session.future.done()]
        if unfinished and rng.random() < 0.03:
            engine.release(f"session {unfinished[rng.integers(len(unfinished))].number}")
        for session in [session for session in running if session.future.done()]:
            answer = session.future.result()
            session.turns.append((session.asked, answer))
            session.asked = session.next_request()
            if session.asked is None or answer.finish_reason == "cancelled":
                engine.release(f"session {session.number}")
                running.remove(session)
                ended.append(session)
            else:
                session.future = engine.submit(session.asked)
        if not memory and engine.stats()["tokens"] > WARM:
            memory.append((len(jax.live_arrays()), _resident_mb()))
    memory.append((len(jax.live_arrays()), _resident_mb()))
    return ended, memory


def _resident_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _replay(engine, session):
    """Asks for the session's turns again, with each token's weights; one session at a time."""
    for asked, expected in session.turns:
        got = []
        future = engine.submit(asked, on_tokens=lambda part, got=got: got.extend(part.tokens))
        while not future.done():
            wanted = (expected.policy_versions[len(got) :] or [engine.version])[0]
            if wanted != engine.version:
                engine.load_weights(wanted, _weights(wanted))
            engine.step()
        _assert_equal(future.result(), expected)
    engine.release(f"session {session.number}")


def _assert_equal(answer, expected):
    count = len(expected.tokens)
    if not count:  # cancelled before it had a slot
        return
    assert expected.finish_reason in ("cancelled", answer.finish_reason)
    for name in ("tokens", "logprobs", "untruncated_logprobs", "entropies", "policy_versions"):
        assert getattr(answer, name)[:count] == getattr(expected, name)


@pytest.mark.long
def test_a_long_life_leaks_nothing_and_can_be_repeated(make_engine):
    engine = make_engine(**SHAPE)
    engine.warm_up()
    compiled = engine.stats()["compilations"]
    sessions, memory = _live(engine)
    engine.step()
    stats = engine.stats()
    assert stats["compilations"] == compiled
    assert (stats["held_slots"], stats["active_slots"], stats["waiting"]) == (0, 0, 0)
    assert stats["evictions"] == 0
    assert stats["swaps"] > 10
    assert stats["shared_tokens"] > 1000
    (arrays, megabytes), (arrays_at_end, megabytes_at_end) = memory
    assert arrays_at_end == arrays
    assert megabytes_at_end - megabytes < MAX_GROWTH_MB
    answers = [answer for session in sessions for _, answer in session.turns]
    assert sum(answer.finish_reason == "cancelled" for answer in answers) > 20
    assert sum(len(answer.tokens) for answer in answers) >= NUM_TOKENS
    assert any(len(session.versions) > 1 for session in sessions)

    fresh = make_engine(**SHAPE, prefix_cache="off")
    for session in sorted(sessions, key=lambda session: min(session.versions, default=0)):
        _replay(fresh, session)
