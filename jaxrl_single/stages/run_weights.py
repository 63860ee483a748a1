"""The weights of a run, wherever it has them, as the tensors of a checkpoint of others."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

import ml_collections
import numpy as np

from jaxrl_single import checkpoint as checkpoint_lib
from jaxrl_single import param_tree, workdir
from jaxrl_single.models import config as model_config
from jaxrl_single.models import hf, hf_config, pretrained
from jaxrl_single.stages import best, build, sampler_process
from jaxrl_single.stages import world as world_lib
from jaxrl_single.weights import filesystem

# Stages with a policy or a critic, the last one first, and where their states have it.
_POLICIES = {"rl": "policy_params/", "warm_start": ""}
_CRITICS = {"rl": "critic_params/", "value_pretraining": ""}


@dataclasses.dataclass(frozen=True)
class RunWeights:
    """A policy or a critic of a run.

    Attributes:
      where: in words, such as "version 3".
      text: a directory with its tokenizer.
      description: of the model.
      params: nested dict; leaves are arrays, or tensors on disk.
      is_critic: it has a value head.
      version: of a policy: its number if it was published, else the step of its checkpoint.
    """

    where: str
    text: pathlib.Path
    description: hf_config.Description
    params: param_tree.Params
    is_critic: bool
    version: int = 0

    def write_text(self, directory: pathlib.Path) -> None:
        """As `pretrained.Pretrained.write_text`."""
        pretrained.write_text(self.text, directory)

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """As `hf.tensors`."""
        return hf.tensors(self.description.model, self.params, is_critic=self.is_critic)


def find(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    version: int | str | None = None,
    critic: bool = False,
) -> RunWeights:
    """The weights of a run.

    Args:
      version: of the policy, that was published; "best" = that of the best evaluation; None = the
        newest, or if there is none (any more) that of the newest checkpoint.
      critic: that of the newest checkpoint instead.

    Raises:
      ValueError: there is none.
      weights.base.InvalidWeights, checkpoint.CheckpointError: damaged, or no such version.
    """
    if critic:
        return _of_checkpoint(config, paths, _CRITICS, is_critic=True)
    if version == "best":
        return _best(config, paths)
    run_id = workdir.run_id_of(paths)
    store = filesystem.FileWeights(sampler_process.weights_directory(config, paths), run_id)
    version = store.latest() if version is None else version
    if version is None:
        return _of_checkpoint(config, paths, _POLICIES, is_critic=False)
    params = param_tree.unflatten(store.open(version))
    where = f"version {version}"
    return RunWeights(where, paths.tokenizer, describe(config), params, False, version)


def _best(config: ml_collections.ConfigDict, paths: workdir.Workdir) -> RunWeights:
    evaluation = workdir.read_best(paths)
    if evaluation is None:
        raise ValueError(
            f"{paths.root} has no best version: no evaluation is recorded yet, or the run has "
            "checkpoint.keep_best=False; leave the version out to take the newest"
        )
    version = evaluation.policy_version
    params = param_tree.unflatten(best.open_store(paths).open(version))
    where = f"version {version}, the best that was evaluated ({evaluation.success:.3f} success)"
    return RunWeights(where, paths.tokenizer, describe(config), params, False, version)


def describe(config: ml_collections.ConfigDict) -> hf_config.Description:
    """The model of a run, as a checkpoint says it."""
    language, _ = world_lib.make_language(config)
    shape: model_config.ModelConfig = build.model_shape(config, language.vocab_size)
    context_length = config.env.max_tokens
    if config.model.path:
        context_length = pretrained.describe(config.model.path).context_length
    return hf_config.Description(shape, context_length, language.stop_token_ids)


def _of_checkpoint(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    stages: dict[str, str],
    *,
    is_critic: bool,
) -> RunWeights:
    for stage, part in stages.items():
        directory = paths.stage_checkpoints(stage)
        newest = workdir.newest_checkpoint(directory)
        if newest is None:
            continue
        flat = checkpoint_lib.read_part(directory, newest[0], part)
        if flat:  # an algorithm without a critic leaves none
            where = f"{'critic' if is_critic else 'policy'} of {stage}, step {newest[0]}"
            params = param_tree.unflatten(flat)
            text, description = paths.tokenizer, describe(config)
            return RunWeights(where, text, description, params, is_critic, newest[0])
    what = "a critic" if is_critic else "published weights, nor a checkpoint of its policy"
    raise ValueError(f"{paths.root} has not {what} yet; {', '.join(reversed(stages))} come first")
