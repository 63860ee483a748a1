"""Packing: every token once, in stream order, and the meaning of limits."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_single import types
from jaxrl_single.data import packing
from tests import trajectory_maker


def _trajectory(length, *, ticket=0, seed=0, segments=None, **changes):
    """`length` tokens, the first of each segment is context and the rest are actions."""
    rng = np.random.default_rng((seed, ticket))
    segment_ids = np.repeat(1 + np.arange(len(segments or [length])), segments or [length])
    mask = np.diff(segment_ids, prepend=0) == 0
    fields = {
        "run_id": "run",
        "ticket": ticket,
        "attempt": 0,
        "task_id": f"task/{ticket}",
        "group_id": ticket,
        "tokens": rng.integers(0, 50, length).astype(np.int32),
        "action_mask": mask,
        "rollout_logprobs": -rng.random(length).astype(np.float32),
        "policy_versions": np.where(mask, 3, types.NOT_SAMPLED).astype(np.int32),
        "turn_ids": np.arange(length, dtype=np.int32),
        "rewards": np.where(mask, rng.random(length), 0).astype(np.float32),
        "entropies": rng.random(length).astype(np.float32),
        "segment_ids": segment_ids.astype(np.int32),
        "reward": 1.0,
        "terminated": True,
        "truncated": False,
    }
    made = types.Trajectory(**(fields | changes))
    types.validate(made)
    return made


def _pack(given_, **changes):
    settings_ = {
        "num_trajectories": max(len(given_), 1),
        "row_length": 10,
        "rows_per_micro_batch": 2,
        "row_buckets": (2, 4, 40),
        "on_limit": "terminal",
    }
    return packing.pack(given_, **(settings_ | changes))


def _stream(batch, name):
    return getattr(batch, name).reshape(-1)


def test_rows_are_filled_first_fit_longest_first():
    # 7 and 3 share a row, 6 and 4 the next; in the order given they would need three rows.
    batch = _pack([_trajectory(n, ticket=n) for n in (3, 7, 4, 6)], num_trajectories=5)
    assert batch.tokens.shape == (1, 2, 10)
    assert batch.trajectory_index[0].tolist() == [[1] * 7 + [0] * 3, [3] * 6 + [2] * 4]
    assert batch.segment_ids[0, 0].tolist() == [1] * 7 + [2] * 3
    assert batch.positions[0, 0].tolist() == [*range(7), *range(3)]
    assert batch.length.tolist() == [2, 6, 3, 5, 0]
    assert batch.last_token.tolist() == [9, 6, 19, 15, 0]
    assert batch.valid.tolist() == [True] * 4 + [False]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(2, 10), min_size=1, max_size=4), min_size=0, max_size=9),
    st.integers(0, 3),
)
def test_every_token_is_packed_once_and_in_order(shapes, spare):
    originals = [
        _trajectory(sum(segments), ticket=i, segments=segments) for i, segments in enumerate(shapes)
    ]
    batch = _pack(originals, num_trajectories=len(originals) + spare + 1)
    index = _stream(batch, "trajectory_index")
    real = index[index >= 0]
    assert np.count_nonzero(np.diff(real)) == max(len(originals) - 1, 0)  # contiguous
    assert set(real) == set(range(len(originals)))
    assert ((_stream(batch, "segment_ids") > 0) == (index >= 0)).all()
    for number, original in enumerate(originals):
        here = index == number
        for name in packing._COPIED:
            np.testing.assert_array_equal(_stream(batch, name)[here], getattr(original, name))
        np.testing.assert_array_equal(_stream(batch, "loss_mask")[here], original.action_mask)
        assert batch.last_token[number] == np.flatnonzero(here)[-1]
        assert batch.length[number] == original.num_actions
        np.testing.assert_array_equal(
            _stream(batch, "positions")[here],
            np.concatenate([np.arange(n) for n in shapes[number]]),
        )
    _check_segments(batch, originals)


def _check_segments(batch, originals):
    """Tokens share a number within a row exactly if they are of the same segment."""
    for row in range(batch.tokens.shape[0] * batch.tokens.shape[1]):
        ids, index, places = (
            getattr(batch, name).reshape(-1, 10)[row]
            for name in ("segment_ids", "trajectory_index", "positions")
        )
        real = ids > 0
        opens = np.flatnonzero(real & (places == 0))
        assert ids[opens].tolist() == list(range(1, len(opens) + 1))
        assert not real[np.argmin(real) :].any() or real.all()  # left-aligned
        for number in set(ids[real]):
            assert len(set(index[ids == number])) == 1


def test_a_trajectory_longer_than_a_row_gets_neighbouring_rows():
    long = _trajectory(17, ticket=0, segments=[6, 6, 5])
    batch = _pack([_trajectory(5, ticket=1), long, _trajectory(4, ticket=2)])
    index = batch.trajectory_index.reshape(4, 10)
    assert index[0].tolist() == [1] * 6 + [-1] * 4  # nobody may stand between its pieces
    assert index[1].tolist() == [1] * 6 + [-1] * 4
    assert index[2].tolist() == [1] * 5 + [0] * 5
    assert index[3].tolist() == [2] * 4 + [-1] * 6
    assert batch.segment_ids.reshape(4, 10)[2].tolist() == [1] * 5 + [2] * 5


def test_groups_are_numbered_within_the_batch_and_tasks_everywhere():
    shared = {"group_id": 77, "task_id": "a"}
    given_ = [
        _trajectory(4, ticket=0, **shared),
        _trajectory(4, ticket=1, group_id=5, task_id="b"),
        _trajectory(4, ticket=2, **shared),
    ]
    batch = _pack(given_, num_trajectories=4)
    assert batch.group.tolist() == [0, 1, 0, -1]
    a, b = packing.task_number("a"), packing.task_number("b")
    assert (a, b) == (48707, 61433)  # part of what checkpoints mean
    assert batch.task.tolist() == [a, b, a, -1]


@pytest.mark.parametrize(
    ("on_limit", "terminated", "bootstrap", "trained"),
    [
        ("terminal", True, False, True),
        ("bootstrap", False, True, True),
        ("mask", True, False, False),
    ],
)
def test_a_limit_means_what_the_config_says(on_limit, terminated, bootstrap, trained):
    cut = _trajectory(6, ticket=0, terminated=False, truncated=True)
    done = _trajectory(5, ticket=1, truncated=True)  # ended by itself at the very limit
    batch = _pack([cut, done], num_trajectories=3, on_limit=on_limit)
    assert batch.terminated.tolist() == [terminated, True, False]
    assert batch.bootstrap.tolist() == [bootstrap, False, False]
    assert batch.length.tolist() == [5, 4, 0]
    index = _stream(batch, "trajectory_index")
    assert _stream(batch, "loss_mask")[index == 0].any() == trained
    assert _stream(batch, "loss_mask")[index == 1].sum() == 4
    assert _stream(batch, "action_mask")[index == 0].sum() == 5


RECORD = types.Record(num_aux=2, topk=3, full=True)
WIDTHS = RECORD.widths(5)


def _recorded(length, *, ticket=0, segments=None, **changes):
    plain = _trajectory(length, ticket=ticket, segments=segments)
    rows = trajectory_maker.recorded_rows(plain.num_actions, seed=ticket)
    return dataclasses.replace(plain, **(rows | changes))


def test_recorded_rows_lie_on_their_action_tokens():
    given_ = [
        _recorded(17, ticket=0, segments=[6, 6, 5]),  # over two rows
        _recorded(4, ticket=1),
        _recorded(5, ticket=2),
    ]
    batch = _pack(given_, num_trajectories=4, recorded=WIDTHS)
    index, mask = _stream(batch, "trajectory_index"), _stream(batch, "action_mask")
    for name, width in WIDTHS.items():
        assert getattr(batch, name).shape == (*batch.tokens.shape, width)
        assert getattr(batch, name).dtype == types.ACTION_FIELDS[name]
        stream = getattr(batch, name).reshape(-1, width)
        assert not stream[~mask].any()
        for number, original in enumerate(given_):
            here = mask & (index == number)
            np.testing.assert_array_equal(stream[here], getattr(original, name))


def test_only_the_rows_that_are_asked_for_are_packed():
    batch = _pack([_recorded(4)])
    assert batch.aux_tokens is batch.full_logprobs is None
    batch = _pack([_recorded(4)], recorded=types.Record(topk=3).widths(5))
    assert batch.topk_tokens.shape == (*batch.tokens.shape, 3)
    assert batch.aux_tokens is batch.full_logprobs is None
    # A batch with nothing to train has the same arrays, and so the same program.
    assert _pack([], recorded=WIDTHS).full_logprobs.shape == (1, 2, 10, 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"topk_tokens": None, "topk_logprobs": None},
        {"topk_tokens": np.zeros((3, 2), np.int32), "topk_logprobs": np.zeros((3, 2), np.float32)},
    ],
)
def test_a_trajectory_without_what_the_algorithm_reads_is_refused(changes):
    with pytest.raises(ValueError, match=r"run/000000000-0 lacks \{'topk_tokens': 3, 'topk_log"):
        _pack([_recorded(4, ticket=1), _recorded(4, **changes)], recorded=WIDTHS)


ROUTING = packing.Routing(num_layers=3, experts_per_token=2, num_experts=5)


def _routed(length, *, ticket=0, segments=None, **changes):
    plain = _trajectory(length, ticket=ticket, segments=segments)
    ids = trajectory_maker.routing(length, seed=ticket)
    return dataclasses.replace(plain, **({"expert_ids": ids} | changes))


def test_routing_lies_on_its_token_and_is_unknown_elsewhere():
    given_ = [
        _routed(17, ticket=0, segments=[6, 6, 5]),  # over two rows
        _routed(4, ticket=1),
        _routed(5, ticket=2, expert_ids=np.full((5, 3, 2), types.UNKNOWN_EXPERT, np.int16)),
    ]
    batch = _pack(given_, num_trajectories=4, routing=ROUTING)
    assert batch.expert_ids.dtype == np.int16
    assert batch.expert_ids.shape == (*batch.tokens.shape, 3, 2)
    index = _stream(batch, "trajectory_index")
    stream = batch.expert_ids.reshape(-1, 3, 2)
    assert (stream[index < 0] == types.UNKNOWN_EXPERT).all()
    for number, original in enumerate(given_):
        np.testing.assert_array_equal(stream[index == number], original.expert_ids)


def test_routing_is_packed_only_when_asked_for():
    assert _pack([_routed(4)]).expert_ids is None
    empty = _pack([], routing=ROUTING).expert_ids  # the same arrays, and so the same program
    assert empty.shape == (1, 2, 10, 3, 2)
    assert (empty == types.UNKNOWN_EXPERT).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_ids": None}, r"run/000000000-0 holds no expert_ids.*sampler\.record_experts"),
        ({"expert_ids": trajectory_maker.routing(4, layers=2)}, "of 2 layers, 2 experts per token"),
        ({"expert_ids": trajectory_maker.routing(4, chosen=1)}, "of 3 layers, 1 experts per token"),
        ({"expert_ids": np.int16([[[0, 5]] * 3] * 4)}, "numbers up to 5; .* and 5 experts"),
    ],
)
def test_routing_of_another_model_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _pack([_routed(4, ticket=1), _routed(4, **changes)], routing=ROUTING)


def test_no_trajectories_make_a_batch_with_nothing_to_train():
    batch = _pack([], num_trajectories=3)
    assert not batch.loss_mask.any()
    assert batch.tokens.shape == (1, 2, 10)
    assert not batch.valid.any()
    assert (batch.temperature == 1).all()  # a division by 0 on padding would be a NaN


def test_the_smallest_bucket_that_holds_the_rows_is_used():
    assert _pack([_trajectory(9, ticket=i) for i in range(3)]).tokens.shape == (2, 2, 10)
    assert _pack([_trajectory(9, ticket=i) for i in range(5)]).tokens.shape == (20, 2, 10)


def test_the_temperature_travels_with_the_tokens():
    batch = _pack([_trajectory(6, temperature=0.5), _trajectory(4, ticket=1, temperature=2.0)])
    assert batch.temperature[0, 0].tolist() == [0.5] * 6 + [2.0] * 4


@pytest.mark.parametrize(
    ("lengths", "changes", "field"),
    [
        ([11], {}, "batch.row_length"),
        ([4, 4], {"num_trajectories": 1}, "batch.num_trajectories"),
        ([9, 9, 9], {"row_buckets": (2,)}, "batch.row_buckets"),
        ([4], {"row_buckets": (3,)}, "batch.rows_per_micro_batch"),
        ([4], {"row_buckets": ()}, "batch.row_buckets"),
        ([4], {"on_limit": "drop"}, "rollout.on_limit"),
    ],
)
def test_what_does_not_fit_names_the_field_to_change(lengths, changes, field):
    with pytest.raises(ValueError, match=field):
        _pack([_trajectory(n, ticket=i) for i, n in enumerate(lengths)], **changes)


def test_errors_and_held_out_episodes_are_never_packed():
    failed = dataclasses.replace(
        _trajectory(4), error=types.EpisodeError("env", "boom"), reward=None
    )
    with pytest.raises(ValueError, match="errors are never trained"):
        _pack([failed])
    with pytest.raises(ValueError, match="only 'train' is trained"):
        _pack([_trajectory(4, split="eval")])


def test_a_segment_that_opens_with_an_action_is_refused():
    trajectory = _trajectory(6, segments=[3, 3])
    trajectory.action_mask[3] = True
    with pytest.raises(ValueError, match="token 3 opens a segment and is an action"):
        _pack([trajectory])


def test_rows_are_dealt_to_minibatches():
    """Rows of 9, 8, 7 and 6 tokens and two empty ones: each half gets long and short."""
    given_ = [_trajectory(n, ticket=n) for n in (9, 8, 7, 6)]
    batch = _pack(
        given_,
        num_trajectories=4,
        row_length=10,
        rows_per_micro_batch=3,
        row_buckets=(6,),
        num_minibatches=2,
    )
    lengths = (batch.segment_ids > 0).sum(-1)
    assert lengths.tolist() == [[9, 7, 0], [8, 6, 0]]
    assert batch.trajectory_index[:, :, 0].tolist() == [[0, 2, -1], [1, 3, -1]]


@pytest.mark.parametrize("num_minibatches", [1, 2, 3])
def test_rows_of_one_trajectory_go_to_one_minibatch(num_minibatches):
    given_ = [_trajectory(24, ticket=0, segments=[8, 8, 8]), _trajectory(2, ticket=1)]
    given_ += [_trajectory(n, ticket=n) for n in (9, 8, 7)]
    batch = _pack(
        given_,
        num_trajectories=5,
        row_length=10,
        rows_per_micro_batch=1,
        row_buckets=(6, 12),
        num_minibatches=num_minibatches,
    )
    assert batch.tokens.shape[0] == {1: 6, 2: 6, 3: 12}[num_minibatches]
    parts = np.split(batch.trajectory_index, num_minibatches)
    members = [set(part[part >= 0].tolist()) for part in parts]
    assert sorted(itertools.chain(*members)) == [0, 1, 2, 3, 4]


def test_a_minibatch_that_cannot_hold_its_rows_asks_for_a_bucket():
    given_ = [_trajectory(24, segments=[8, 8, 8])]
    options = {"row_length": 10, "rows_per_micro_batch": 1, "row_buckets": (4,)}
    with pytest.raises(ValueError, match=r"3 rows .* in 2 minibatches, .*add a larger bucket"):
        _pack(given_, num_minibatches=2, **options)
    with pytest.raises(ValueError, match=r"x algorithm\.num_minibatches=3"):
        _pack(given_, num_minibatches=3, **options)
