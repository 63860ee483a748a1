"""What code of others throws or gives is the error of its episode, never the end of the run."""

import asyncio
import dataclasses
import importlib
import json

import pytest

from jaxrl_single import store as store_lib
from jaxrl_single import types, wire
from jaxrl_single.envs import base, calculator, chat
from jaxrl_single.envs import table as env_table
from jaxrl_single.rollout import episode, scheduler
from jaxrl_single.run import launch

CHAT = chat.CharChat.build()
LIMITS = episode.Limits(max_turns=5, max_turn_tokens=12, max_tokens=96)
RIGHT = ("<call>37+58", "<call>95*46", "<answer>4370")


class Answers:
    """A sampler that plays every ticket right."""

    async def generate(self, request):
        ids = CHAT.action_ids(RIGHT[request.turn])
        count = len(ids)
        return wire.Completion(ids, [-0.5] * count, [0.1] * count, [3] * count, "stop")

    async def release(self, session):
        pass


class Hostile(calculator.Calculator):
    """Does something bad in the fourth of the episodes."""

    what = None

    async def reset(self, task, seed):
        self.bad = task.id == "3"
        return await super().reset(task, seed)

    async def step(self, action):
        return type(self).what() if self.bad else await super().step(action)


def thrower(error):
    def throw():
        raise error

    return throw


def giver(*values, **fields):
    return lambda: base.StepResult(*values, **fields)


def drain(tmp_path, what):
    """Eight episodes through the scheduler into a store, as in a run."""
    store = store_lib.TrajectoryStore(tmp_path, "run")

    class Env(Hostile):
        pass

    Env.what = staticmethod(what)
    tasks = [types.Task(str(i), "(37+58)*46", "4370") for i in range(8)]
    tickets = [types.Ticket("run", number, 0, task) for number, task in enumerate(tasks)]
    made = scheduler.Scheduler(
        sink=store.write,
        make_env=Env,
        client_for=lambda ticket: Answers(),
        chat=CHAT,
        limits=LIMITS,
        max_in_flight=8,
    )
    played = asyncio.run(made.drain(tickets))
    assert [store.read(key).error is None for key in store.scan("train")].count(False) == 1
    return played, made


THROWN = {
    "system_exit": SystemExit(3),
    "keyboard_interrupt": KeyboardInterrupt(),
    "generator_exit": GeneratorExit(),
    "base_exception": BaseException("of no kind"),
}


@pytest.mark.parametrize("name", THROWN)
def test_c13_whatever_step_raises_is_the_error_of_its_episode(tmp_path, name):
    try:
        played, made = drain(tmp_path, thrower(THROWN[name]))
    except BaseException as error:  # pytest itself would end at some of them
        pytest.fail(f"the scheduler ended with {type(error).__name__}")
    assert [one.reward for one in played] == [1.0, 1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0]
    assert played[3].error.kind == "env"
    assert type(THROWN[name]).__name__ in played[3].error.message.splitlines()[0]
    assert (made.finished, made.errors) == (8, 1)


def test_c13_the_message_of_an_error_is_bounded_and_can_be_written(tmp_path):
    played, _ = drain(tmp_path, thrower(ValueError("\ud800" + "x" * 10_000_000)))
    message = played[3].error.message
    assert "ValueError" in message
    assert len(message) < 50_000
    message.encode()


def test_c13_notes_do_not_hide_what_was_raised(tmp_path):
    error = ValueError("the port is closed")
    error.add_note("while the ticket was played")
    played, _ = drain(tmp_path, thrower(error))
    assert played[3].error.message.splitlines()[0] == "ValueError: the port is closed"
    assert "while the ticket was played" in played[3].error.message


GIVEN = {
    "a_role_that_is_no_text": (giver("", 1.0, True, role=object()), "env", "role is"),
    "a_verdict_that_is_a_word": (giver("", 1.0, True, info={"success": "no"}), "env", "success"),
    "a_reward_that_is_a_verdict": (giver("", True, True), "reward", "reward is True"),
    "an_end_that_is_a_word": (giver("", 1.0, "no"), "env", "terminated is 'no'"),
    "too_much_to_read": (giver("1" * 2_000_000), "env", "2000000 characters"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_c13_whatever_step_gives_is_the_error_of_its_episode(tmp_path, name):
    what, kind, words = GIVEN[name]
    try:
        played, _ = drain(tmp_path, what)
    except Exception as error:
        pytest.fail(f"the scheduler ended with {error!r}")
    assert [one.error is None for one in played].count(False) == 1
    assert played[3].error.kind == kind
    assert words in played[3].error.message.splitlines()[0]


@pytest.mark.parametrize("reward", [1e39, -1e300, 10**400, 3e38], ids=range(4))
def test_c12_a_reward_that_training_cannot_hold_is_the_error_of_its_episode(tmp_path, reward):
    played, _ = drain(tmp_path, giver("", reward, True))
    assert played[3].reward is None
    assert played[3].error.kind == "reward"
    assert "must be a finite number" in played[3].error.message


QUESTIONS = [f"Which letter comes {i} places behind a?" for i in range(40)]


def _asked(tmp_path):
    """A config of `tools` whose questions are no arithmetic."""
    config = importlib.import_module("configs.smollm2_135m_tools").get_config("tiny")
    with config.unlocked():
        config.env.update({"dataset": "", "answer_check": "exact", "answer_form": "text"})
        for field, some in (("tasks_file", QUESTIONS[:32]), ("eval_tasks_file", QUESTIONS[32:])):
            path = tmp_path / f"{field}.jsonl"
            path.write_text(
                "".join(json.dumps({"question": one, "answer": "b"}) + "\n" for one in some)
            )
            config.env[field] = str(path)
    return config


def test_c35_questions_that_the_script_cannot_play_are_refused_before_anything_starts(
    tmp_path, capsys
):
    config = _asked(tmp_path)
    assert launch.dry_run(config) == 2
    assert launch.run(config, str(tmp_path / "run")) == 2
    told = capsys.readouterr().err
    assert "can't play task 'tasks_file/" in told
    assert "warm_start.demonstrations_file" in told
    assert not (tmp_path / "run").exists()


def test_c35_without_a_warm_start_the_dry_run_says_where_rl_starts(tmp_path, capsys):
    config = _asked(tmp_path)
    config.warm_start.num_steps = 0
    assert launch.dry_run(config) == 0
    assert "RL starts from a model of random weights" in capsys.readouterr().out


def breaks_in_tasks():
    def fail(section, split, seed):
        raise SystemExit("no tasks today")

    return dataclasses.replace(env_table.get("calculator"), make_tasks=fail)


def breaks_at_once():
    raise ZeroDivisionError


@pytest.mark.parametrize("name", ["breaks_in_tasks", "breaks_at_once"])
def test_an_environment_that_breaks_before_the_run_is_told_in_one_sentence(tmp_path, capsys, name):
    config = importlib.import_module("configs.tiny_sao").get_config("tiny")
    config.env.name = f"tests.cases.test_demos:{name}"
    assert launch.run(config, str(tmp_path / "run")) == 2
    told = capsys.readouterr().err
    assert "test_demos.py, line " in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "run").exists()
