"""Atomic checkpoints of a train state and of everything that must continue with it (Orbax).

One checkpoint is one directory named by its step: the arrays (`state`), what the arrays were
(`leaves`), and a JSON object of the caller (`metadata`: position of the task iterator, tickets,
facts for people). It gets its name when it is complete, so a half-written one does not exist.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxrl_single import param_tree, workdir


class CheckpointError(RuntimeError):
    """A checkpoint cannot be saved or restored; the message says where, why, and what to do."""


class Checkpoints:
    """The checkpoints of one stage, the newest `keep` of them.

    Args:
      directory: made when it does not exist; half-written checkpoints in it are removed.
      keep: complete checkpoints that stay; older ones are deleted after a newer one is complete.

    Raises:
      workdir.CannotWrite: the directory cannot be made.
    """

    def __init__(self, directory: os.PathLike[str] | str, *, keep: int):
        self.directory = pathlib.Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(
                self.directory,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=keep,
                    enable_async_checkpointing=False,
                    cleanup_tmp_directories=True,
                ),
            )
        except OSError as error:
            raise workdir.CannotWrite(self.directory, error) from error

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint, None when there is none."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> bool:
        """Saves and returns when the checkpoint is complete.

        Args:
          step: larger than `latest_step()`.
          state: pytree of arrays; typed PRNG keys are fine, numbers belong into metadata.
          metadata: JSON object; read without jax by `workdir.newest_checkpoint`.

        Returns:
          False when this step is saved already: a step has one checkpoint, the first.

        Raises:
          CheckpointError: not possible; earlier checkpoints are intact.
        """
        latest = self.latest_step()
        if step == latest:
            return False
        if latest is not None and step < latest:
            raise CheckpointError(
                f"{self.directory}: step {step} comes before the newest checkpoint, {latest}; "
                "a run continues from its newest checkpoint"
            )
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            leaves=ocp.args.JsonSave(_describe(state)),
            metadata=ocp.args.JsonSave(workdir.plain(metadata)),
        )
        try:
            self._manager.save(step, args=items, force=True)
        except Exception as error:  # Orbax and tensorstore raise many kinds for a full disk
            kept = "there is no earlier one" if latest is None else f"step {latest} is intact"
            raise CheckpointError(
                f"cannot save the checkpoint of step {step} in {self.directory}: "
                f"{_reason(error)}; {kept}"
            ) from error
        return True

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reads a checkpoint onto the shardings of `like`.

        Args:
          like: pytree as it was saved, of arrays or of jax.ShapeDtypeStruct with a sharding;
            its values are not used.
          step: of a complete checkpoint; None = the newest.

        Returns:
          The state and the metadata.

        Raises:
          CheckpointError: no such checkpoint, it does not have the arrays of `like`, or its
            files are damaged.
        """
        step = self.latest_step() if step is None else step
        if step is None or step not in self.steps():
            raise CheckpointError(
                f"{self.directory} holds no checkpoint of step {step}, only {self.steps()}"
            )
        try:
            return self._read(step, like)
        except CheckpointError:
            raise
        except Exception as error:  # damaged files fail in many ways inside Orbax
            raise CheckpointError(
                f"{self.directory / str(step)} is damaged: {_reason(error)}; remove this "
                f"directory to continue from an earlier one of {self.steps()[:-1]}"
            ) from error

    def close(self) -> None:
        self._manager.close()

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        small = ocp.args.Composite(leaves=ocp.args.JsonRestore(), metadata=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=small)
        self._compare(step, found["leaves"], _describe(like))
        wanted = ocp.args.StandardRestore(jax.tree.map(_abstract, like))
        arrays = self._manager.restore(step, args=ocp.args.Composite(state=wanted))
        return arrays["state"], found["metadata"]

    def _compare(self, step: int, saved: dict[str, str], wanted: dict[str, str]) -> None:
        differences = [
            f"  {path}: saved {saved.get(path, 'nothing')}, wanted {wanted.get(path, 'nothing')}"
            for path in sorted({*saved, *wanted})
            if saved.get(path) != wanted.get(path)
        ]
        if differences:
            shown = "\n".join(differences[:10])
            raise CheckpointError(
                f"{self.directory / str(step)} does not fit this config; "
                f"{len(differences)} arrays differ, the first of them:\n{shown}"
            )


def read_part(directory: pathlib.Path, step: int, part: str) -> dict[str, np.ndarray]:
    """Arrays of a state whose path begins with `part`, by the rest of it, in host memory.

    Whatever devices they were on; nothing of the directory is changed, so it may be that of a
    running stage.

    Args:
      directory: of a stage's checkpoints.
      part: such as "critic_params/"; "" = all.

    Raises:
      CheckpointError: there is no such checkpoint, or its files are damaged.
    """
    options = ocp.CheckpointManagerOptions(read_only=True)
    try:
        with ocp.CheckpointManager(directory.absolute(), options=options) as manager:
            small = ocp.args.Composite(leaves=ocp.args.JsonRestore())
            leaves = manager.restore(step, args=small)["leaves"]
            paths = [path for path in leaves if path.startswith(part)]
            tree = param_tree.unflatten(dict.fromkeys(paths, 0))
            wanted = ocp.args.PyTreeRestore(
                item=tree,
                restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(np.ndarray), tree),
                partial_restore=True,
            )
            found = manager.restore(step, args=ocp.args.Composite(state=wanted))["state"]
    except Exception as error:  # damaged files fail in many ways inside Orbax
        raise CheckpointError(
            f"{directory / str(step)} cannot be read: {_reason(error)}"
        ) from error
    return {path.removeprefix(part): leaf for path, leaf in param_tree.flatten(found).items()}


def _describe(tree: Any) -> dict[str, str]:
    """Path -> "float32[2, 3]" of each leaf."""
    description = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise CheckpointError(
                f"{name} is a {type(leaf).__name__}; a state holds arrays, "
                "numbers and strings go into metadata"
            )
        if 0 in leaf.shape:
            raise CheckpointError(f"{name} has shape {leaf.shape}; empty arrays cannot be saved")
        description[name] = f"{leaf.dtype}{list(leaf.shape)}"
    return description


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _reason(error: BaseException) -> str:
    """What the operating system said, or else the first line of the exception."""
    code = re.search(r"os_error_code='(\d+)'", str(error))  # the form of tensorstore's messages
    if code is not None:
        return os.strerror(int(code[1]))
    return (str(error).strip() or repr(error)).splitlines()[0]
