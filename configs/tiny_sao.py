"""SAO on the calculator agent with a tiny mixture-of-experts model.

Command: python -m jaxrl_single.run.local --config=configs/tiny_sao.py --workdir=runs/tiny_sao
Hardware: two CPU cores.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(arg: str = "") -> ConfigDict:
    """`tiny` shrinks the run to seconds, for tests: it shows that it runs, not that it learns."""
    return common.finish(common.base(), arg)
