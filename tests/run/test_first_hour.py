"""What a new user may get wrong in the first hour: each is told in a sentence, exit code 2."""

import json
import pathlib
import subprocess
import sys

FILES = {
    "bug.py": "def get_config(arg=''):\n    return undefined_name\n",
    "syntax.py": "def get_config(arg=''):\n    return (\n",
    "none.py": "def get_config(arg=''):\n    return None\n",
    "own.py": "from ml_collections import ConfigDict\n\n\ndef get_config(arg=''):\n"
    "    return ConfigDict({'seed': 0})\n",
    "train.jsonl": '{"question": "1+1", "answer": "2"}\n',
    "eval.jsonl": '{"question": "1+2", "answer": "3"}\n',
    "torn.jsonl": '{"question": "1+2", "answer": "3"}\n{"question": \n',
    "lacks.jsonl": '{"question": "1+2"}\n',
    "file": "x",
    "run/run.json": '{"run_id": "a", "started": 1}',
    "torn/run.json": "{",
    "list/run.json": '{"run_id": "a", "started": 1}',
    "list/config.json": "[]",
}
TASKS = "env.tasks_file=DIR/{0}.jsonl env.eval_tasks_file=DIR/eval.jsonl"
# Overrides of a good config (or another command after a blank), and words of the sentence.
OVERRIDES = {
    "rl.num_stepz=3": "did you mean num_steps?",
    "rll.num_steps=3": "there is no field 'rll' in this config; did you mean rl?",
    "rl.num_steps=abc": "--config.rl.num_steps is 'abc', expected a whole number",
    "rl.num_steps=": "is '', expected a whole number",
    "rl=3": "--config.rl is a section; set one of its fields",
    "seed.x=1": "seed is one value, 0, and has no fields",
    "seed=-1": "seed is -1, must be in [0, 4294967295]",
    "mode=async": "mode is 'async', allowed are local, sync",
    "batch.num_trajectories=0": "batch.num_trajectories is 0, must be at least 1",
    "batch.row_length=8": "env.max_tokens (96) exceeds batch.row_length (8)",
    "policy_optimizer.learning_rate=nan": "must be a finite number",
    "sampler.port=70000": "sampler.port is 70000, must be in [0, 65535]",
    "rollout.client=http sampler.host=0.0.0.0": "which others can reach, so it needs a secret",
    "env.name=calculater": "env.name is 'calculater'; known are",
    TASKS.format("gone"): "gone.jsonl: cannot be read",
    TASKS.format("torn"): "torn.jsonl, line 2: not JSON",
    TASKS.format("lacks"): "line 1: lacks ['answer']",
    TASKS.format("eval"): "1 of 1 questions of env.eval_tasks_file are in env.tasks_file too",
    "env.tasks_file=DIR/train.jsonl": "are needed together",
    "model.path=DIR/gone": "there is no such directory or file",
    "model.path=DIR/file": "not a GGUF file",
}
COMMANDS = {
    "local": "--config is missing",
    "local --config=configs/tiny_sao.py": "--workdir is missing",
    "local --config=configs/gone.py --workdir=DIR/new": "there is no such file",
    "local --config=tiny_sao --workdir=DIR/new": "did you mean configs/tiny_sao.py?",
    "local --config=README.md --workdir=DIR/new": "is not a Python file",
    "local --config=configs --workdir=DIR/new": "is a directory",
    "local --config=configs/presets.py --workdir=DIR/new": "has no function get_config(arg)",
    "local --config=DIR/bug.py --workdir=DIR/new": "name 'undefined_name' is not defined",
    "local --config=DIR/syntax.py --workdir=DIR/new": "syntax.py, line 2: '(' was never closed",
    "local --config=DIR/none.py --workdir=DIR/new": "get_config returns a ConfigDict, and this",
    "local --config=DIR/own.py --workdir=DIR/new": "mode is missing; derive the config from",
    "local --config=configs/tiny_sao.py:tinny --workdir=DIR/new": "unknown config switch 'tinny'",
    "local --config.seed=1 --config=configs/tiny_sao.py --workdir=DIR/new": "must come after",
    "local --config=configs/tiny_sao.py --workdr=DIR/new": "did you mean --workdir?",
    "local --config=configs/tiny_sao.py --workdir=DIR/new more": "unknown arguments ['more']",
    "trainer": "--workdir is missing",
    "trainer --workdir=DIR/gone": "gone holds no run: run.json is missing",
    "trainer --workdir=DIR/torn": "torn/run.json is not JSON",
    "trainer --workdir=DIR/list": "config.json is not the config of a run",
    "rollout --workdir=DIR/run": "config.json is missing",
    "inspect DIR/gone": "gone holds no run: run.json is missing",
    "plot DIR/gone --output=DIR/x.png": "holds no step of RL yet",
    "export DIR/gone": "gone holds no run: run.json is missing",
    "export DIR/run --output=DIR/none/x": "there is no such directory",
    "import_records --from=trl --input=DIR/gone --output=DIR/o": "No such file or directory",
    "convert --from=DIR/gone --to=DIR/o": "gone: there is no such directory or file",
    "convert --from=DIR/file --to=DIR/o": "file: not a GGUF file",
    "convert --from=DIR/run --to=DIR/o": "run holds no config yet: config.json is missing",
    "convert --from=DIR/file --to=DIR/run": "run exists already; choose another directory",
    "convert --from=DIR/file --to=DIR/o --version=x": "'x' is neither a number nor 'best'",
    "convert --from=DIR/file --to=DIR/o --version=3": "file is not the workdir of a run",
    "convert --from=DIR/file --to=DIR/o --dtype=int3": "argument --dtype: invalid choice: 'int3'",
    "import_records --from=trll --input=DIR/file --output=DIR/o": "invalid choice: 'trll'",
    "import_records --from=trl --input=DIR/torn.jsonl --output=DIR/o": "expected a JSON object",
    "import_records --from=trl --input=DIR/run --output=DIR/o": "Is a directory",
    "import_records --from=store --input=DIR/gone --output=DIR/o": "there is no run here",
    "import_records --from=store --input=DIR/run --output=DIR/o --steps=x": "expected numbers",
    "export DIR/run --form=text": "argument --form: invalid choice: 'text'",
    "export DIR/run --output=DIR/run": "Is a directory",
    "plot": "the following arguments are required: WORKDIR, --output",
    "inspect DIR/file": "file holds no run: run.json is missing",
}


def test_each_mistake_is_told_in_a_sentence(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    good = "local --config=configs/tiny_sao.py:tiny --workdir=DIR/new"
    rows = {
        " ".join([good, *(f"--config.{one}" for one in overrides.split())]): words
        for overrides, words in OVERRIDES.items()
    } | COMMANDS
    assert len(rows) >= 40
    commands = [
        ["jaxrl_single.run." + row.split()[0], *row.replace("DIR", str(tmp_path)).split()[1:]]
        for row in rows
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.forked"],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    for (row, words), (code, errors) in zip(rows.items(), json.loads(done.stdout), strict=True):
        assert (code, "Traceback" in errors) == (2, False), (row, errors)
        assert words in errors, (row, errors)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "gone").exists()
    assert not (tmp_path / "o").exists()


def messages():
    """The table of docs/troubleshooting.md."""
    rows = {f"--config.{' --config.'.join(o.split())}": w for o, w in OVERRIDES.items()} | COMMANDS
    return "\n".join(f"| `{given}` | {words} |" for given, words in rows.items())


def test_the_docs_have_the_same_table():
    page = pathlib.Path(__file__).parents[2] / "docs" / "troubleshooting.md"
    assert messages() in page.read_text()
