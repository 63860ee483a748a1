"""Every config runs two steps of RL and moves its policy: one for each code path; the rest slowly.

In this process, in mode sync; kills, resumes, processes and the other stages are for tests/e2e.
"""

import math

import pytest

from jaxrl_single import workdir
from jaxrl_single.stages import build, trainer_process
from jaxrl_single.supervise import workdir_config
from tests.configs.experiments import NAMES, load

CODE_PATHS = {
    "tiny_sao": "critic, two updates of it, and a policy",
    "tiny_klpo": "rows that the sampler records",
}
OTHERS = {  # that do or read something which none of the above does
    "tiny_bellman_bpo": "minibatches",
    "tiny_flash_reinforce": "one loss over several micro-batches",
    "tiny_grpo": "groups",
    "tiny_spo": "a state that every batch changes",
    "tiny_trm": "whole rows of log-probs",
}
STEPS = 2


def small(name):
    """The config as `:tiny`, without what other tests run, on the model that compiles fastest."""
    config = load(name, "tiny")
    config.mode = "sync"
    config.model.size = "tiny"
    config.env.name = "tests.configs.coin_env:factory"
    config.env.max_turn_tokens = 40  # a random policy seldom ends its turn sooner
    config.warm_start.num_steps = 0
    config.value_pretraining.max_steps = 0
    config.gate.enabled = False
    config.eval.update({"num_tasks": 2, "every_steps": 0})
    config.rl.update({"num_steps": STEPS, "critic_only_steps": 0})
    return config


def cases():
    assert set(CODE_PATHS) <= set(NAMES)
    slow = set(OTHERS)
    rest = set(NAMES) - set(CODE_PATHS) - slow
    marked = [(slow, pytest.mark.slow), (rest, pytest.mark.long)]
    return [
        *CODE_PATHS,
        *(pytest.param(name, marks=mark) for names, mark in marked for name in sorted(names)),
    ]


@pytest.mark.parametrize("name", cases())
def test_two_steps_move_the_policy(name, tmp_path):
    config = small(name)
    config.sampler.prefix_cache = "off"  # or the first shared page compiles its copying
    check_run(config, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["topk", "binary", "full"])
@pytest.mark.parametrize("name", ["tiny_klpo", "tiny_klpo_sequence"])
def test_other_kernels_have_what_they_read(name, kernel, tmp_path):
    config = small(name)
    config.algorithm.objective.kernel = kernel
    check_run(config, tmp_path)


@pytest.mark.slow
def test_a_run_on_a_mesh_and_its_continuation(tmp_path):
    """On eight devices, from the pretraining of the critic on, and again from a checkpoint."""
    config = small("tiny_sao")
    config.model.size = "tiny_moe"
    config.trainer.mesh.update({"data": 2, "fsdp": 2, "expert": 2})
    config.value_pretraining.update({"max_steps": 2, "num_trajectories": 32})
    config.gate.enabled = True
    config.eval.update({"every_steps": 1, "periodic_num_tasks": 2})
    check_run(config, tmp_path)
    config.rl.num_steps = STEPS + 1
    check_run(config, tmp_path, steps=STEPS + 1)
    evals = workdir.read_evals(workdir.Workdir(tmp_path / "run"))
    assert {evaluation.stage for evaluation in evals} == {"warm_start", "rl", "final"}


def check_run(config, tmp_path, *, steps=STEPS):
    paths, _ = workdir.create(tmp_path / "run")
    workdir_config.check(paths, config.to_dict())
    trainer_process.run(config, paths, stopping=lambda: False, beat=lambda: None)
    assert workdir.read_status(paths).stage == "done"
    found = [r for r in workdir.read_jsonl(paths.metrics) if r["stage"] == "rl"]
    assert [record["step"] for record in found] == list(range(1, steps + 1))
    for record in found:
        assert math.isfinite(record["policy/loss"])
        assert record["policy/gradient_norm"] > 0
        assert record["train/policy_version"] == record["step"]
    # Later steps compile nothing; those of a continuation are counted from its own start.
    before = found[0]["train/compilations"]
    assert all(record["train/compilations"] == before for record in found[1:STEPS])
    if build.algorithm(config).needs_critic:
        assert all(record["critic/gradient_norm"] > 0 for record in found)
