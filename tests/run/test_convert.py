"""`python -m jaxrl_single.run.convert`: weights of others and of a run as a checkpoint."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from configs import tiny_sao
from jaxrl_single import checkpoint, param_tree, workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.models import api, hf, hf_config, hf_names, sizes
from jaxrl_single.run import convert
from jaxrl_single.stages import build
from jaxrl_single.stages import world as world_lib
from jaxrl_single.supervise import workdir_config
from jaxrl_single.weights import filesystem
from tests.models import gguf_lab

GOLDEN = pathlib.Path(__file__).parent.parent / "models" / "golden"


def random_like(leaves, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), leaves)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(paths, world, {version: params}, critic) of a run that has published twice."""
    paths, run_id = workdir.create(tmp_path_factory.mktemp("run"))
    config = tiny_sao.get_config("tiny")
    workdir_config.check(paths, config.to_dict())
    world = world_lib.make(config)
    world_lib.save_text(config, world, paths.tokenizer)
    policy, critic = build.models(config, world.language.vocab_size)
    leaves = jax.eval_shape(policy.init, jax.random.key(0))
    weights = filesystem.FileWeights(paths.weights, run_id)
    published = {version: random_like(leaves, version) for version in (0, 3)}
    for version, params in published.items():
        weights.publish(version, params, metadata={})
    values = random_like(jax.eval_shape(critic.init, jax.random.key(0)), 9)
    checkpoints = checkpoint.Checkpoints(paths.stage_checkpoints("value_pretraining"), keep=1)
    checkpoints.save(0, values, {})
    checkpoints.close()
    return paths, world, published, values


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.convert", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


@pytest.fixture
def main(monkeypatch, capsys):
    """The same in this process, where jax is there already: (exit code, errors)."""

    def called(*arguments):
        monkeypatch.setattr("sys.argv", ["convert", *map(str, arguments)])
        return convert.main(), capsys.readouterr().err

    return called


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(("wanted", "expected"), [(None, 3), (0, 0)])
def test_a_published_version_with_its_tokenizer(run, tmp_path, wanted, expected):
    paths, world, published, _ = run
    output = tmp_path / "out"
    said = convert.convert(paths.root, output, version=wanted)
    assert said == f"version {expected} is in {output}"
    shape, params = hf.load(output)
    assert shape.num_experts == 4
    assert_same(params, published[expected])
    assert hf.describe(output).context_length == 96
    text = text_lib.HfText.load(output)
    assert text.stop_token_ids == world.language.stop_token_ids
    assert text.encode("<user>(1+2)*3<end><assistant>") == world.language.prompt("(1+2)*3")


def test_a_critic_with_its_value_head(run, tmp_path):
    paths, _, _, values = run
    said = convert.convert(paths.root, tmp_path / "out", critic=True)
    assert said.startswith("critic of value_pretraining, step 0 is in")
    shape, params = hf.load(tmp_path / "out")
    assert_same(params, values)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["Qwen3MoeForTokenClassification"]
    assert written["num_labels"] == 1
    tensors = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in tensors
    np.testing.assert_array_equal(tensors["score.weight"], values["value_head"]["kernel"].T)
    np.testing.assert_array_equal(tensors["score.bias"], values["value_head"]["bias"])
    # And on: a critic of a directory stays one.
    convert.convert(tmp_path / "out", tmp_path / "again", dtype="bfloat16")
    again, halved = hf.load(tmp_path / "again")
    assert again == dataclasses.replace(shape, dtype="bfloat16")
    assert_same(halved, jax.tree.map(lambda leaf: leaf.astype("bfloat16"), values))


def test_without_published_weights_the_newest_checkpoint_is_taken(run, tmp_path):
    source, world, published, _ = run
    paths, _ = workdir.create(tmp_path / "run")
    paths.config.write_bytes(source.config.read_bytes())
    world_lib.save_text(tiny_sao.get_config("tiny"), world, paths.tokenizer)
    with pytest.raises(ValueError, match="has not published weights, nor a checkpoint"):
        convert.convert(paths.root, tmp_path / "out")
    checkpoints = checkpoint.Checkpoints(paths.stage_checkpoints("warm_start"), keep=1)
    checkpoints.save(4, published[0], {})
    checkpoints.close()
    said = convert.convert(paths.root, tmp_path / "out")
    assert said.startswith("policy of warm_start, step 4 is in")
    assert_same(hf.load(tmp_path / "out")[1], published[0])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_directory_comes_back_byte_by_byte_and_in_another_dtype(name, tmp_path):
    done = command(f"--from={GOLDEN / name}", f"--to={tmp_path / 'same'}")
    assert (done.returncode, done.stdout) == (0, f"{GOLDEN / name} is in {tmp_path / 'same'}\n")
    assert sorted(names(tmp_path / "same")) == sorted(names(GOLDEN / name))
    for tensor, array in names(GOLDEN / name).items():
        assert names(tmp_path / "same")[tensor].tobytes() == array.tobytes(), tensor
    convert.convert(GOLDEN / name, tmp_path / "wide", dtype="float32")
    shape, params = hf.load(tmp_path / "wide")
    assert shape.dtype == "float32"
    assert_same(params, hf.load(GOLDEN / name, dtype="float32")[1])


def names(directory):
    """All tensors of a directory's files by name, without code of ours."""
    tensors = {}
    for path in directory.glob("model*.safetensors"):
        tensors |= safetensors.numpy.load_file(path)
    return tensors


def test_a_gguf_file_becomes_a_directory(tmp_path):
    shape = sizes.get("tiny_llama", vocab_size=300)
    leaves = jax.eval_shape(api.build_policy(shape).init, jax.random.key(0))
    params = random_like(leaves, 4)
    path = tmp_path / "model.gguf"
    gguf_lab.write(
        path, "llama", shape, params,
        change=lambda writer: writer.add_chat_template("<a>{{ messages[0]['content'] }}"),
    )  # fmt: skip
    done = command(f"--from={path}", f"--to={tmp_path / 'out'}", "--dtype=bfloat16")
    assert done.returncode == 0, done.stderr
    found, loaded = hf.load(tmp_path / "out")
    assert found == dataclasses.replace(shape, dtype="bfloat16")
    assert_same(loaded, jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params))
    theirs, ours = text_lib.HfText.load(path), text_lib.HfText.load(tmp_path / "out")
    messages = [{"role": "user", "content": "ab 12"}]
    assert ours.render(messages) == theirs.render(messages)
    assert ours.stop_token_ids == theirs.stop_token_ids == (1,)


def test_what_a_checkpoint_says_of_generation_comes_along(tmp_path):
    convert.convert(GOLDEN / "qwen3", tmp_path / "a")
    facts = {"eos_token_id": [3, 4], "temperature": 0.6, "top_k": 20}
    (tmp_path / "a" / "generation_config.json").write_text(json.dumps(facts))
    convert.convert(tmp_path / "a", tmp_path / "b")
    assert json.loads((tmp_path / "b" / "generation_config.json").read_text()) == facts
    assert hf.describe(tmp_path / "b").stop_token_ids == (3, 4)


def test_what_is_not_there_is_told(run, tmp_path, main):
    paths = run[0]
    output = tmp_path / "out"
    code, errors = main(f"--from={paths.root}", f"--to={output}", "--version=1")
    assert code == 2
    assert "no version 1; never published, or pruned meanwhile (there are [0, 3])" in errors
    with pytest.raises(FileExistsError, match="choose another directory"):
        convert.convert(paths.root, tmp_path)
    with pytest.raises(ValueError, match="is not the workdir of a run; --version and --critic"):
        convert.convert(GOLDEN / "qwen3", output, critic=True)
    with pytest.raises(OSError, match=r"config\.json"):
        convert.convert(tmp_path, output)
    empty, _ = workdir.create(tmp_path / "run")
    code, errors = main(f"--from={empty.root}", f"--to={output}")
    assert (code, errors) == (
        2,
        f"error: {empty.root} holds no config yet: config.json is missing\n",
    )
    assert not output.exists()


def test_damaged_weights_of_a_run_are_told_and_nothing_is_written(run, tmp_path, main):
    paths, _, published, _ = run
    broken, run_id = workdir.create(tmp_path / "run")
    broken.config.write_bytes(paths.config.read_bytes())
    filesystem.FileWeights(broken.weights, run_id).publish(7, published[0], metadata={})
    (file,) = broken.weights.glob("v*/params.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    code, errors = main(f"--from={broken.root}", f"--to={tmp_path / 'out'}")
    assert code == 2
    assert "differ from manifest.json in sha256" in errors
    assert not (tmp_path / "out").exists()


MEGABYTE = 2**20
PEAK = """
import pathlib, sys
from jaxrl_single.run import convert
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
before = peak()
convert.convert(sys.argv[1], sys.argv[2], dtype=sys.argv[3])
print(peak() - before)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("source", ["directory", "gguf"])
def test_a_model_is_never_in_memory_as_a_whole(source, tmp_path):
    shape = dataclasses.replace(
        sizes.get("tiny_llama", vocab_size=300),
        num_layers=12, d_model=512, num_heads=8, num_kv_heads=8, head_size=64, d_ff=1024,
    )  # fmt: skip
    params = {
        path: np.zeros(leaf, np.float32) for path, leaf in hf_names.leaf_shapes(shape).items()
    }
    total = sum(leaf.nbytes for leaf in params.values()) // MEGABYTE
    assert total > 110
    path = tmp_path / "source"
    if source == "gguf":
        gguf_lab.write(path, "llama", shape, param_tree.unflatten(params))
    else:
        hf.save(path, shape, param_tree.unflatten(params), context_length=64)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, path, tmp_path / "out", "bfloat16"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The largest tensor (2 MB) a few times over, and pages of the interpreter.
    assert int(done.stdout) < total / 5
    written = hf_config.read(tmp_path / "out").model
    assert written == dataclasses.replace(shape, dtype="bfloat16")


def test_the_best_version_of_a_run(run, main, tmp_path):
    source, world, published, _ = run
    paths, run_id = workdir.create(tmp_path / "run")
    paths.config.write_bytes(source.config.read_bytes())
    world_lib.save_text(tiny_sao.get_config("tiny"), world, paths.tokenizer)
    code, errors = main(f"--from={paths.root}", f"--to={tmp_path / 'out'}", "--version=best")
    assert code == 2
    assert "has no best version: no evaluation is recorded yet" in errors
    evaluation = workdir.Eval("rl", 3, 3, 8, 0.75, 0.4, 0.9)
    workdir.record_eval(paths, evaluation)
    weights = filesystem.FileWeights(source.weights, workdir.run_id_of(source))
    filesystem.FileWeights(paths.best, run_id).take_only(3, weights)
    manifest = paths.best / "v000000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(workdir.run_id_of(source), run_id))
    workdir.record_best(paths, evaluation)
    said = convert.convert(paths.root, tmp_path / "out", version="best")
    assert said.startswith("version 3, the best that was evaluated (0.750 success) is in")
    assert_same(hf.load(tmp_path / "out")[1], published[3])
