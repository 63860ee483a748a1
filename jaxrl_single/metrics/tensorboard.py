"""A TensorBoard file, written in this thread.

The usual writer hands its work to a thread; when the disk is full that thread dies, and the run
then waits for ever at a full queue. Here a full disk is an exception where it happens.
"""

from __future__ import annotations

import errno
import math
import os
import pathlib
import socket
import time
from collections.abc import Mapping, Sequence

from tensorboardX import record_writer
from tensorboardX.proto import event_pb2, summary_pb2


class EventFile:
    """One file of events in `directory`, which is made when it does not exist.

    A file is a row of records, each a length, the checksum of the length, an event as protocol
    buffer, the checksum of the event. Every record is in the file when `write` returns.

    Args:
      first_step: TensorBoard hides what earlier files of the directory hold from this step on.

    Raises:
      OSError: the disk is full or not writable; so do all methods.
    """

    def __init__(self, directory: pathlib.Path, *, first_step: int):
        directory.mkdir(parents=True, exist_ok=True)
        # The last two tell apart two starts within a second.
        unique = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{first_step}"
        self._file = open(directory / f"events.out.tfevents.{unique}", "ab", buffering=0)  # noqa: SIM115
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(step=first_step, session_log=start))

    def write(
        self,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, tuple[Sequence[float], Sequence[int]]],
    ) -> None:
        """Numbers that are not finite and histograms of nothing are left out."""
        values = [
            summary_pb2.Summary.Value(tag=name, simple_value=value)
            for name, value in scalars.items()
            if math.isfinite(value)
        ] + [
            summary_pb2.Summary.Value(tag=name, histo=_histogram(edges, counts))
            for name, (edges, counts) in histograms.items()
            if sum(counts)
        ]
        self._add(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values)))

    def close(self) -> None:
        self._file.close()

    def _add(self, event: event_pb2.Event) -> None:
        event.wall_time = time.time()
        body = event.SerializeToString()
        record = b"".join(part + _checksum(part) for part in (_length(body), body))
        if self._file.write(record) != len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _length(body: bytes) -> bytes:
    return len(body).to_bytes(8, "little")


def _checksum(part: bytes) -> bytes:
    return record_writer.masked_crc32c(part).to_bytes(4, "little")


def _histogram(edges: Sequence[float], counts: Sequence[int]) -> summary_pb2.HistogramProto:
    width = edges[-1] - edges[-2] if len(edges) > 1 else 1.0
    limits = [*edges[1:], edges[-1] + width]
    pairs = list(zip(edges, counts, strict=True))
    return summary_pb2.HistogramProto(
        min=edges[0],
        max=limits[-1],
        num=sum(counts),
        sum=sum(edge * count for edge, count in pairs),
        sum_squares=sum(edge**2 * count for edge, count in pairs),
        bucket_limit=limits,
        bucket=counts,
    )
