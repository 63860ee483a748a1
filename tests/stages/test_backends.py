"""Environments that never answer, in the mode of one process: the run still ends when it has to."""

import asyncio
import time
from types import SimpleNamespace

import pytest
import rollouts_lab as lab

from jaxrl_single.stages import backends, waiting

QUEUED = 2  # tickets that a trainer has sent before it publishes


class Silent:
    async def reset(self, task, seed):
        await asyncio.sleep(1e9)

    async def close(self):
        pass


def make(directory, *, stopping=lambda: False, no_progress_s=60.0, stop_timeout_s=60.0):
    made, _ = lab.make(directory, [lab.task(i) for i in range(9)], no_progress_s=no_progress_s)
    made.backend = backends.InlineBackend(
        SimpleNamespace(
            make_env=Silent,
            language=SimpleNamespace(dialogue=lambda: None),
            limits=SimpleNamespace(max_turns=1, env_s=None, block_s=None),
        ),
        made.store,
        lambda params, version: SimpleNamespace(load_weights=lambda version, params: None),
        max_in_flight=4,
        stopping=stopping,
        tick=lambda: None,
        no_progress_s=no_progress_s,
        stop_timeout_s=stop_timeout_s,
    )
    made.publish(lab.PARAMS, step=0)
    return made


def after(seconds):
    """A request to stop that comes a while later."""
    began = time.monotonic()
    return lambda: time.monotonic() - began > seconds


def test_a_stop_ends_the_wait_for_episodes(tmp_path):
    made = make(tmp_path, stopping=after(0.3))
    with pytest.raises(waiting.Stopped) as stopped:
        made.take(4, purpose="rl")
    assert not isinstance(stopped.value, waiting.StoppedInStep)
    assert len(made.book.in_flight()) > 0, "a resume runs them again"


def test_silence_for_too_long_is_an_error(tmp_path):
    made = make(tmp_path, no_progress_s=0.3)
    with pytest.raises(
        waiting.RolloutFailed, match=r"for \d+ s \(trainer.no_progress_s\) while 16"
    ):
        made.take(4, purpose="rl")


def test_a_stop_lets_old_weights_finish_what_still_comes_but_not_for_ever(tmp_path):
    """Else what the next step trains would depend on when the run was asked to stop."""
    made = make(tmp_path, stopping=after(0.0), stop_timeout_s=0.5)
    made.top_up(purpose="rl", wanted=QUEUED)
    began = time.monotonic()
    with pytest.raises(waiting.StoppedInStep):
        made.publish(lab.PARAMS, step=1)
    assert time.monotonic() - began >= 0.5
