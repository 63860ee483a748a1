"""The table: names, one's own environments, and the calculator's section of the config."""

import asyncio
import json
import subprocess
import sys

import numpy as np
import pytest

from configs import common
from jaxrl_single.envs import calculator, table


def _section(**changes):
    return {**common.base().env.to_dict(), **changes}


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'calcolator'; known are \['calculator', 'tools'\]"):
        table.get("calcolator")


def test_own_environment_by_module_and_factory(tmp_path, monkeypatch):
    (tmp_path / "my_env_for_test.py").write_text(
        "from jaxrl_single.envs import table\n"
        "def spec():\n"
        "    mine = table.ENVS['calculator']\n"
        "    return table.EnvSpec(mine.make_env, mine.make_tasks, mine.make_chat)\n"
        "def wrong():\n"
        "    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = table.get("my_env_for_test:spec")
    assert spec.make_script is None
    assert spec.make_tasks(_section(), "eval", 0)[3].id == "calculator/eval/3"
    with pytest.raises(ValueError, match=r"returned a int; expected .*EnvSpec"):
        table.get("my_env_for_test:wrong")
    with pytest.raises(ValueError, match="no attribute 'nothing'"):
        table.get("my_env_for_test:nothing")
    with pytest.raises(ValueError, match="No module named 'no_such_module'"):
        table.get("no_such_module:spec")


def test_section_reaches_the_environment_and_the_tasks():
    spec = table.get("calculator")

    async def observation(**changes):
        env = spec.make_env(_section(**changes))()
        await env.reset(spec.make_tasks(_section(), "train", 0)[0], seed=0)
        return (await env.step("<call>1+1")).observation

    assert asyncio.run(observation()) == "2"
    assert asyncio.run(observation(tool_enabled=False)) == calculator.ERROR
    question = spec.make_tasks(_section(num_operations=4, operators="*"), "train", 0)[0].question
    assert question.count("*") == 4
    with pytest.raises(ValueError, match="tool_latency_spread is 2"):
        spec.make_env(_section(tool_latency_spread=2))


def test_each_episode_gets_an_environment_of_its_own():
    make = table.get("calculator").make_env(_section())
    assert make() is not make()


def test_script_plays_tasks_of_the_table():
    spec = table.get("calculator")
    task = spec.make_tasks(_section(), "train", 0)[0]
    script = spec.make_script(_section())(task, mistake_rate=0.0, rng=np.random.default_rng(0))
    assert asyncio.run(script.act(task.question)).startswith("<call>")


def _write_tasks(path, questions):
    lines = [json.dumps({"question": text, "answer": str(eval(text))}) for text in questions]
    path.write_text("\n".join(lines))
    return str(path)


def test_tasks_files_replace_generated_tasks(tmp_path):
    section = _section(
        tasks_file=_write_tasks(tmp_path / "train.jsonl", ["1+2", "(3+4)*5"]),
        eval_tasks_file=_write_tasks(tmp_path / "eval.jsonl", ["6-7"]),
    )
    spec = table.get("calculator")
    assert [task.question for task in spec.make_tasks(section, "train", 0)] == ["1+2", "(3+4)*5"]
    assert [task.answer for task in spec.make_tasks(section, "eval", 0)] == ["-1"]


def test_tasks_files_with_faults_are_refused(tmp_path):
    spec = table.get("calculator")
    train = _write_tasks(tmp_path / "train.jsonl", ["1+2", "2+2"])
    overlap = _write_tasks(tmp_path / "overlap.jsonl", ["5+5", "2+2"])
    strange = tmp_path / "strange.jsonl"
    strange.write_text('{"question": "1+2", "answer": "3"}\n{"question": "what?", "answer": "3"}')
    with pytest.raises(ValueError, match="give both, or neither"):
        spec.make_tasks(_section(tasks_file=train), "train", 0)
    with pytest.raises(ValueError, match=r"1 of 2 questions .*id 'overlap/2'"):
        spec.make_tasks(_section(tasks_file=train, eval_tasks_file=overlap), "train", 0)
    with pytest.raises(ValueError, match=r"strange\.jsonl, line 2: 'w' at position 0"):
        spec.make_tasks(_section(tasks_file=str(strange), eval_tasks_file=train), "train", 0)


def test_light_packages_import_no_jax():
    code = (
        "import sys\n"
        "import jaxrl_single.envs.table, jaxrl_single.rollout.scripted\n"
        "import jaxrl_single.data.ticket_files\n"
        "heavy = [m for m in ('jax', 'jaxlib', 'flax', 'grain') if m in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
