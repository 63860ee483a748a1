"""The entry `tools`: what the env section of a config becomes, and which sections are refused."""

import asyncio
import json

import numpy as np
import pytest

from configs import common
from jaxrl_single.envs import table
from jaxrl_single.envs.sandbox import isolation

pytest.importorskip("reasoning_gym", reason="needs the extra envs")

SPEC = table.get("tools")
CHAIN_SUM = {"dataset": "chain_sum", "dataset_options": {"max_terms": 3, "max_digits": 2}}


def _section(**changes):
    return {**common.base().env.to_dict(), **CHAIN_SUM, **changes}


def _files(tmp_path):
    for name, question in (("train", "1+1"), ("eval", "2+2")):
        row = {"question": question, "answer": str(eval(question)), "expression": question}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    return {
        "tasks_file": str(tmp_path / "train.jsonl"),
        "eval_tasks_file": str(tmp_path / "eval.jsonl"),
        "dataset": "",
        "answer_check": "number",
    }


def _play(section, *tasks):
    make_env, make_script = SPEC.make_env(section), SPEC.make_script(section)

    async def play(task):
        script = make_script(task, mistake_rate=0.0, rng=np.random.default_rng(0))
        env = make_env()
        observation = await env.reset(task, seed=0)
        try:
            while True:
                result = await env.step(await script.act(observation))
                if result.terminated:
                    return result
                observation = "\n".join(result.texts)
        finally:
            await env.close()

    async def play_all():
        return await asyncio.gather(*(play(task) for task in tasks))

    return asyncio.run(play_all())


@pytest.mark.parametrize(
    ("dataset", "answer_check"), [("chain_sum", "dataset"), ("basic_arithmetic", "number")]
)
def test_script_solves_tasks_of_the_dataset(dataset, answer_check):
    section = _section(dataset=dataset, answer_check=answer_check)
    tasks = SPEC.make_tasks(section, "eval", 0)
    for result in _play(section, *(tasks[index] for index in range(10))):
        assert result.info == {"success": True}
        assert result.reward == 1.0


def test_script_solves_tasks_with_python():
    try:
        isolation.choose("auto")
    except isolation.NoIsolation as error:
        pytest.skip(str(error))
    section = _section(tools=("python",), answer_check="number")
    (result,) = _play(section, SPEC.make_tasks(section, "train", 0)[0])
    assert result.info == {"success": True}


def test_tasks_of_files_with_data_for_the_script(tmp_path):
    section = _section(**_files(tmp_path))
    (train,), (held_out,) = (SPEC.make_tasks(section, split, 0) for split in ("train", "eval"))
    assert (train.question, held_out.question) == ("1+1", "2+2")
    (result,) = _play(section, train)
    assert result.info == {"success": True}


def test_prompt_gives_schemas_to_the_template_or_shows_them():
    told = SPEC.make_prompt(_section(system_prompt="Be brief."))
    assert told.system == "Be brief."
    assert [tool["function"]["name"] for tool in told.tools] == ["calculator"]
    shown = SPEC.make_prompt(_section(system_prompt="Tools:\n{tools}\nUse {them}."))
    assert shown.tools == ()
    first, schema, last = shown.system.splitlines()
    assert (first, last) == ("Tools:", "Use {them}.")
    assert json.loads(schema) == told.tools[0]


def test_both_splits_and_the_judge_share_one_dataset():
    section = _section()
    train, held_out = (SPEC.make_tasks(section, split, 0) for split in ("train", "eval"))
    assert train._dataset is held_out._dataset


def test_models_without_a_tokenizer_read_questions_and_calls():
    language = SPEC.make_chat()
    question = SPEC.make_tasks(_section(), "train", 0)[0].question
    language.prompt(question)
    language.action_ids('<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call>')


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tools": ("calculater",)}, r"env.tools is .*allowed are \['calculator', 'python'\]"),
        ({"tools": ("calculator", "calculator")}, "each once"),
        ({"tool_format": "hermit"}, "env.tool_format: .*'hermes'"),
        ({"answer_form": "end"}, "env.answer_form is 'end', allowed are"),
        ({"answer_check": "model"}, "env.answer_check is 'model', allowed are"),
        ({"observation_role": "system"}, "env.observation_role is 'system', allowed are"),
        ({"tool_output_chars": 0}, "env.tool_output_chars is 0"),
        ({"tools": ("python",), "sandbox": "docker"}, "env.sandbox is 'docker', allowed are"),
        ({"tools": ("python",), "tool_timeout_s": 0}, "env.tool_timeout_s is 0"),
        ({"dataset": ""}, "answer_check is 'dataset', and env.dataset is empty"),
        ({"dataset": "chain_sun"}, "near are"),
    ],
)
def test_sections_that_cannot_be_played_are_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        SPEC.make_env(_section(**changes))


def test_tasks_come_from_one_place():
    for changes in ({"dataset": ""}, {"tasks_file": "a", "eval_tasks_file": "b"}):
        with pytest.raises(ValueError, match="give one of the two"):
            SPEC.make_tasks(_section(**changes), "train", 0)


def test_without_a_tool_that_the_script_can_call_there_is_no_script():
    assert SPEC.make_script(_section(tools=())) is None


def test_people_are_told_which_walls_there_are():
    assert SPEC.notice(_section(answer_check="number")) == ""
    for changes in ({"tools": ("python",)}, {"answer_check": "math"}, {"answer_check": "dataset"}):
        told = SPEC.notice(_section(**{"answer_check": "number"} | changes, sandbox="none"))
        assert told.startswith("isolation of what the model writes: none at all")


@pytest.mark.parametrize("answer_check", ["math", "dataset"])
def test_answers_are_not_judged_without_walls_unless_that_is_asked_for(answer_check, monkeypatch):
    monkeypatch.setattr(isolation, "_failure", lambda name: "no walls here")
    with pytest.raises(isolation.NoIsolation, match="no walls here"):
        SPEC.make_env(_section(answer_check=answer_check))
    SPEC.make_env(_section(answer_check=answer_check, sandbox="none"))
