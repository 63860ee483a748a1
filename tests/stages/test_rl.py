"""What the loop of RL does when a step was not finite, or when the run is asked to stop."""

import math
from types import SimpleNamespace

import pytest

from jaxrl_single.stages import rl, waiting

NAN = math.nan
BATCH = [SimpleNamespace(key="000001-0"), SimpleNamespace(key="000002-0")]


def message(**changes):
    metrics = {
        "train/nonfinite": 1.0,
        "train/critic_only": 0.0,
        "critic/loss": 0.2,
        "critic/loss_last": 0.2,
        "critic/gradient_norm": 0.3,
        "policy/loss": 0.1,
        "policy/gradient_norm": 0.1,
    }
    changed = {name.replace("__", "/"): value for name, value in changes.items()}
    with pytest.raises(rl.Diverged) as error:
        rl._check_finite(metrics | changed, 0, BATCH)
    return str(error.value)


def test_a_policy_that_was_left_alone_is_not_blamed():
    told = message(
        train__critic_only=1.0,
        critic__loss_last=NAN,
        policy__loss=NAN,
        policy__gradient_norm=NAN,
    )
    assert "critic/loss_last" in told
    assert "policy/" not in told


def test_all_that_is_not_finite_is_named():
    told = message(policy__loss=NAN, critic__loss=math.inf)
    assert "{'critic/loss': inf, 'policy/loss': nan}" in told
    assert "000001-0 ... 000002-0" in told


def test_what_no_number_of_the_step_shows_came_later():
    assert "a later update" in message()


@pytest.mark.parametrize(
    ("stopped", "saved"), [(waiting.Stopped, [3]), (waiting.StoppedInStep, [])]
)
def test_a_stop_saves_whole_steps_only(monkeypatch, stopped, saved):
    """The state of before a step is gone within it: the step may reuse its memory."""

    def step(*_):
        raise stopped

    monkeypatch.setattr(rl, "_one_step", step)
    asked = []
    loop = SimpleNamespace(
        config=SimpleNamespace(rl=SimpleNamespace(num_steps=9)),
        records=SimpleNamespace(status=lambda *_: None),
        prefer_tasks=lambda state: None,
        save=lambda step, state: asked.append(step),
    )
    with pytest.raises(stopped):
        rl.run(loop, SimpleNamespace(step=3, algorithm_state={}))
    assert asked == saved
