"""Interpreters for attempts to break out of them."""

import os
import shutil

import pytest
import sandbox_lab

KINDS = ["namespaces", "bubblewrap"] if shutil.which("bwrap") else ["namespaces"]


@pytest.fixture(scope="module", params=KINDS)
def interpreters(request):
    os.environ["SANDBOX_TEST_SECRET"] = sandbox_lab.SECRET
    pool = sandbox_lab.isolated_pool(request.param, spares=sandbox_lab.SPARES)
    yield pool
    pool.close()
    del os.environ["SANDBOX_TEST_SECRET"]


@pytest.fixture
def others_run_on(interpreters):
    """After every attempt the pool serves the next episode as ever."""
    yield
    assert sandbox_lab.run_one(interpreters, "6 * 7").output == "42\n"
