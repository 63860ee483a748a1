"""Published weights come back bit for bit, and whatever is torn, foreign or corrupt is refused."""

import contextlib
import errno
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import time

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from jaxrl_single import param_tree, workdir
from jaxrl_single.weights import base, filesystem


def _params(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "embedding": {"table": rng.standard_normal((5, 3)).astype(np.float32)},
        "layers": {
            "attention": {"q_proj": jnp.asarray(rng.standard_normal((2, 3, 4)), jnp.bfloat16)},
            "scale": rng.standard_normal((4, 2)).astype(np.float32).T,  # not contiguous
        },
        "bias": np.float32(seed),
    }


@pytest.fixture
def store(tmp_path):
    return filesystem.FileWeights(tmp_path / "weights", run_id="run-a")


def test_fetch_returns_what_was_published(store):
    assert store.latest() is None
    params = _params(0)
    sha256 = store.publish(3, params, metadata={"step": 3, "reward": 0.25})
    fetched, metadata = store.fetch(3)
    assert metadata == {"step": 3, "reward": 0.25}
    assert store.latest() == 3
    expected, found = param_tree.flatten(params), param_tree.flatten(fetched)
    assert list(found) == list(expected)
    for path, array in expected.items():
        assert found[path].dtype == array.dtype, path
        np.testing.assert_array_equal(found[path], array)
    assert base.params_sha256(fetched) == sha256 == base.params_sha256(params)


def test_sha256_sees_bytes_paths_shapes_and_dtypes_but_not_order():
    one = {"a": {"x": np.zeros((2, 3), np.float32)}, "b": np.ones(2, np.float32)}
    same = {"b": np.ones(2, np.float32), "a": {"x": np.zeros((2, 3), np.float32)}}
    assert base.params_sha256(one) == base.params_sha256(same)
    for other in (
        {"a": {"x": np.zeros((3, 2), np.float32)}, "b": np.ones(2, np.float32)},
        {"a": {"x": np.zeros((2, 3), np.int32)}, "b": np.ones(2, np.float32)},
        {"a": {"y": np.zeros((2, 3), np.float32)}, "b": np.ones(2, np.float32)},
        {"a": {"x": np.full((2, 3), -0.0, np.float32)}, "b": np.ones(2, np.float32)},
    ):
        assert base.params_sha256(one) != base.params_sha256(other)


def test_a_tensor_on_disk_is_hashed_in_few_parts(store, monkeypatch):
    params = {
        "tall": np.arange(960_000, dtype=np.float32).reshape(30_000, 32),
        "empty": np.zeros((3, 0), np.float32),
        "none": np.zeros((0, 3), np.float32),
        "one": np.float32(2),
    }
    store.publish(1, params, metadata={})
    opened, safe_open = [], filesystem.safetensors.safe_open
    monkeypatch.setattr(
        filesystem.safetensors, "safe_open", lambda *a, **k: opened.append(a) or safe_open(*a, **k)
    )
    tensors = store.open(1)
    assert len(opened) < 20  # of 3.8 MB
    assert {path: one.sha256() for path, one in tensors.items()} == {
        path: base.tensor_sha256(np.asarray(array)) for path, array in params.items()
    }


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_weights_that_are_not_finite_are_neither_published_nor_fetched(
    store, monkeypatch, number, dtype
):
    odd = np.ones((2, 3), dtype)
    odd[1, 2] = number
    params = _params(0) | {"odd": odd}
    words = r"tensor odd holds a number that is not finite: (nan|-?inf) at \[1, 2\]"
    with pytest.raises(base.InvalidWeights, match=words):
        store.publish(1, params, metadata={})
    assert os.listdir(store.directory) == []
    with monkeypatch.context() as patch:  # of a writer that does not look
        patch.setattr(base, "refuse_not_finite", lambda *_: None)
        store.publish(1, params, metadata={})
    for read in (store.fetch, store.open):
        with pytest.raises(base.InvalidWeights, match=words):
            read(1)


@pytest.mark.parametrize("key", ["a/b", "", 3])
def test_a_key_that_is_no_path_element_is_an_error(key):
    with pytest.raises(ValueError, match="keys are non-empty strings"):
        param_tree.flatten({"outer": {key: np.zeros(1)}})


def test_versions_count_up_and_are_never_reused(store):
    store.publish(1, _params(1), metadata={})
    store.publish(4, _params(4), metadata={})
    store.prune(keep=1)
    for version in (4, 1, 0, -1):
        with pytest.raises(ValueError, match=r"version 4 is there.*latest\(\) \+ 1"):
            store.publish(version, _params(9), metadata={})
    assert store.versions() == [4]
    np.testing.assert_array_equal(store.fetch(4)[0]["bias"], np.float32(4))


def test_prune_keeps_the_newest_and_the_pinned(store):
    for version in range(6):
        store.publish(version, _params(version), metadata={})
    assert store.prune(keep=2, pinned=[1, 77]) == [0, 2, 3]
    assert store.versions() == [1, 4, 5]
    assert sorted(os.listdir(store.directory)) == [f"v{v:09d}" for v in (1, 4, 5)]
    with pytest.raises(base.MissingVersion, match="no version 2"):
        store.fetch(2)
    with pytest.raises(ValueError, match="keep is 0"):
        store.prune(keep=0)


def test_foreign_run_is_refused(store):
    filesystem.FileWeights(store.directory, run_id="run-b").publish(1, _params(0), metadata={})
    with pytest.raises(base.InvalidWeights, match="run 'run-b', this is run 'run-a'"):
        store.fetch(1)


def test_torn_versions_are_refused(store):
    store.publish(1, _params(0), metadata={})
    place = store.directory / "v000000001"
    tensors = place / "params.safetensors"
    whole = tensors.read_bytes()
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        tensors.write_bytes(whole[:length])
        with pytest.raises(base.InvalidWeights, match=r"v000000001: params.safetensors is torn"):
            store.fetch(1)
    tensors.write_bytes(whole)
    store.fetch(1)
    (place / "STABLE").unlink()
    assert store.latest() is None
    with pytest.raises(base.InvalidWeights, match="torn, STABLE is missing"):
        store.fetch(1)
    (place / "STABLE").touch()
    (place / "manifest.json").write_text((place / "manifest.json").read_text()[:-30])
    with pytest.raises(base.InvalidWeights, match=r"manifest.json is torn"):
        store.fetch(1)
    tensors.unlink()
    (place / "manifest.json").unlink()
    with pytest.raises(base.InvalidWeights, match=r"torn, manifest.json is missing"):
        store.fetch(1)


def test_every_flipped_byte_of_a_tensor_is_found_and_the_tensor_named(store):
    store.publish(1, {"a": {"x": np.arange(3.0)}, "b": np.ones(2)}, metadata={})
    tensors = store.directory / "v000000001" / "params.safetensors"
    whole = tensors.read_bytes()
    for at in range(len(whole) - 40, len(whole)):  # 24 bytes of a/x, then 16 of b
        tensors.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        name = "a/x" if at < len(whole) - 16 else "b"
        with pytest.raises(base.InvalidWeights, match=f"v000000001: tensor {name} .* sha256"):
            store.fetch(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m["tensors"].pop("b"), r"disagree about \['b'\]"),
        (lambda m: m["tensors"]["b"].update(shape=[1, 2]), "tensor b .* shape"),
        (lambda m: m["tensors"]["b"].update(dtype="int64"), "tensor b .* dtype"),
        (lambda m: m.update(version=2), "is of version 2"),
        (lambda m: m.pop("metadata"), "incomplete"),
        (lambda m: m.update(sha256="0" * 64), "contradicts its own checksum"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(store, change, named):
    store.publish(1, {"a": {"x": np.arange(3.0)}, "b": np.ones(2)}, metadata={})
    manifest_file = store.directory / "v000000001" / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    change(manifest)
    manifest_file.write_text(json.dumps(manifest))
    with pytest.raises(base.InvalidWeights, match=named):
        store.fetch(1)


def test_a_failed_publish_leaves_nothing(store):
    with pytest.raises(TypeError):
        store.publish(1, _params(0), metadata={"not json": object()})
    assert os.listdir(store.directory) == []
    store.publish(1, _params(0), metadata={})


@contextlib.contextmanager
def full_disk():
    """Files may not grow beyond 4 kB, which the system reports as it does a full disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize(
    ("size", "metadata"), [(10_000, {}), (1, {"long": "x" * 10_000})], ids=["tensors", "manifest"]
)
def test_a_full_disk_is_told_to_people_and_leaves_nothing(store, size, metadata):
    params = {"w": np.zeros(size, np.float32)}
    with full_disk(), pytest.raises(workdir.CannotWrite, match="v000000001: File too large"):
        store.publish(1, params, metadata=metadata)
    assert os.listdir(store.directory) == []
    store.publish(1, {"w": np.zeros(1, np.float32)}, metadata={})


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "writable")]
)
def test_the_advice_follows_what_the_system_said(store, monkeypatch, number, words):
    def refuse(*_):
        raise safetensors.SafetensorError(f"I/O error: in words (os error {number})")

    monkeypatch.setattr(filesystem.safetensors.numpy, "save_file", refuse)
    with pytest.raises(workdir.CannotWrite, match=words):
        store.publish(1, {"w": np.zeros(1)}, metadata={})


def test_a_place_where_nothing_can_be_written_is_told_to_people(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(workdir.CannotWrite, match="Not a directory"):
        filesystem.FileWeights(tmp_path / "file" / "weights", run_id="run-a")


def _publish_for_ever(directory: pathlib.Path) -> None:
    store = filesystem.FileWeights(directory, run_id="run-a")
    for version in range(10**6):
        store.publish(version, {"x": np.full(20_000, version, np.float32)}, metadata={"v": version})
        store.prune(keep=2)


def test_readers_are_safe_beside_a_writer_that_is_killed(store):
    """Fetches race publish and prune; kill -9 leaves only what a new writer reclaims."""
    writer = multiprocessing.get_context("spawn").Process(
        target=_publish_for_ever, args=(store.directory,)
    )
    writer.start()
    fetched, deadline = set(), time.monotonic() + 60
    while len(fetched) < 20 and time.monotonic() < deadline:
        for version in store.versions():
            try:
                params, metadata = store.fetch(version)
            except base.MissingVersion:
                continue
            assert metadata == {"v": version}
            np.testing.assert_array_equal(params["x"], np.full(20_000, version, np.float32))
            fetched.add(version)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert len(fetched) >= 20
    newest = store.latest()
    (store.directory / ".writing-99-1").mkdir()
    store.publish(newest + 1, {"x": np.zeros(1)}, metadata={})
    assert all(name.startswith("v") for name in os.listdir(store.directory))


def test_a_trainer_killed_while_it_forgets_can_publish_again(store, monkeypatch):
    """Deleting takes a file after the other; whatever was done, the version is gone."""
    for version in range(3):
        store.publish(version, _params(version), metadata={})

    def killed(path, **options):
        (pathlib.Path(path) / filesystem.MARKER).unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(filesystem.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.forget_after(1)
    again = filesystem.FileWeights(store.directory, run_id="run-a")
    assert again.versions() == [0, 1]
    again.publish(2, _params(7), metadata={})
    assert sorted(path.name for path in store.directory.iterdir()) == [
        f"v{version:09d}" for version in range(3)
    ]


@pytest.mark.parametrize("version", [10**18, 10**300])
def test_a_version_of_any_length_is_one_that_is_not_there(store, version):
    with pytest.raises(base.MissingVersion):
        store.fetch(version)
    with pytest.raises(base.MissingVersion):
        store.open(version)
