"""Fields that a config lacks, misspells, or gives values of another kind."""

from configs import common
from jaxrl_single.supervise import config_shape


def problems(change):
    config = common.base()
    with config.unlocked():
        change(config)
    return sorted(config_shape.problems(config))


def test_the_common_config_has_none():
    assert problems(lambda config: None) == []


def test_each_kind_is_named_with_what_is_expected():
    def change(config):
        config.rl = {**config.rl.to_dict(), "num_steps": "many", "num_stepz": 3}
        del config["eval"]
        del config.batch["row_length"]
        config.env.my_own_field = 1  # an environment may have fields of its own

    assert problems(change) == [
        "batch.row_length is missing; derive the config from configs/common.py",
        "eval is missing; derive the config from configs/common.py",
        "rl.num_steps is 'many', expected a whole number",
        "rl.num_stepz is not a field of the config; did you mean num_steps?",
    ]
