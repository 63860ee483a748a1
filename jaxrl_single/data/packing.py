"""Trajectories -> TokenBatch: first-fit into rows of one length, few static shapes."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jaxrl_single import types
from jaxrl_single.data import token_batch

NUM_TASK_NUMBERS = 1 << 16  # size of the tables that keep something per task
ON_LIMIT = ("terminal", "bootstrap", "mask")

_COPIED = {  # per-token arrays taken from the trajectory as they are, and their dtype
    "tokens": np.int32,
    "action_mask": np.bool_,
    "rollout_logprobs": np.float32,
    "rewards": np.float32,
    "turn_ids": np.int32,
    "policy_versions": np.int32,
    "entropies": np.float32,
}


@dataclasses.dataclass(frozen=True)
class Routing:
    """Of the mixture of experts whose choices a batch holds.

    Attributes:
      num_layers: of the model, those that have experts.
      experts_per_token, num_experts: of the model.
    """

    num_layers: int
    experts_per_token: int
    num_experts: int


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Consecutive segments of one trajectory that lie in one row."""

    source: int  # place in the list given to `pack`
    start: int  # first token within the trajectory
    stop: int


def pack(
    trajectories: Sequence[types.Trajectory],
    *,
    num_trajectories: int,
    row_length: int,
    rows_per_micro_batch: int,
    row_buckets: Sequence[int],
    on_limit: str,
    num_minibatches: int = 1,
    recorded: Mapping[str, int] = MappingProxyType({}),
    routing: Routing | None = None,
) -> token_batch.TokenBatch:
    """Packs trajectories into a TokenBatch of numpy arrays.

    Rows are filled first-fit, longest trajectory first; the arrays per trajectory are in the order
    given. The number of rows is the smallest of `row_buckets` that holds everything. A trajectory
    longer than a row is possible only when it has several segments: it then gets rows of its own.

    Args:
      trajectories: finished, of split "train", at most `num_trajectories`; fewer leave invalid
        slots, none gives a batch with nothing to train.
      num_trajectories: slots, the static N.
      row_length: tokens of a row, T.
      rows_per_micro_batch: B.
      row_buckets: allowed numbers of rows, each a multiple of B.
      num_minibatches: rows are dealt in turn to so many equal parts, so that a policy update on a
        part sees long and short trajectories. All rows of a trajectory go to one part.
      on_limit: what a trajectory cut by a limit (`truncated` and not `terminated`) means:
        "terminal" it ended there; "bootstrap" the critic's value stands for the rest;
        "mask" its tokens do not enter the loss.
      recorded: width by name of the types.ACTION_FIELDS that the batch holds; see
        `types.Record.widths`. What else the trajectories hold is left out.
      routing: the batch holds the experts that read each token; None leaves them out.

    Raises:
      ValueError: what does not fit or may not be trained; names the config field to change.
    """
    _check_settings(num_trajectories, rows_per_micro_batch, num_minibatches, row_buckets, on_limit)
    if len(trajectories) > num_trajectories:
        raise ValueError(
            f"{len(trajectories)} trajectories for batch.num_trajectories={num_trajectories}; "
            "raise batch.num_trajectories or pass fewer"
        )
    for trajectory in trajectories:
        _check_trainable(trajectory)
        _check_recorded(trajectory, recorded)
        if routing is not None:
            _check_routing(trajectory, routing)
    rows = _fill_rows(trajectories, row_length)
    rows = _deal(rows, row_buckets, row_length, num_minibatches)
    num_rows = len(rows)
    arrays = _token_arrays(trajectories, rows, num_rows, row_length, on_limit)
    facts = _trajectory_arrays(trajectories, arrays, num_trajectories, on_limit)
    arrays |= _recorded_arrays(trajectories, arrays, recorded)
    if routing is not None:
        arrays["expert_ids"] = _expert_ids(trajectories, arrays["trajectory_index"], routing)
    shape = (num_rows // rows_per_micro_batch, rows_per_micro_batch)
    tokens = {name: array.reshape(shape + array.shape[1:]) for name, array in arrays.items()}
    return token_batch.TokenBatch(**tokens, **facts)


def task_number(task_id: str) -> int:
    """A number below NUM_TASK_NUMBERS, the same in every batch and run.

    Of a thousand tasks about one in seventy shares its number, and so what is kept about it, with
    another; in exchange nothing has to be remembered about ids.
    """
    return zlib.crc32(task_id.encode()) % NUM_TASK_NUMBERS


def _check_settings(
    num_trajectories, rows_per_micro_batch, num_minibatches, row_buckets, on_limit
) -> None:
    if on_limit not in ON_LIMIT:
        raise ValueError(f"rollout.on_limit is {on_limit!r}, allowed are {ON_LIMIT}")
    if num_trajectories < 1:
        raise ValueError(f"batch.num_trajectories is {num_trajectories}, must be at least 1")
    unit = rows_per_micro_batch * num_minibatches
    uneven = [rows for rows in row_buckets if rows < 1 or rows % unit]
    if uneven or not row_buckets:
        raise ValueError(
            f"batch.row_buckets={tuple(row_buckets)} must hold positive multiples of "
            f"batch.rows_per_micro_batch={rows_per_micro_batch} x "
            f"algorithm.num_minibatches={num_minibatches}"
        )


def _check_trainable(trajectory: types.Trajectory) -> None:
    where = f"trajectory {trajectory.run_id}/{trajectory.key}"
    if trajectory.error is not None:
        raise ValueError(f"{where} is an error ({trajectory.error.kind}); errors are never trained")
    if trajectory.split != "train":
        raise ValueError(f"{where} is of split {trajectory.split!r}; only 'train' is trained")
    segments = trajectory.segment_ids
    opens = np.diff(segments, prepend=segments[0] - 1) != 0
    if (opens & trajectory.action_mask).any():
        at = int(np.flatnonzero(opens & trajectory.action_mask)[0])
        raise ValueError(
            f"{where}: token {at} opens a segment and is an action, so nothing precedes it that "
            "the policy could have read; a segment must begin with a token of its context"
        )


def _check_recorded(trajectory: types.Trajectory, recorded: Mapping[str, int]) -> None:
    held = {name: array.shape[1] for name, array in trajectory.action_arrays.items()}
    lacking = {name: width for name, width in recorded.items() if held.get(name) != width}
    if lacking:
        raise ValueError(
            f"trajectory {trajectory.run_id}/{trajectory.key} lacks {lacking} (name: width), which "
            f"the algorithm reads; its sampler recorded {held}"
        )


def _check_routing(trajectory: types.Trajectory, routing: Routing) -> None:
    where = f"trajectory {trajectory.run_id}/{trajectory.key}"
    if trajectory.expert_ids is None:
        raise ValueError(
            f"{where} holds no expert_ids, but the trainer replays the sampler's choice of "
            "experts; its sampler must record it (sampler.record_experts)"
        )
    expected, found = (
        (routing.num_layers, routing.experts_per_token),
        trajectory.expert_ids.shape[1:],
    )
    highest = int(trajectory.expert_ids.max(initial=types.UNKNOWN_EXPERT))
    if found != expected or highest >= routing.num_experts:
        raise ValueError(
            f"{where}: expert_ids is of {found[0]} layers, {found[1]} experts per token and "
            f"numbers up to {highest}; the trainer's model has {expected[0]} layers, {expected[1]} "
            f"experts per token and {routing.num_experts} experts, so another model sampled it"
        )


def _fill_rows(trajectories: Sequence[types.Trajectory], row_length: int) -> list[list[_Piece]]:
    """First-fit decreasing. Pieces of a long trajectory stay neighbours in the stream."""
    rows: list[list[_Piece]] = []
    free: list[int] = []
    order = sorted(range(len(trajectories)), key=lambda i: -trajectories[i].num_tokens)
    for source in order:
        pieces = _pieces(source, trajectories[source], row_length)
        length = pieces[0].stop - pieces[0].start
        fit = next((row for row, left in enumerate(free) if left >= length), None)
        if len(pieces) == 1 and fit is not None:
            rows[fit].append(pieces[0])
            free[fit] -= length
            continue
        for piece in pieces:
            rows.append([piece])
            # Another trajectory in the middle of this one would break the order of the stream.
            is_last = piece is pieces[-1]
            free.append(row_length - (piece.stop - piece.start) if is_last else 0)
    return rows


def _deal(
    rows: list[list[_Piece]], row_buckets: Sequence[int], row_length: int, num_minibatches: int
) -> list[list[_Piece]]:
    """All rows of the smallest bucket that holds the parts, empty ones among them, part by part.

    Row after row goes to the part with the fewest; rows of one trajectory stay together.
    """
    blocks = _blocks(rows)
    for num_rows in sorted(row_buckets):
        size = num_rows // num_minibatches
        parts: list[list[list[_Piece]]] = [[] for _ in range(num_minibatches)]
        for block in blocks:
            min(parts, key=len).extend(block)
        if max(map(len, parts)) <= size:
            return [row for part in parts for row in part + [[]] * (size - len(part))]
    parted = f" in {num_minibatches} minibatches" if num_minibatches > 1 else ""
    raise ValueError(
        f"the trajectories need {len(rows)} rows of batch.row_length={row_length}{parted}, the "
        f"largest of batch.row_buckets is {max(row_buckets)}; add a larger bucket"
    )


def _blocks(rows: list[list[_Piece]]) -> list[list[list[_Piece]]]:
    """Rows that follow one another and hold pieces of the same trajectory, together."""
    blocks: list[list[list[_Piece]]] = []
    before: set[int] = set()
    for row in rows:
        sources = {piece.source for piece in row}
        if before & sources:
            blocks[-1].append(row)
        else:
            blocks.append([row])
        before = sources
    return blocks


def _pieces(source: int, trajectory: types.Trajectory, row_length: int) -> list[_Piece]:
    """The fewest pieces of whole segments that each fit into a row."""
    segments = trajectory.segment_ids
    starts = np.flatnonzero(np.diff(segments, prepend=segments[0] - 1))
    stops = np.append(starts[1:], len(segments))
    pieces: list[_Piece] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if stop - start > row_length:
            raise ValueError(
                f"trajectory {trajectory.run_id}/{trajectory.key} has {stop - start} tokens in one "
                f"segment, but batch.row_length={row_length}; raise batch.row_length or lower "
                "env.max_tokens"
            )
        if pieces and stop - pieces[-1].start <= row_length:
            pieces[-1] = dataclasses.replace(pieces[-1], stop=stop)
        else:
            pieces.append(_Piece(source, start, stop))
    return pieces


def _token_arrays(trajectories, rows, num_rows: int, row_length: int, on_limit: str):
    """The fields per token, [num_rows, row_length]."""
    shape = (num_rows, row_length)
    arrays = {name: np.zeros(shape, dtype) for name, dtype in _COPIED.items()}
    arrays["policy_versions"][:] = types.NOT_SAMPLED
    arrays["temperature"] = np.ones(shape, np.float32)
    arrays["loss_mask"] = np.zeros(shape, np.bool_)
    arrays["positions"] = np.zeros(shape, np.int32)
    arrays["segment_ids"] = np.zeros(shape, np.int32)
    arrays["trajectory_index"] = np.full(shape, token_batch.PADDING, np.int32)
    for row, pieces in enumerate(rows):
        column, segment = 0, 0
        for piece in pieces:
            trajectory = trajectories[piece.source]
            there = (row, slice(column, column + piece.stop - piece.start))
            here = slice(piece.start, piece.stop)
            for name in _COPIED:
                arrays[name][there] = getattr(trajectory, name)[here]
            if not (on_limit == "mask" and _was_cut(trajectory)):
                arrays["loss_mask"][there] = trajectory.action_mask[here]
            opened, positions = _segments(trajectory.segment_ids[here])
            arrays["segment_ids"][there] = segment + opened
            arrays["positions"][there] = positions
            arrays["temperature"][there] = trajectory.temperature
            arrays["trajectory_index"][there] = piece.source
            segment += int(opened[-1])
            column += piece.stop - piece.start
    return arrays


def _recorded_arrays(trajectories, arrays, recorded: Mapping[str, int]):
    """Rows of ACTION_FIELDS on the action tokens, [num_rows, row_length, width]; 0 elsewhere."""
    # The stream holds the tokens of a trajectory in order, so its action tokens are in order too.
    index = np.where(arrays["action_mask"], arrays["trajectory_index"], token_batch.PADDING)
    found = {
        name: np.zeros((*index.shape, width), types.ACTION_FIELDS[name])
        for name, width in recorded.items()
    }
    for number, trajectory in enumerate(trajectories):
        for name, array in found.items():
            array[index == number] = getattr(trajectory, name)
    return found


def _expert_ids(trajectories, index: np.ndarray, routing: Routing) -> np.ndarray:
    """[num_rows, row_length, layers, experts per token]; unknown on padding."""
    shape = (*index.shape, routing.num_layers, routing.experts_per_token)
    found = np.full(shape, types.UNKNOWN_EXPERT, types.ROUTING_FIELDS["expert_ids"])
    for number, trajectory in enumerate(trajectories):
        # The stream holds the tokens of a trajectory in order.
        found[index == number] = trajectory.expert_ids
    return found


def _segments(segment_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the segments 1, 2, ... and the tokens of each 0, 1, ..."""
    opens = np.diff(segment_ids, prepend=segment_ids[0] - 1) != 0
    places = np.arange(len(segment_ids))
    return np.cumsum(opens), places - np.maximum.accumulate(np.where(opens, places, 0))


def _trajectory_arrays(trajectories, arrays, num_trajectories: int, on_limit: str):
    """The fields [N]."""
    index = arrays["trajectory_index"].ravel()
    last_token = np.zeros(num_trajectories, np.int32)
    real = np.flatnonzero(index >= 0)
    last_token[index[real]] = real  # later assignments win, so the last token stays

    def column(values, dtype, fill=0):
        return np.array([*values, *[fill] * (num_trajectories - len(trajectories))], dtype)

    cut = [_was_cut(trajectory) for trajectory in trajectories]
    bootstrap = column([on_limit == "bootstrap" and flag for flag in cut], np.bool_)
    valid = column([True] * len(trajectories), np.bool_)
    return {
        "reward": column([trajectory.reward for trajectory in trajectories], np.float32),
        "group": column(_numbered([t.group_id for t in trajectories]), np.int32, fill=-1),
        "task": column([task_number(t.task_id) for t in trajectories], np.int32, fill=-1),
        "terminated": valid & ~bootstrap,
        "bootstrap": bootstrap,
        "length": column([trajectory.num_actions for trajectory in trajectories], np.int32),
        "last_token": last_token,
        "valid": valid,
    }


def _was_cut(trajectory: types.Trajectory) -> bool:
    return trajectory.truncated and not trajectory.terminated


def _numbered(names: list) -> list[int]:
    """Replaces equal names by equal numbers 0, 1, ... in order of appearance."""
    numbers: dict = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
