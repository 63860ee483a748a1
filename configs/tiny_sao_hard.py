"""SAO on calculations with results of up to six digits: copying them is what the model finds hard.

Command: python -m jaxrl_single.run.local --config=configs/tiny_sao_hard.py --workdir=runs/hard
Hardware: two CPU cores. Measured with seed 0: held-out success 0.260 after the warm start and 0.793
(0.756 to 0.826) after 120 steps.
"""

from ml_collections import ConfigDict

from configs import common, presets


def get_config(arg: str = "") -> ConfigDict:
    """`tiny` as in tiny_sao."""
    return common.finish(presets.hard_task(), arg)
