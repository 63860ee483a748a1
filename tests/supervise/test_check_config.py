import pytest

from configs import common
from jaxrl_single.supervise import check_config


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
        ("sampler.port", -1, "must not be negative"),
        ("sync.lag", 5, "exceeds rl.max_staleness"),
        ("batch.row_buckets", (48,), "multiple of"),
        ("rl.max_staleness", 0, "use mode=sync"),
        ("rollout.open_batches", 4, r"exceeds rl.max_staleness \+ 1 \(3\)"),
        ("env.tasks_file", "tasks.jsonl", "needed together"),
        ("warm_start.mistake_rate", 1.5, r"\[0, 1\]"),
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
