"""Eight fake CPU devices and a compilation cache, set before jax is imported."""

import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"
_flags = os.environ.get("XLA_FLAGS", "")
for _name, _value in {
    "xla_force_host_platform_device_count": 8,
    # It starts collectives that do not depend on each other at once. With eight devices on few
    # cores there are not threads enough for all, and they wait for each other for ever.
    "xla_cpu_enable_concurrency_optimized_scheduler": "false",
}.items():
    if _name not in _flags:
        _flags += f" --{_name}={_value}"
os.environ["XLA_FLAGS"] = _flags.strip()
_cache = pathlib.Path(__file__).parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_cache))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

# Most tests compile more than they compute.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
