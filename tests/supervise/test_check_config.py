import pytest

from configs import common
from jaxrl_single.supervise import check_config, config_fields, workdir_config


def test_the_base_config_is_valid():
    check_config.check(common.base())


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("mode", "asynchronous", "allowed are local, sync"),
        ("rollout.temperature", 0.0, "greater than 0"),
        ("env.max_tokens", 500, "exceeds batch.row_length"),
        ("rollout.max_in_flight", 65, "exceeds sampler.num_slots"),
        ("rollout.client", "grpc", "allowed are in_process, http"),
        ("sampler.num_processes", 2, "need rollout.client=http"),
        ("rollout.sampler_urls", ("http://a:1",), "need rollout.client=http"),
        ("sampler.port", -1, r"is -1, must be in \[0, 65535\]"),
        ("sync.lag", 5, "exceeds rl.max_staleness"),
        ("batch.row_buckets", (48,), "multiple of"),
        ("rl.max_staleness", 0, "use mode=sync"),
        ("rollout.open_batches", 4, r"exceeds rl.max_staleness \+ 1 \(3\)"),
        ("env.tasks_file", "tasks.jsonl", "needed together"),
        ("warm_start.mistake_rate", 1.5, r"\[0, 1\]"),
        ("seed", -1, r"must be in \[0, 4294967295\]"),
        ("trainer.log_every", 0, "must be at least 1"),
        ("trainer.no_progress_s", 0.0, "must be greater than 0"),
        ("trainer.memory_fraction", -1.0, r"must be in \(0, 1\]"),
        ("trainer.mesh.data", 0, "must be at least 1"),
        ("supervisor.heartbeat_s", -1.0, "must be greater than 0"),
        ("supervisor.stop_timeout_s", -1.0, "must be greater than 0"),
        ("policy_optimizer.learning_rate", -1e-3, "must be at least 0"),
        ("critic_optimizer.b1", 1.0, r"must be in \[0, 1\)"),
        ("policy_optimizer.b2", -0.1, r"must be in \[0, 1\)"),
        ("policy_optimizer.decay_steps", -5, "must be at least 0"),
        ("policy_optimizer.clip_norm", -1.0, "must be at least 0"),
        ("warm_start.learning_rate", -1.0, "must be at least 0"),
        ("warm_start.batch_size", 0, "must be at least 1"),
        ("warm_start.num_demonstrations", 63, r"is 63, fewer than warm_start.batch_size \(64\)"),
        ("value_pretraining.num_trajectories", 0, "must be at least 1"),
        ("value_pretraining.num_trajectories", 1, "none is left to train"),
        ("value_pretraining.eval_every", 0, "must be at least 1"),
        ("value_pretraining.patience", 0, "must be at least 1"),
        ("gate.max_difference", -1.0, "must be at least 0"),
        ("eval.periodic_num_tasks", 0, "must be at least 1"),
        ("model.size", "tinny_moe", "is 'tinny_moe', allowed are glm4.5, .*tiny_moe"),
        ("batch.rows_per_micro_batch", 0, "must be at least 1"),
        ("batch.row_buckets", (), "is empty"),
        ("batch.row_buckets", (0, 64), "holds 0, must be at least 1"),
        ("batch.row_buckets", (64, 32), "must be ascending"),
        ("batch.row_buckets", ("all", 64), "holds 'all', must be at least 1"),
        ("batch.row_buckets", (64, 64), "must be ascending"),
        ("sampler.prefill_pages", (), "is empty"),
        ("sampler.prefill_pages", (8, 4), "must be ascending"),
        ("sampler.cache_sizes", (0.5, 1.5), r"holds 1.5, must be in \(0, 1\]"),
        ("sampler.decode_slots", (0,), "holds 0, must be at least 1"),
        ("sampler.cache_tokens", 95, r"below env.max_tokens \(96\)"),
        ("critic.rules", (("value_head/.*", "trian"),), "label 'trian', allowed are train, frozen"),
        ("critic.rules", (("(", "train"),), r"'\(', which is no regular expression"),
        ("critic.rules", ("train",), "each is a pair of regex and label"),
        ("critic.rules", (), "is empty"),
        ("rl.critic_only_steps", 160, r"is 160, must be below rl.num_steps \(160\)"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(path, value, words):
    config = common.base()
    section, _, name = path.rpartition(".")
    (config[section] if section else config)[name] = value
    with pytest.raises(check_config.ConfigError, match=words) as error:
        check_config.check(config)
    assert path in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("mode", "sync", "mode=sync is one process"),
        ("rollout.sampler_urls", ("localhost:80",), "expected http://HOST:PORT"),
        ("rollout.max_in_flight", 81, r"\(40\) of 2 sampler"),
    ],
)
def test_what_does_not_go_with_samplers_over_http(path, value, words):
    config = common.base()
    config.rollout.client, config.sampler.num_processes = "http", 2
    config.rollout.max_in_flight = 80
    check_config.check(config)
    section, _, name = path.rpartition(".")
    (config[section] if section else config)[name] = value
    with pytest.raises(check_config.ConfigError, match=words):
        check_config.check(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"rl.num_steps": 0},  # no RL
        {"warm_start.num_steps": 0, "warm_start.num_demonstrations": 1},  # no warm start
        {"warm_start.workdir": "runs/other", "warm_start.num_demonstrations": 1},
        {"value_pretraining.max_steps": 0, "value_pretraining.num_trajectories": 1},
        {"eval.every_steps": 0},
        {"policy_optimizer.clip_norm": 0.0, "policy_optimizer.decay_steps": 0},
        {"rl.kl_budget": 0.0, "rl.kl_max_scale": 1.0},
        {"sampler.cache_tokens": 0, "sampler.port": 0, "sampler.num_aux_draws": 0},
        {"rollout.open_batches": 0, "env.num_train_tasks": 0, "supervisor.max_restarts": 0},
        {"model.path": "a/checkpoint", "model.size": "no name of ours"},
    ],
)
def test_values_that_switch_something_off_are_allowed(changes):
    config = common.base()
    config.update_from_flattened_dict(changes)
    check_config.check(config)


def test_every_number_of_the_config_has_a_range():
    """But those that the environment or the algorithm checks by itself."""
    fields = workdir_config.flatten(common.base().to_dict())
    numbers = {
        path
        for path, value in fields.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    section = common.base().env.to_dict()
    own = {f"env.{name}" for name in section} - set(config_fields.RANGES)
    own |= {path for path in numbers if path.startswith("algorithm.")}
    assert numbers - own == set(config_fields.RANGES)
    several = {*config_fields.EACH, *config_fields.ASCENDING, *config_fields.CHOICES}
    assert several <= set(fields)


@pytest.mark.parametrize(
    ("path", "value", "needs", "least_draws", "words"),
    [
        ("sampler.num_aux_draws", 0, ("aux",), 1, "is 0, and algorithm 'a' needs at least 1"),
        ("sampler.num_aux_draws", 1, ("aux",), 2, "is 1, and algorithm 'a' needs at least 2"),
        ("sampler.top_k", 0, ("topk",), 0, "is 0, and algorithm 'a' needs at least 1"),
    ],
)
def test_what_an_algorithm_asks_of_the_sampler(path, value, needs, least_draws, words):
    config = common.base()
    config.rl.critic_only_steps = 0
    asked = dict(needs=needs, num_minibatches=1, least_draws=least_draws)
    check_config.check_algorithm(config, "a", **asked)
    config.update_from_flattened_dict({path: value})
    with pytest.raises(check_config.ConfigError, match=rf"{path} {words}"):
        check_config.check_algorithm(config, "a", **asked)


def test_minibatches_that_are_not_in_the_config_are_asked_for():
    """The length of episodes depends on them, and who bounds it does not know the table."""
    config = common.base()
    config.rl.critic_only_steps = 0
    del config.algorithm.num_minibatches
    check_config.check_algorithm(config, "a", needs=(), num_minibatches=1)
    with pytest.raises(check_config.ConfigError, match=r"algorithm.num_minibatches is not .* 4"):
        check_config.check_algorithm(config, "a", needs=(), num_minibatches=4)


def test_samplers_of_others_may_have_any_number_of_slots():
    config = common.base()
    config.rollout.update({"client": "http", "max_in_flight": 500})
    config.rollout.sampler_urls = ("http://a:1",)
    check_config.check(config)


def test_experts_are_recorded_of_mixtures_only():
    config = common.base()
    config.sampler.record_experts = True
    check_config.check(config)
    config.model.size = "tiny"
    with pytest.raises(
        check_config.ConfigError, match=r"record_experts is on, but .*'tiny' has no"
    ):
        check_config.check(config)


def test_all_problems_are_listed_at_once():
    config = common.base()
    config.mode = "x"
    config.rl.group_size = 0
    with pytest.raises(check_config.ConfigError, match=r"(?s)mode.*rl\.group_size"):
        check_config.check(config)


def test_a_sampler_that_others_reach_needs_a_secret(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXRL_SAMPLER_TOKEN", raising=False)
    config = common.base()
    config.rollout.client, config.sampler.host = "http", "0.0.0.0"
    with pytest.raises(check_config.ConfigError, match="needs a secret"):
        check_config.check(config)
    config.sampler.token_file = str(tmp_path / "secret")
    with pytest.raises(check_config.ConfigError, match=r"sampler\.token_file.*No such file"):
        check_config.check(config)
    (tmp_path / "secret").write_text("s3cret\n")
    check_config.check(config)
    config.sampler.token_file = ""
    monkeypatch.setenv("JAXRL_SAMPLER_TOKEN", "s3cret")
    check_config.check_service(config)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("mode", "sync", "rollout.client is vllm, and mode=sync is one process"),
        ("sampler.swap", "keep", "sampler.swap=recompute"),
        ("sampler.record_experts", True, "experts are not recorded from vLLM"),
        ("vllm.url", "localhost:8000", "expected http://HOST:PORT"),
    ],
)
def test_what_vllm_cannot_do_is_refused(path, value, words):
    config = common.base()
    config.update({"rollout": {"client": "vllm"}, "sampler": {"swap": "recompute"}})
    check_config.check(config)
    section, _, name = path.rpartition(".")
    (config[section] if section else config)[name] = value
    with pytest.raises(check_config.ConfigError, match=words):
        check_config.check(config)


@pytest.mark.parametrize(
    ("changes", "needs", "minibatches", "words"),
    [
        ({"rl.critic_only_steps": 5}, (), 1, "critic_only_steps is 5, and algorithm 'a' has no"),
        ({}, ("groups", "states"), 1, "algorithm.name is 'a', which needs states: rollouts are"),
        ({"rl.group_size": 1}, ("groups",), 1, "group_size is 1, .*compares the trajectories"),
        ({"batch.row_buckets": (64, 80)}, (), 2, "row_buckets holds 80, not a multiple of .*x alg"),
    ],
)
def test_what_an_algorithm_asks_of_the_rest(changes, needs, minibatches, words):
    config = common.base()
    fine = {"rl.critic_only_steps": 0, "rl.group_size": 8, "batch.rows_per_micro_batch": 16}
    config.update_from_flattened_dict(fine | {"batch.row_buckets": (64,)})
    check_config.check_algorithm(config, "a", needs=("groups",), num_minibatches=2)
    config.update_from_flattened_dict(changes)
    with pytest.raises(check_config.ConfigError, match=words):
        check_config.check_algorithm(config, "a", needs=needs, num_minibatches=minibatches)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("trainer.mesh.fsdp", 5, r"not a multiple of trainer.mesh.data x fsdp \(1 x 5\)"),
        ("trainer.mesh.context", 2, "nothing is split over it yet"),
    ],
)
def test_a_mesh_that_would_not_work_or_do_nothing_is_refused(path, value, words):
    config = common.base()
    config.update_from_flattened_dict({path: value})
    with pytest.raises(check_config.ConfigError, match=words):
        check_config.check(config)
