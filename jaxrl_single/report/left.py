"""How many trajectories of a run there were, how many are left, and why. No jax; reads only."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_single import store, workdir
from jaxrl_single.report import inspect


def census(paths: workdir.Workdir, split: str) -> str:
    """A sentence about one split.

    Raises:
      workdir.BrokenFile: no run lives here, or a file of it is broken.
    """
    facts = inspect.inspect(paths)
    waiting = len(store.files(paths.trajectories, split))
    left = len(store.all_files(paths.trajectories, split))
    steps = sorted(set(store.kept(paths.trajectories, split).values()))
    parts = [f"{left - waiting} of {_listed(steps)}"] if steps else []
    if waiting:
        parts.append(f"{waiting} that wait to be used or covered by a checkpoint")
    if split == "train":
        what = f"{facts['trajectories']['written']} trajectories were written for training"
    else:
        episodes = sum(evaluation["n"] for evaluation in facts["evals"])
        what = f"{episodes} episodes of {len(facts['evals'])} evaluations were played"
    found = f": {', '.join(parts)}" if parts else ""
    return f"{what}, {left} are left{found}. {_rule(paths)}"


def _listed(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    shown = [*steps[:3], "...", steps[-1]] if len(steps) > 5 else steps
    return f"{len(steps)} steps ({', '.join(map(str, shown))})"


def _rule(paths: workdir.Workdir) -> str:
    section = (workdir.read_json(paths.config) or {}).get("trajectories")
    others = "Others are deleted when a checkpoint covers them"
    if section is None or section["keep"] == "none":
        return f"{others} (trajectories.keep=none)."
    bound = f"at most {section['max_gb']:g} GB (trajectories.max_gb), the newest steps"
    if section["keep"] == "all":
        return f"All that went well stay (trajectories.keep=all), {bound}."
    every = section["every_steps"]
    return (
        f"Those of steps {every}, {2 * every}, {3 * every} ... stay (trajectories.keep=every_nth, "
        f"trajectories.every_steps={every}), {bound}. {others}."
    )
