"""Every config's algorithm: complete, commented, and with shapes that fit; no memory is taken."""

import functools
import math
import re

import jax
import ml_collections
import pytest

from configs import common
from jaxrl_single.algorithms import parts, row, table
from jaxrl_single.models import sizes as model_sizes
from jaxrl_single.stages import build, trainer_parts
from jaxrl_single.supervise import workdir_config
from jaxrl_single.trainer import mesh as mesh_lib
from jaxrl_single.trainer import optim
from jaxrl_single.trainer import state as state_lib
from tests.configs.experiments import NAMES, ROOT, load

PUBLISHED = [name for name in NAMES if "qwen3" in name]
EXAMPLES = {"smollm2_135m_tools"}  # named by their model
# Their trajectories have to come from rollouts of another kind than independent ones and groups.
WITHOUT_ROLLOUTS = {
    "bellman_bpo_exact",
    "branching_bpo",
    "gigrpo",
    "gpo",
    "sppo",
    "three_spo",
    "trace",
}


def test_every_row_whose_rollouts_exist_has_a_config_of_its_name():
    assert {f"tiny_{name}" for name in set(table.TABLE) - WITHOUT_ROLLOUTS} <= set(NAMES)
    for name in set(NAMES) - EXAMPLES:
        family = load(name).algorithm.name.partition("_")[0]
        assert name.removeprefix("tiny_").startswith(family)


@pytest.mark.parametrize("name", NAMES)
def test_every_hyperparameter_is_in_the_config_with_a_comment(name):
    section = load(name).algorithm
    found = workdir_config.flatten(section.to_dict())
    algorithm = build.algorithm(load(name))
    silent = {"fixed_length"} if algorithm.reduction != "fixed_length" else set()
    silent |= set() if algorithm.needs_critic else {"num_critic_steps"}
    chosen = {path for path in found if path == "name" or path.endswith(".name")}
    assert set(found) - chosen == set(row.hyperparameters(algorithm)) - silent
    source = (ROOT / "configs" / f"{name}.py").read_text()
    if "config.algorithm" not in source:
        source = (ROOT / "configs" / "common.py").read_text()
    block = source.partition('"name": "')[2].partition("        }\n    )")[0]
    for line in f'"name": "{block}'.splitlines():
        assert re.search(r"\{$|\},$|,  # \S", line), f"no comment in configs/{name}.py: {line}"


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(PUBLISHED) - EXAMPLES))
def test_a_step_of_every_row_goes_equally_far(name):
    """The optimiser counts updates, of which a step of some rows has several."""
    config, base = load(name), common.base().policy_optimizer
    updates = config.algorithm.num_minibatches * config.algorithm.num_policy_epochs
    assert config.policy_optimizer.learning_rate * updates == pytest.approx(base.learning_rate)
    assert config.policy_optimizer.decay_steps == updates * base.decay_steps


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(PUBLISHED)))
def test_a_tiny_config_repeats_the_constants_of_its_row(name):
    """So that it can be read alone; only lengths are the task's own."""
    config = load(name)
    of_row = row.hyperparameters(table.TABLE[config.algorithm.name])
    found = row.hyperparameters(build.algorithm(config))
    allowed = {"fixed_length", "keep_rule.mean_kl"}
    if "name" in config.algorithm.get("advantage", {}):
        allowed |= {f"advantage.{key}" for key in config.algorithm.advantage}
    assert {key for key in found if found[key] != of_row.get(key)} <= allowed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arg", ["", "tiny"])
def test_settings_fit_the_algorithm(name, arg):
    config = load(name, arg)
    algorithm = build.algorithm(config)
    if not algorithm.needs_critic:
        assert config.rl.critic_only_steps == 0, "steps that would train nothing"
    assert (config.rl.group_size > 1) or "groups" not in algorithm.needs
    if "tasks" in algorithm.needs:
        assert 0 < config.env.num_train_tasks <= 512, "tasks must come again"
    for rows in config.batch.row_buckets:
        assert rows // config.batch.rows_per_micro_batch % algorithm.num_minibatches == 0


@functools.cache
def parameter_shapes(vocab_size, **model):
    """Of policy and critic; tracing a model takes longer than all else here."""
    section = ml_collections.ConfigDict({"model": model})
    policy, critic = build.models(section, vocab_size)

    def make(key):
        params = policy.init(key)
        return params, critic.from_policy(params, key)

    return jax.eval_shape(make, jax.random.key(0))


def train_state_shapes(config, vocab_size):
    """What `trainer_process` makes of the config, as shapes."""
    algorithm = build.algorithm(config)
    # Of the named size, because a checkpoint may not be installed.
    model = {name: config.model[name] for name in ("size", "dtype", "remat")}
    shapes = parameter_shapes(vocab_size, path="", **model)
    policy_optimizer, critic_optimizer = trainer_parts.optimizers(config, algorithm, *shapes)

    def make(params, critic_params, key):
        return state_lib.init_train_state(
            params,
            critic_params if critic_optimizer else {},
            policy_optimizer=policy_optimizer,
            critic_optimizer=critic_optimizer,
            reference_params=params if "ref_logprobs" in algorithm.reads else {},
            algorithm_state=build.algorithm_state(algorithm),
            key=key,
        )

    return jax.eval_shape(make, *shapes, jax.random.key(0))


@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_models_and_train_state(name):
    config = load(name)
    shapes = train_state_shapes(config, vocab_size=40)
    assert shapes.policy_params["embedding"]["table"].shape[0] == 40
    algorithm = build.algorithm(config)
    assert bool(shapes.critic_params) == algorithm.needs_critic
    assert bool(shapes.reference_params) == ("reference" in algorithm.needs)
    stateful = (algorithm.advantage, algorithm.keep_rule)
    assert bool(jax.tree.leaves(shapes.algorithm_state)) == any(part.init for part in stateful)


def count(params):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_model_has_its_size_and_every_sharded_dimension_divides(name):
    config = load(name)
    shape = model_sizes.SIZES[config.model.size]
    shapes = train_state_shapes(config, shape.vocab_size)
    assert 30.4e9 < count(shapes.policy_params) < 30.6e9
    idle = (shape.num_experts - shape.experts_per_token) / shape.num_experts
    active = count(shapes.policy_params) - idle * count(shapes.policy_params["layers"]["experts"])
    assert 3.2e9 < active < 3.5e9
    sizes = config.trainer.mesh.to_dict()
    mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    placed = mesh_lib.parameter_shardings(shapes.policy_params, mesh)
    flat = jax.tree_util.tree_leaves_with_path(placed)
    for path, sharding in flat:
        asked = next(
            spec
            for pattern, spec in mesh_lib.PARAMETER_RULES
            if re.fullmatch(pattern, optim.path_name(path))
        )
        wanted = [axis if axis and sizes[axis] > 1 else None for axis in asked]
        assert list(sharding.spec) == wanted, f"{optim.path_name(path)} would be replicated"
    assert config.batch.rows_per_micro_batch % (sizes["data"] * sizes["fsdp"]) == 0


def test_a_part_may_be_chosen_by_its_name():
    algorithm = build.algorithm(load("tiny_bellman_bpo_single"))
    assert algorithm.advantage == parts.ADVANTAGES["running_mean"]
    assert algorithm.keep_rule == table.TABLE["bellman_bpo"].keep_rule


def test_shrunken_configs_keep_nothing_of_a_large_model():
    config = load("sao_math_qwen3_30b_a3b", "tiny")
    assert config.model.to_dict() == common.base().model.to_dict()
    assert config.trainer.to_dict() == common.base().trainer.to_dict()
