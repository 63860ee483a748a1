"""What stays of a run: which trajectories, the evidence of which steps, and how much in all."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from jaxrl_single import evidence, store, types, workdir
from jaxrl_single.data import token_batch

_log = logging.getLogger(__name__)
_OF_BATCH = (
    "tokens",
    "segment_ids",
    "trajectory_index",
    "action_mask",
    "loss_mask",
    "turn_ids",
    "policy_versions",
    "rewards",
    "temperature",
    "rollout_logprobs",
    "entropies",
)
_OF_UPDATE = ("policy_logprobs", "policy_entropies", "weights", "coefficients")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which trajectories stay; see `config.trajectories`.

    Attributes:
      keep: all | every_nth | none.
      every: the number of every_nth.
    """

    keep: str = "none"
    every: int = 1

    def holds(self, step: int) -> bool:
        """True for a step whose trajectories stay; step 0 is all that comes before RL."""
        if self.keep == "every_nth":
            return step > 0 and step % self.every == 0
        return self.keep == "all"


NOTHING = Rule()


class Finished:
    """Consumed trajectories: their files go when a checkpoint covers them, away or to stay."""

    def __init__(self, rule: Rule):
        self.rule = rule
        self._folders: dict[str, str] = {}  # by key; "" = away

    def trained(self, keys: Iterable[str], *, step: int, purpose: str) -> None:
        self._add(keys, f"train/{step:08d}-{purpose}" if self.rule.holds(step) else "")

    def dropped(self, keys: Iterable[str], *, step: int) -> None:
        self._add(keys, f"train/{step:08d}-dropped" if self.rule.keep == "all" else "")

    def evaluated(self, keys: Iterable[str], purpose: str) -> None:
        """`purpose` is "STAGE@STEP"; the gate is a check, and no evaluation."""
        stage, _, step = purpose.partition("@")
        stay = self.rule.keep != "none" and stage != "gate"
        self._add(keys, f"eval/{int(step):08d}-{stage}" if stay else "")

    def useless(self, keys: Iterable[str]) -> None:
        self._add(keys, "")

    def settle(self, box: store.TrajectoryStore) -> None:
        """Moves and deletes; call it when a checkpoint covers what was added."""
        box.keep(self.state())
        box.delete(self._folders)
        self._folders = {}

    def state(self) -> dict[str, str]:
        """What is to stay, and where; for a checkpoint, if the process dies before `settle`."""
        return {key: folder for key, folder in self._folders.items() if folder}

    def restore(self, state: Mapping[str, str]) -> None:
        self._folders = dict(state)

    def _add(self, keys: Iterable[str], folder: str) -> None:
        self._folders |= dict.fromkeys(keys, folder)


class Keeper:
    """Writes the evidence of steps, and bounds what stays of a run.

    Args:
      max_gb: of kept trajectories and evidence together, 10^9 bytes; the oldest steps go first.
    """

    def __init__(self, paths: workdir.Workdir, *, max_gb: float):
        self._paths = paths
        self._max_bytes = max_gb * 1e9
        self._sizes: dict[pathlib.Path, int] = {}
        self._said = False

    def write(
        self,
        facts: evidence.Facts,
        batch: token_batch.TokenBatch,
        found: Mapping[str, jax.Array],
    ) -> None:
        """Writes what a step said of each token; `found` is the step's, on the devices.

        Raises:
          workdir.CannotWrite: the disk is full; nothing half-written stays.
        """
        found = {name: np.asarray(array) for name, array in jax.device_get(dict(found)).items()}
        if facts.critic_only:
            found = {name: array for name, array in found.items() if name not in _OF_UPDATE}
        count = len(facts.trajectories)
        per_token = {name: np.asarray(getattr(batch, name)) for name in _OF_BATCH} | found
        bootstrap = per_token.pop("bootstrap_values", np.zeros(count, np.float32))
        index = per_token["trajectory_index"].reshape(-1)
        # Trajectory after trajectory; a stable sort leaves their tokens in order.
        order = np.argsort(index, kind="stable")[np.count_nonzero(index < 0) :]
        arrays = {name: array.reshape(-1)[order] for name, array in per_token.items()}
        arrays |= {
            "reward": np.asarray(batch.reward)[:count],
            "bootstrap_values": bootstrap[:count],
        }
        evidence.write(self._paths.samples, evidence.Evidence(facts, arrays))
        self.bound()

    def bound(self) -> None:
        """Deletes the oldest steps, with all that is kept of them, until the rest is within it."""
        held = self._held()
        sizes = {path: self._sizes.get(path) or _size(path) for path in held}
        for oldest in sorted(set(held.values())):
            if sum(sizes.values()) <= self._max_bytes:
                break
            if not self._said:
                self._said = True
                _log.warning(
                    "what is kept of this run exceeds trajectories.max_gb=%g: the oldest steps go, "
                    "from now on without a further message",
                    self._max_bytes / 1e9,
                )
            for path in [path for path in sizes if held[path] == oldest]:
                _remove(path)
                del sizes[path]
        # Evidence may be written again by a resume, and folders fill up in one go.
        self._sizes = {path: size for path, size in sizes.items() if path.suffix == ""}

    def forget_after(self, step: int) -> None:
        """Forgets what lies after this step: the run goes on from there and makes it again."""
        for path, of in self._held().items():
            if of > step:
                _remove(path)

    def _held(self) -> dict[pathlib.Path, int]:
        """Files and folders that stay, with their steps."""
        of_steps = {path: step for step, path in evidence.files(self._paths.samples).items()}
        for split in types.SPLITS:
            of_steps |= store.kept(self._paths.trajectories, split)
        return of_steps


def facts(
    trajectories: Sequence[types.Trajectory],
    batch: token_batch.TokenBatch,
    *,
    step: int,
    policy_version: int,
    algorithm: str,
    critic_only: bool,
) -> evidence.Facts:
    """The facts of a step on these trajectories, of which `batch` was packed."""
    of_trajectories = tuple(
        {
            "key": one.key,
            "task_id": one.task_id,
            "group_id": one.group_id,
            "bootstrap": bool(cut),
        }
        for one, cut in zip(trajectories, batch.bootstrap, strict=False)
    )
    run_id = trajectories[0].run_id
    return evidence.Facts(run_id, step, policy_version, algorithm, critic_only, of_trajectories)


def _size(path: pathlib.Path) -> int:
    """Bytes of a file, or of the files of a folder."""
    files = path.iterdir() if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
