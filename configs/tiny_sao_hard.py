"""SAO on calculations with results of up to six digits: copying them is what the model finds hard.

Command: python -m jaxrl_single.run.local --config=configs/tiny_sao_hard.py --workdir=runs/hard
Hardware: two CPU cores.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(arg: str = "") -> ConfigDict:
    """Leaves room at the top, so that algorithms can be told apart; `tiny` as in tiny_sao."""
    switches = common.parse_arg(arg, tiny=False)
    config = common.base()
    config.env.max_result = 999_999
    config.rl.num_steps = 120
    if switches["tiny"]:
        common.shrink(config)
    config.lock()
    return config
