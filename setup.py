"""Package jaxrl_single: single-rollout asynchronous RL for LLM agents in JAX."""

from setuptools import find_packages, setup

CORE = [
    "absl-py>=2.1",
    "aiohttp>=3.12",
    "chex>=0.1.90",
    "etils[epath]>=1.10",
    "flax>=0.12.8",
    "grain>=0.2.12",
    "jax>=0.10",
    "jinja2>=3.1",
    "ml_collections>=1.0",
    "ml_dtypes>=0.4",
    "numpy>=2.0",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.11.30",
    "rich>=13.9",
    "safetensors>=0.5",
    "tensorboardX>=2.6",
    "tokenizers>=0.21",
]
EXTRAS = {
    "plot": ["matplotlib>=3.9"],
    "tpu": ["jax[tpu]"],
    "cuda": ["jax[cuda13]"],  # the newest; the same as cuda13
    "cuda12": ["jax[cuda12]"],  # for drivers older than 580
    "cuda13": ["jax[cuda13]"],
    "hf": ["torch>=2.6", "transformers>=4.51"],  # to compare with; checkpoints need neither
    "envs": ["math-verify>=0.9", "reasoning-gym>=0.1.25"],
    "gguf": ["gguf>=0.17"],
    "vllm": ["vllm>=0.32"],  # better in an environment of its own, see configs/tiny_sao_vllm.py
    "test": [
        "hypothesis>=6.100",
        "import-linter>=2.1",
        "jaxtyping>=0.3",
        "openai>=1.60",
        "pytest>=8.3",
        "pytest-xdist>=3.6",
        "ruff>=0.9",
    ],
}
EXTRAS["test"] += EXTRAS["plot"] + EXTRAS["gguf"] + EXTRAS["envs"]
EXTRAS["dev"] = EXTRAS["test"]

setup(
    name="jaxrl_single",
    version="0.1.0",
    description="Single-rollout asynchronous reinforcement learning for LLM agents, in JAX",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["jaxrl_single", "jaxrl_single.*", "configs"]),
    install_requires=CORE,
    extras_require=EXTRAS,
)
