"""Every alarm is raised by what it is for, once, and by nothing of a healthy run."""

import json
import pathlib
import re

import pytest

from jaxrl_single.metrics import alarms, names

HEALTHY = {
    "episode/reward": 0.5,
    "episode/success": 0.5,
    "episode/length": 20.0,
    "episode/truncated": 0.02,
    "errors/total": 1,
    "train/trajectories": 64,
    "train/empty_update": 0.0,
    "policy/entropy": 0.2,
    "policy/log_ratio_q05": -0.3,
    "policy/log_ratio_q95": 0.2,
    "keep/fraction": 0.7,
    "staleness/dropped_fraction": 0.1,
    "critic/explained_variance": 0.1,
}
# What makes each of them hold, from step 31 on.
ILL = {
    "episodes_fail": {"errors/total": 30},
    "ratios_wide": {"policy/log_ratio_q05": -5.0},
    "nothing_kept": {"keep/fraction": 0.01},
    "entropy_gone": {"policy/entropy": 0.001},
    "length_collapse": {"episode/length": 3.0, "episode/success": 0.3},
    "episodes_cut": {"episode/truncated": 0.8},
    "no_success": {"episode/success": 0.0},
    "all_success": {"episode/success": 1.0},
    "constant_reward": {"episode/success": None, "episode/reward": -1.0},
    "staleness_at_bound": {"staleness/dropped_fraction": 0.5},
    "critic_useless": {"critic/explained_variance": -0.2},
    "success_fell": {"episode/success": 0.1},
}


def rows(count, **changes):
    """Rows of steps 1, 2 ...; the rewards of a healthy run are not all the same."""
    made = [{"step": s, **HEALTHY, "episode/reward": 0.5 + s % 3 / 10} for s in range(1, count + 1)]
    for row in made[30:]:
        row.update(changes)
    return made


def raised(found):
    return {one.alarm.name for one in found}


def test_the_table_has_names_of_its_own_and_reads_known_metrics():
    assert [alarm.name for alarm in alarms.TABLE] == list(ILL)
    for changes in (HEALTHY, *ILL.values()):
        for name in changes:
            names.check(name)


@pytest.mark.parametrize("name", ILL)
def test_each_is_raised_by_what_it_is_for(name):
    found = {one.alarm.name: one for one in alarms.scan(rows(60, **ILL[name]))}
    assert name in found
    assert 33 <= found[name].first_step <= 50
    assert found[name].now
    assert found[name].last_step == 60
    # A success that falls to nothing is told by both; nothing else comes along.
    assert set(found) <= {name, "success_fell"}


def test_a_healthy_run_raises_none():
    assert alarms.scan(rows(60)) == []


def test_numbers_that_were_not_measured_raise_none():
    empty = {name: None for name in HEALTHY}
    nan = dict.fromkeys(HEALTHY, float("nan"))
    for nothing in (empty, nan, {}):
        assert alarms.scan([{"step": s, **nothing} for s in range(1, 40)]) == []


def test_a_policy_that_succeeds_may_be_sure_of_itself():
    found = alarms.scan(rows(60, **{"policy/entropy": 0.001, "episode/success": 0.95}))
    assert raised(found) == set()


def test_few_rows_raise_none():
    assert alarms.scan([{"step": s, "episode/success": 0.0} for s in range(1, 10)]) == []


def test_an_alarm_is_told_once_and_its_end_is_known():
    watcher, told = alarms.Watcher(), []
    ill = ILL["episodes_cut"]
    course = [*rows(45, **ill), *({"step": s, **HEALTHY} for s in range(46, 70))]
    course += [{"step": s, **HEALTHY, **ill} for s in range(70, 90)]
    for row in course[:69]:
        told += watcher.take(row)
    assert raised(told) == {"episodes_cut"}
    assert "alarm episodes_cut at RL step 37" in alarms.sentence(told[0])
    (over,) = watcher.raised()
    assert (over.first_step, over.now) == (37, False)
    assert 45 <= over.last_step < 60
    for row in course[69:]:
        assert watcher.take(row) == []  # again, but it was told
    assert watcher.raised()[0].now


def test_a_run_that_goes_back_forgets_what_came_after():
    watcher = alarms.Watcher()
    for row in rows(60, **ILL["no_success"]):
        watcher.take(row)
    assert "no_success" in raised(watcher.raised())
    for row in [{"step": s, **HEALTHY} for s in range(31, 50)]:
        watcher.take(row)
    assert watcher.raised() == []


def test_the_docs_tell_of_each_in_the_words_of_the_table():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    assert re.findall(r"^### `(\w+)`$", page, re.MULTILINE) == [a.name for a in alarms.TABLE]
    for alarm in alarms.TABLE:
        section = page.partition(f"### `{alarm.name}`\n")[2].partition("\n### ")[0]
        words = " ".join(section.split()).lower()
        for text in (alarm.meaning, alarm.causes, alarm.advice):
            assert text.lower() in words, (alarm.name, text)


def test_rows_of_the_file_are_read_as_they_are(tmp_path):
    """What json makes of a row is what the watcher takes."""
    lines = [json.dumps(row) for row in rows(60, **ILL["nothing_kept"])]
    assert raised(alarms.scan(map(json.loads, lines))) == {"nothing_kept"}
