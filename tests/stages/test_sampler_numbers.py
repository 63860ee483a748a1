"""What the samplers of a run report together."""

import pytest

from jaxrl_single import workdir
from jaxrl_single.metrics import names
from jaxrl_single.stages import sampler_process

ONE = {
    "compilations": 5,
    "swaps": 4,
    "swap_seconds": 2.0,
    "stall_seconds": 1.0,
    "active_slots": 3,
    "tokens": 600,
    "busy_seconds": 2.0,
}


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def started(paths, **restarts):
    children = {name.replace("_", "-"): {"restarts": count} for name, count in restarts.items()}
    workdir.write_json(paths.processes, {"children": children})


def test_nothing_without_samplers(paths):
    assert sampler_process.read_stats(paths) == {}
    started(paths, trainer=0, rollout=2)
    assert sampler_process.read_stats(paths) == {}
    started(paths, trainer=0, sampler=1)
    assert sampler_process.read_stats(paths) == {"sampler/restarts": 1}, "it has not begun"


def test_numbers_of_several_are_added_and_means_are_over_all_swaps(paths):
    started(paths, trainer=0, sampler_0=1, sampler_1=2, rollout=7)
    workdir.write_json(paths.logs / "sampler-0.json", ONE)
    other = ONE | {"swaps": 0, "swap_seconds": 0.0, "stall_seconds": 0.0, "busy_seconds": 1.0}
    workdir.write_json(paths.logs / "sampler-1.json", other)
    workdir.write_json(paths.logs / "sampler-elsewhere-77.json", ONE)  # not of this run
    found = sampler_process.read_stats(paths)
    assert found == {
        "sampler/restarts": 3,
        "sampler/compilations": 10,
        "sampler/swaps": 4,
        "sampler/swap_s": 0.5,
        "sampler/stall_s": 0.25,
        "sampler/active_slots": 6,
        "speed/sampler_tokens_per_s": 900,
    }
    for name in found:
        names.check(name)


def test_a_sampler_that_cannot_see_its_stalls_reports_none(paths):
    started(paths, sampler=0)
    known = {name: value for name, value in ONE.items() if name != "stall_seconds"}
    workdir.write_json(paths.logs / "sampler.json", known)
    found = sampler_process.read_stats(paths)
    assert "sampler/stall_s" not in found
    assert found["sampler/swap_s"] == 0.5
