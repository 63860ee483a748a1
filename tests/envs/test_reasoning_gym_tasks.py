"""Datasets of reasoning-gym: random access, splits, scoring, and no trace in global randomness."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_single.envs import reasoning_gym_tasks, splits

pytest.importorskip("reasoning_gym", reason="needs the extra envs")

OPTIONS = {"max_terms": 3, "max_digits": 2}


@pytest.fixture(scope="module")
def chain_sum():
    return reasoning_gym_tasks.Dataset("chain_sum", OPTIONS)


def _tasks(dataset, split="train", seed=0):
    return reasoning_gym_tasks.ReasoningGymTasks(split, dataset, seed=seed)


def test_tasks_are_a_function_of_index_split_and_seed(chain_sum):
    again = reasoning_gym_tasks.Dataset("chain_sum", OPTIONS)
    first = [_tasks(chain_sum)[i] for i in range(20)]
    assert first == [_tasks(again)[i] for i in range(20)]
    assert first != [_tasks(chain_sum, seed=1)[i] for i in range(20)]
    assert first[0].id == "chain_sum/train/0"
    for task in first:
        assert task.question.endswith(f": {task.data['expression']} =")
        assert task.answer == str(eval(task.data["expression"]))
        assert json.loads(json.dumps(task.data)) == task.data


def test_no_question_is_in_both_splits_whatever_the_seeds(chain_sum):
    train, held_out = (
        {_tasks(chain_sum, split, seed)[i].question for i in range(60) for seed in (0, 1)}
        for split in ("train", "eval")
    )
    assert len(train) > 60
    assert len(held_out) > 60
    assert not train & held_out


def test_seeds_of_runs_share_no_entries():
    seeds = [reasoning_gym_tasks.seed_of_run(seed) for seed in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**32 - reasoning_gym_tasks.PLACES for seed in seeds)
    near = [abs(a - b) for a in seeds[:10] for b in seeds[:10] if a != b]
    assert min(near) > reasoning_gym_tasks.PLACES


def test_access_is_random_and_bounded(chain_sum):
    tasks = _tasks(chain_sum, "eval")
    assert len(tasks) == 100_000
    assert tasks[99_999].id == "chain_sum/eval/99999"
    for index in (-1, 100_000):
        with pytest.raises(IndexError):
            tasks[index]


def test_score_is_that_of_the_dataset(chain_sum):
    task = _tasks(chain_sum)[3]
    place = task.data["place"]
    assert chain_sum.score(place, task.answer) == 1.0
    assert chain_sum.score(place, f"{task.answer}.0") == 1.0
    assert chain_sum.score(place, str(int(task.answer) + 1)) < 1.0


def test_entries_with_a_wrong_answer_are_left_out():
    options = {"allow_parentheses": False, "operators": ["+", "*"], "min_terms": 3, "max_terms": 3}
    dataset = reasoning_gym_tasks.Dataset("basic_arithmetic", options)
    entries = [dataset.entry(place) for place in range(100)]
    wrong = [
        entry for entry in entries if str(eval(entry["metadata"]["expression"])) != entry["answer"]
    ]
    assert wrong, "the dataset has been mended; so can this be"
    tasks = [_tasks(dataset)[i] for i in range(100)]
    assert all(str(eval(task.data["expression"])) == task.answer for task in tasks)
    # Those that are no arithmetic, or say their answer in words, stay.
    for name in ("decimal_chain_sum", "countdown", "circuit_logic"):
        assert _tasks(reasoning_gym_tasks.Dataset(name, {}))[0].question


@pytest.mark.parametrize(
    "name", ["pool_matrix", "word_sorting", "gsm_symbolic", "family_relationships"]
)
def test_other_datasets_give_the_same_entry_again_and_leave_global_randomness_alone(name):
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    options = {"size": 1000}
    one, other = (reasoning_gym_tasks.Dataset(name, options) for _ in range(2))
    for index in range(5):
        task = _tasks(one)[index]
        assert task == _tasks(other)[index]
        assert one.score(task.data["place"], one.entry(task.data["place"])["answer"]) == 1.0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.long
def test_import_leaves_global_randomness_alone():
    code = (
        "import random\n"
        "random.seed(1)\n"
        "state = random.getstate()\n"
        "from jaxrl_single.envs import reasoning_gym_tasks\n"
        "reasoning_gym_tasks.load()\n"
        "assert random.getstate() == state\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("chain_sun", {}, r"no such dataset; near are \['chain_sum'"),
        ("chain_sum", {"terms": 3}, r"has \['terms'\]; 'chain_sum' knows .*'max_terms'"),
        ("chain_sum", {"min_terms": 0}, "min_terms must be positive"),
        ("word_ladder", {}, "do not suit the dataset 'word_ladder'"),
    ],
)
def test_wrong_datasets_and_options_are_refused_in_words(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        reasoning_gym_tasks.Dataset(name, options)


def test_a_split_without_questions_is_an_error_and_not_an_endless_search():
    dataset = reasoning_gym_tasks.Dataset("chain_sum", {"size": 1})
    used = 1 if splits.split_of(dataset.entry(0)["question"]) == "eval" else 0
    with pytest.raises(ValueError, match="too few different ones"):
        _tasks(dataset, ("eval", "train")[used])[0]


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl_single\[envs\]'"):
        reasoning_gym_tasks.load()
