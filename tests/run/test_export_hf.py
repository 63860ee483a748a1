"""`python -m jaxrl_single.run.export_hf`: weights of a run as a checkpoint of others."""

import jax
import numpy as np
import pytest

from configs import tiny_sao
from jaxrl_single import workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.models import hf
from jaxrl_single.run import export_hf
from jaxrl_single.stages import build
from jaxrl_single.stages import world as world_lib
from jaxrl_single.supervise import workdir_config
from jaxrl_single.weights import filesystem


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(paths, language, {version: params}) of a run that has published twice."""
    paths, run_id = workdir.create(tmp_path_factory.mktemp("run"))
    config = tiny_sao.get_config("tiny")
    workdir_config.check(paths, config.to_dict())
    language = world_lib.make(config).language
    world_lib.save_text(config, world_lib.make(config), paths.tokenizer)
    policy, _ = build.models(config, language.vocab_size)
    leaves = jax.eval_shape(policy.init, jax.random.key(0))
    weights, published = filesystem.FileWeights(paths.weights, run_id), {}
    for version in (0, 3):
        rng = np.random.default_rng(version)
        published[version] = jax.tree.map(
            lambda leaf, rng=rng: rng.standard_normal(leaf.shape).astype(leaf.dtype), leaves
        )
        weights.publish(version, published[version], metadata={})
    return paths, language, published


@pytest.mark.parametrize(("wanted", "expected"), [(None, 3), (0, 0)])
def test_a_version_with_its_tokenizer(run, tmp_path, wanted, expected):
    paths, language, published = run
    output = tmp_path / "out"
    assert export_hf.export(paths, str(output), wanted) == expected
    config, params = hf.load(output)
    assert config.num_experts == 4
    jax.tree.map(np.testing.assert_array_equal, params, published[expected])
    assert hf.describe(output).context_length == 96
    text = text_lib.HfText.load(output)
    assert text.stop_token_ids == language.stop_token_ids
    assert text.encode("<user>(1+2)*3<end><assistant>") == language.prompt("(1+2)*3")


def test_what_is_not_there_is_told(run, tmp_path, monkeypatch, capsys):
    paths = run[0]

    def main(*arguments):
        monkeypatch.setattr("sys.argv", ["export_hf", *map(str, arguments)])
        return export_hf.main(), capsys.readouterr().err

    code, err = main(paths.root, f"--output={tmp_path / 'out'}", "--version=1")
    assert code == 2
    assert "no version 1; never published, or pruned meanwhile (there are [0, 3])" in err
    code, err = main(paths.root, f"--output={tmp_path}")
    assert code == 2
    assert "choose another directory" in err
    code, err = main(tmp_path, f"--output={tmp_path / 'out'}")
    assert code == 2
    assert "holds no run" in err
    assert not (tmp_path / "out").exists()
