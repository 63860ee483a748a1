"""Runs that keep evidence: it agrees with the scorer, with a second scoring, and costs no bit."""

import json
import pathlib
import re
import shlex
import sys

import numpy as np
import pytest

from jaxrl_single import checkpoint, evidence, workdir
from jaxrl_single.run import import_records, rescore, score
from jaxrl_single.stages import build, trainer_process
from jaxrl_single.supervise import workdir_config
from tests.configs import test_runs

pytestmark = pytest.mark.slow
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "evidence.md"
MODULES = {"import_records": import_records, "score": score, "rescore": rescore}


def small(name):
    """On coins, with batches that wait a step, so that ratios are not 1."""
    config = test_runs.small(name)
    config.sync.lag = 1
    config.rl.num_steps = 3
    config.policy_optimizer.learning_rate = 3e-2
    config.checkpoint.update({"every_steps": 1, "keep": 5})
    return config


def play(root, config, **trajectories):
    paths, _ = workdir.create(root)
    config.trajectories.update(trajectories)
    workdir_config.check(paths, config.to_dict())
    trainer_process.run(config, paths, stopping=lambda: False, beat=lambda: None)
    return paths


@pytest.fixture(scope="module")
def sao(tmp_path_factory):
    return play(tmp_path_factory.mktemp("runs") / "sao", small("tiny_sao"), keep="all")


def command(monkeypatch, module, *words):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
    assert module.main() == 0


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def scored(monkeypatch, records, config):
    """Coefficients of a file of records, by the command, with the settings of the run."""
    output = records.with_suffix(".scores")
    settings = [f"--set={name}={value}" for name, value in build.overrides(config).items()]
    command(
        monkeypatch, score, f"--algorithm={config.algorithm.name}", *settings,
        f"--input={records}", f"--output={output}",
    )  # fmt: skip
    return [line["coefficients"] for line in lines(output)[:-1]]


def check_coefficients(monkeypatch, paths, config, step, records):
    found = evidence.read(evidence.files(paths.samples)[step])
    coefficients = scored(monkeypatch, records, config)
    assert len(coefficients) == len(found.facts.trajectories)
    for number, got in enumerate(coefficients):
        np.testing.assert_allclose(got, found.of(number)["coefficients"], atol=1e-5, rtol=1e-5)
    assert np.abs(found.arrays["coefficients"]).max() > 1e-3
    mask = found.arrays["action_mask"]
    ratios = found.arrays["policy_logprobs"] - found.arrays["rollout_logprobs"]
    assert np.abs(ratios[mask]).max() > 1e-3
    return found


def test_the_scorer_finds_the_coefficients_of_the_step(sao, monkeypatch, tmp_path, capsys):
    records = tmp_path / "records.jsonl"
    command(
        monkeypatch, import_records, "--from=store", f"--input={sao.root}", "--steps=3",
        f"--output={records}",
    )  # fmt: skip
    told = capsys.readouterr().err
    assert "8 of them have the policy_logprobs that the step computed, 8 the critic's" in told
    found = check_coefficients(monkeypatch, sao, small("tiny_sao"), 3, records)
    assert found.facts.policy_version == 2
    assert set(found.arrays["policy_versions"][found.arrays["action_mask"]]) == {1}


def test_a_second_scoring_finds_what_the_step_found(sao, monkeypatch, tmp_path):
    """Step 3 began with the policy of step 2; its values are of the critic that it left."""
    found = evidence.read(evidence.files(sao.samples)[3])
    for choice, names in (
        ("--step=2", ("policy_logprobs", "policy_entropies")),
        ("--version=2", ("policy_logprobs", "policy_entropies")),
        ("--version=best", ()),
        ("--step=3", ("values",)),
    ):
        output = tmp_path / "again.jsonl"
        command(monkeypatch, rescore, sao.root, choice, "--trajectories=3", f"--output={output}")
        for number, record in enumerate(lines(output)):
            recorded = found.of(number)
            mask = recorded["action_mask"]
            for name in names:
                got = np.array(record[name], float)[mask]
                np.testing.assert_allclose(got, recorded[name][mask], atol=1e-5)
    assert {"ref_logprobs", "entropies", "rewards"} <= set(record)


def test_evidence_changes_no_bit(sao, tmp_path):
    none = play(tmp_path / "none", small("tiny_sao"), keep="none")
    assert not none.samples.exists()
    assert not (none.trajectories / "kept").exists()
    for part in ("policy_params/", "critic_params/"):
        left, right = (
            checkpoint.read_part(paths.stage_checkpoints("rl"), 3, part) for paths in (sao, none)
        )
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=part + name)


@pytest.mark.long
def test_the_page_runs_as_written(sao, monkeypatch, tmp_path, capsys):
    """Its commands and its Python, on step 3 of this run instead of the quickstart's step 160."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny_sao").symlink_to(sao.root)
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text(), re.S)
    texts = {kind: re.sub(r"\b160\b", "3", text) for kind, text in blocks}
    for line in texts["bash"].splitlines():
        if not line.startswith("#"):
            module, *words = shlex.split(line.removeprefix("python -m jaxrl_single.run."))
            command(monkeypatch, MODULES[module], *words)
    assert "sao " in capsys.readouterr().out
    exec(texts["python"], {})
    key = evidence.read_facts(sao.samples / "3.safetensors").trajectories[0]["key"]
    assert capsys.readouterr().out.startswith(key)


@pytest.mark.long
def test_a_row_with_groups_and_without_a_critic(monkeypatch, tmp_path):
    config = small("tiny_grpo")
    paths = play(tmp_path / "run", config, keep="all")
    records = tmp_path / "records.jsonl"
    command(monkeypatch, rescore, paths.root, "--step=2", "--trajectories=3", f"--output={records}")
    found = check_coefficients(monkeypatch, paths, config, 3, records)
    assert "values" not in found.arrays


@pytest.mark.long
def test_what_the_sampler_recorded_beside_the_tokens_is_scored_too(monkeypatch, tmp_path):
    config = small("tiny_klpo")
    paths = play(tmp_path / "run", config, keep="all")
    records = tmp_path / "records.jsonl"
    command(monkeypatch, rescore, paths.root, "--step=2", "--trajectories=3", f"--output={records}")
    for record in lines(records):
        rows = [row for row in record["aux_policy_logprobs"] if row]
        recorded = [row for row in record["aux_rollout_logprobs"] if row]
        assert np.shape(rows) == np.shape(recorded)
        assert np.abs(np.subtract(rows, recorded)).max() > 1e-4
    check_coefficients(monkeypatch, paths, config, 3, records)
