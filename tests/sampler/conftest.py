"""The engine of the sampler's tests."""

import pytest
import sampler_lab as lab

from jaxrl_single.sampler import engine as engine_lib


@pytest.fixture(params=[pytest.param("tiny", marks=pytest.mark.long), "tiny_moe"])
def size(request) -> str:
    return request.param


@pytest.fixture
def make_engine():
    """make_engine(size="tiny_moe", seed of the weights=0, **changes of SHAPE); stops them all."""
    engines = []

    def make(size="tiny_moe", weights=0, version=0, **changes) -> engine_lib.Engine:
        engine = engine_lib.Engine(
            lab.policy_of(size), lab.params_of(size, weights), version, **(lab.SHAPE | changes)
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.stop()
