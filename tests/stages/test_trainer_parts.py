"""How a config becomes parts of the trainer."""

import pytest
import rollouts_lab as lab

from configs import common
from jaxrl_single import workdir
from jaxrl_single.data import ticket_files
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


def test_numbers_of_tickets_that_are_withdrawn_are_used_ones(tmp_path):
    """Of tickets that nobody has played yet, and of trajectories that nobody has read yet."""
    paths = workdir.Workdir(tmp_path)
    paths.tickets.mkdir()
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    made.publish(lab.PARAMS, step=0)
    made.top_up(purpose="rl")
    ticket_files.write(paths.tickets, worker.sent[2:])
    for ticket in worker.sent[:5]:
        made.store.write(lab.trajectory(ticket, 0))
    assert set(trainer_parts.withdraw_tickets(paths, made.store)) == set(range(16))
    assert set(trainer_parts.withdraw_tickets(paths, made.store)) == set(range(5))
