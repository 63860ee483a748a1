"""The scorer computes operation by operation: many small programs, worth keeping for the next run."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def keep_small_programs():
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
