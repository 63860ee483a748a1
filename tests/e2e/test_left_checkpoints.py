"""Results follow the checkpoints that are left, whatever was deleted."""

import shutil

import pytest

from jaxrl_single import workdir
from tests.cases import test_identity

finished, copied = test_identity.finished, test_identity.copied


@pytest.mark.long
@pytest.mark.parametrize("gone", [("rl",), ("warm_start",), ("rl", "warm_start")])
def test_every_step_is_made_and_logged_once_in_its_order(copied, gone):
    for stage in gone:
        shutil.rmtree(copied.paths.checkpoints / stage)
    assert copied.start(**{"rl.num_steps": 3}) == 0
    found = [(one.stage, one.step) for one in workdir.read_evals(copied.paths)]
    old = ("final", 2) if gone == ("warm_start",) else ("rl", 2)
    assert found == [("warm_start", 0), ("rl", 1), old, ("final", 3)]
    steps = [(one["stage"], one["step"]) for one in workdir.read_jsonl(copied.paths.metrics)]
    assert len(steps) == len(set(steps))
    assert [step for stage, step in steps if stage == "rl"] == [1, 2, 3]
