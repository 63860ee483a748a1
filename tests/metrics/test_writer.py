"""metrics.jsonl and TensorBoard files, read back; and what a resume does to them."""

import math
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from jaxrl_single import workdir
from jaxrl_single.metrics import names, writer


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def lines(paths, stage="rl"):
    return [record for record in workdir.read_jsonl(paths.metrics) if record["stage"] == stage]


def events(directory):
    """All events of TensorBoard files, by the format: length, crc, data, crc."""
    found = []
    for path in sorted(pathlib.Path(directory).glob("events.*")):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            body = data[12 : 12 + size]
            crc = int.from_bytes(data[12 + size : 16 + size], "little")
            assert crc == masked_crc32c(body)
            found.append(event_pb2.Event.FromString(body))
            data = data[16 + size :]
    return found


def scalars(directory):
    return {
        (value.tag, event.step): value.simple_value
        for event in events(directory)
        for value in event.summary.value
        if value.HasField("simple_value")
    }


def test_numbers_reach_both_files(paths):
    metrics = writer.MetricsWriter(paths, "rl")
    metrics.write(1, {"episode/reward": np.float32(0.5), "policy/entropy": jnp.float32(1.25)})
    metrics.write(3, {"episode/reward": 1, "critic/explained_variance": math.nan})
    metrics.close()

    first, second = lines(paths)
    assert (first["step"], first["episode/reward"], first["policy/entropy"]) == (1, 0.5, 1.25)
    assert (second["step"], second["episode/reward"]) == (3, 1.0)
    assert second["critic/explained_variance"] is None  # not the NaN that is no JSON
    assert scalars(paths.tensorboard / "rl") == {
        ("episode/reward", 1): 0.5,
        ("policy/entropy", 1): 1.25,
        ("episode/reward", 3): 1.0,
    }


def test_histograms_reach_both_files(paths):
    metrics = writer.MetricsWriter(paths, "rl")
    metrics.write(1, {}, {"staleness/lengths_trained": ((1, 11, 21), np.array([2, 0, 5]))})
    metrics.write(2, {}, {"staleness/lengths_dropped": ((1, 11, 21), (0, 0, 0))})
    metrics.close()

    assert lines(paths)[0]["staleness/lengths_trained"] == {
        "edges": [1.0, 11.0, 21.0],
        "counts": [2, 0, 5],
    }
    (histogram,) = [
        value.histo
        for event in events(paths.tensorboard / "rl")
        for value in event.summary.value
        if value.HasField("histo")
    ]
    assert list(histogram.bucket) == [2, 0, 5]
    assert list(histogram.bucket_limit) == [11, 21, 31]
    assert (histogram.num, histogram.min, histogram.max) == (7, 1, 31)


@pytest.mark.parametrize(
    ("numbers", "histograms", "message"),
    [
        ({"episode/rewards": 1.0}, {}, "did you mean 'episode/reward'"),
        ({"episode/reward": "high"}, {}, "expected one number, got 'high'"),
        ({"episode/reward": np.ones(2)}, {}, "expected one number"),
        ({"staleness/lengths_trained": 1.0}, {}, "is a histogram"),
        ({}, {"episode/reward": ((1,), (1,))}, "is a number"),
        ({}, {"staleness/lengths_trained": ((1, 2), (1,))}, "2 edges for 1 counts"),
    ],
)
def test_a_wrong_metric_writes_nothing(paths, numbers, histograms, message):
    metrics = writer.MetricsWriter(paths, "rl")
    with pytest.raises(ValueError, match=message):
        metrics.write(1, {"policy/entropy": 1.0, **numbers}, histograms)
    assert lines(paths) == []
    metrics.write(1, {"policy/entropy": 1.0})
    metrics.close()


def test_an_unlisted_name_is_an_unknown_metric(paths):
    metrics = writer.MetricsWriter(paths, "rl")
    with pytest.raises(names.UnknownMetric):
        metrics.write(1, {"made/up": 1.0})
    metrics.close()


def test_steps_grow(paths):
    metrics = writer.MetricsWriter(paths, "rl")
    metrics.write(2, {"episode/reward": 1.0})
    with pytest.raises(ValueError, match="step 2 after step 2"):
        metrics.write(2, {"episode/reward": 1.0})
    metrics.close()


def test_a_resumed_step_appears_once(paths):
    for stage in ("warm_start", "rl"):
        metrics = writer.MetricsWriter(paths, stage)
        for step in range(6):
            metrics.write(step, {"policy/entropy": 1.0})
        metrics.close()

    resumed = writer.MetricsWriter(paths, "rl", resume_step=3)
    with pytest.raises(ValueError, match="step 3 after step 3"):
        resumed.write(3, {"policy/entropy": 2.0})
    for step in (4, 5, 6):
        resumed.write(step, {"policy/entropy": 2.0})
    resumed.close()

    assert [(r["step"], r["policy/entropy"]) for r in lines(paths)] == [
        *((step, 1.0) for step in range(4)),
        *((step, 2.0) for step in (4, 5, 6)),
    ]
    assert [record["step"] for record in lines(paths, "warm_start")] == list(range(6))
    # TensorBoard hides what came after the step where a later file says START.
    starts = [e.step for e in events(paths.tensorboard / "rl") if e.session_log.status == 1]
    assert starts == [0, 4]


def test_a_stage_that_begins_anew_forgets_its_lines(paths):
    writer.MetricsWriter(paths, "rl").write(1, {"episode/reward": 0.0})
    again = writer.MetricsWriter(paths, "rl")
    again.write(1, {"episode/reward": 1.0})
    again.close()
    assert [record["episode/reward"] for record in lines(paths)] == [1.0]


FILLS_THE_DISK = """
import resource, sys
from jaxrl_single import workdir
from jaxrl_single.metrics import writer
paths = workdir.Workdir(sys.argv[1])
metrics = writer.MetricsWriter(paths, "rl")
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
if sys.argv[2] == "board":  # it is the TensorBoard file that finds no room
    workdir.append_jsonl = lambda path, record: None
try:
    for step in range(1, 10**5):
        metrics.write(step, {"episode/reward": 1.0})
except workdir.CannotWrite as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize("which", ["metrics", "board"])
def test_a_full_disk_is_one_message_and_no_hang(paths, which):
    done = subprocess.run(
        [sys.executable, "-c", FILLS_THE_DISK, str(paths.root), which],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7
    place = paths.metrics if which == "metrics" else paths.tensorboard / "rl"
    assert done.stdout.startswith(f"cannot write {place}: ")
    assert done.stderr == ""  # no thread and no exit handler that complains once more


def test_the_writer_needs_no_jax(paths):
    code = (
        "import sys\n"
        "from jaxrl_single import workdir\n"
        "from jaxrl_single.metrics import writer\n"
        "writer.MetricsWriter(workdir.Workdir(sys.argv[1]), 'rl').write(1, {'episode/turns': 3})\n"
        "sys.exit('jax' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(paths.root)]).returncode == 0
    assert lines(paths)[0]["episode/turns"] == 3.0
