"""What a run is refused for before anything of it is made, and what jax finds when it comes."""

import subprocess
import sys

from configs import common
from jaxrl_single.run import launch
from jaxrl_single.supervise import devices

WATCHES_THE_IMPORT = """
import os, sys
from configs import common
from jaxrl_single.run import launch
from jaxrl_single.supervise import devices

class Watch:
    def find_spec(self, name, *_):
        if name == "jax":
            print("jax finds", os.environ.get("CUDA_VISIBLE_DEVICES"), "and the cache",
                  "JAX_COMPILATION_CACHE_DIR" in os.environ)

sys.meta_path.insert(0, Watch())
devices.detect = lambda: ("gpu", ("0", "1", "2"))
config = common.base()
config.mode, config.trainer.devices = "sync", "1,2"
sys.exit(launch.dry_run(config))
"""


def test_a_single_process_has_its_devices_and_cache_before_it_has_jax(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", WATCHES_THE_IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "jax finds 1,2 and the cache True" in done.stdout


def test_a_mesh_that_does_not_fit_leaves_no_workdir(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(devices, "detect", lambda: ("gpu", ("0", "1", "2", "3")))
    config = common.base()
    config.trainer.mesh.tensor = 4
    assert launch.run(config, str(tmp_path / "run")) == 2
    assert "needs 4 devices, and the trainer has 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
