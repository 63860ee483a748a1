"""How a config becomes parts of the trainer."""

import pytest

from configs import common
from jaxrl_single.stages import trainer_parts


@pytest.mark.parametrize(
    ("changes", "open_batches"),
    [
        ({}, 3),  # all that can be fresh enough at a staleness of 2
        ({"rollout.open_batches": 2}, 2),
        ({"mode": "sync"}, 1),
        ({"mode": "sync", "sync.lag": 1}, 2),
        ({"mode": "sync", "rollout.open_batches": 3}, 1),
    ],
)
def test_how_many_batches_may_be_open(changes, open_batches):
    config = common.base()
    config.update_from_flattened_dict(changes)
    assert trainer_parts.rollout_settings(config).open_batches == open_batches
