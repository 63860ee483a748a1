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
        ("sync.lag", 5, "exceeds rl.max_staleness"),
        ("batch.row_buckets", (48,), "multiple of"),
        ("rl.max_staleness", 0, "use mode=sync"),
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
