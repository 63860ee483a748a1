"""Datasets of the package reasoning-gym as tasks: random access, splits by hash, its own scoring.

A task keeps the seed of the dataset and the place of its entry. Whoever judges an answer makes the
entry again from them, so tasks hold JSON types only, whatever a dataset puts into its entries.
"""

from __future__ import annotations

import contextlib
import difflib
import fractions
import functools
import hashlib
import json
import random
import types as python_types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_single import types
from jaxrl_single.envs import calculator_tool, splits

PLACES = 1_000_000  # of a dataset, unless its options say otherwise as `size`
_MAX_DRAWS = 1_000  # of places, until one falls into the split
_CACHED_ENTRIES = 1024


def seed_of_run(seed: int) -> int:
    """The seed of the datasets of a run, far from that of any other run.

    The entry at a place is made from the sum of both, so neighbouring seeds would share entries.
    """
    digest = hashlib.blake2b(str(seed).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") // 4  # numpy's seeds end at 2 ** 32, and places are added


class Dataset:
    """One dataset of reasoning-gym with its options; the same place is the same entry for ever."""

    def __init__(self, name: str, options: Mapping[str, Any]):
        """Makes the dataset.

        Args:
          name: as reasoning-gym registers it, "chain_sum" for instance.
          options: of that dataset's config; `size` is the number of its places, `seed` is 0 unless
            given.

        Raises:
          ValueError: the package is missing, or there is no such dataset or option.
        """
        self.name = name
        self.seed = options.get("seed", 0)
        with _own_randomness(name):
            self._dataset = _create(name, {"seed": 0, "size": PLACES, **options})
            self.num_places = len(self._dataset)
        self._entry = functools.lru_cache(_CACHED_ENTRIES)(self._make_entry)

    def entry(self, place: int) -> dict[str, Any]:
        """{"question", "answer", "metadata"} at a place, 0 <= place < num_places."""
        return self._entry(place)

    def score(self, place: int, answer: str) -> float:
        """What the dataset's own judgement gives for an answer to the entry, 0 to 1."""
        with _own_randomness(self.name, place):
            return float(self._dataset.score_answer(answer, self.entry(place)))

    def _make_entry(self, place: int) -> dict[str, Any]:
        with _own_randomness(self.name, place):
            return self._dataset[place]


class ReasoningGymTasks(Sequence[types.Task]):
    """Tasks of a dataset; the same index gives the same task for ever.

    A question's hash decides its split, so a question of one split never occurs in the other,
    whatever the seeds. Within a split questions may repeat. Entries whose answer is not the value
    of their own expression are left out.
    """

    def __init__(self, split: str, dataset: Dataset, *, seed: int):
        """Fixes the order of the places.

        Raises:
          ValueError: there is no such split.
        """
        if split not in types.SPLITS:
            raise ValueError(f"split is {split!r}, allowed are {types.SPLITS}")
        self._split = split
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return splits.SIZES[self._split]

    def __getitem__(self, index: int) -> types.Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        rng = random.Random(f"{self._seed}/{self._split}/{index}")
        for _ in range(_MAX_DRAWS):
            place = rng.randrange(self._dataset.num_places)
            entry = self._dataset.entry(place)
            if splits.split_of(entry["question"]) == self._split and not _contradicts_itself(entry):
                return self._task(index, place, entry)
        raise ValueError(
            f"no question of the {self._split} split among {_MAX_DRAWS} entries of the dataset "
            f"{self._dataset.name!r}: it has too few different ones; change env.dataset_options"
        )

    def _task(self, index: int, place: int, entry: Mapping[str, Any]) -> types.Task:
        data = {"dataset": self._dataset.name, "seed": self._dataset.seed, "place": place}
        expression = entry.get("metadata", {}).get("expression")
        if isinstance(expression, str):
            data["expression"] = expression
        task_id = f"{self._dataset.name}/{self._split}/{index}"
        answer = entry["answer"]
        if not isinstance(answer, str):
            answer = json.dumps(answer, default=str)
        return types.Task(id=task_id, question=entry["question"], answer=answer, data=data)


def load() -> python_types.ModuleType:
    """The package reasoning_gym, imported without a trace in the global random generators.

    Raises:
      ValueError: it is not installed.
    """
    with _own_randomness("import"):
        try:
            import reasoning_gym
        except ImportError as error:
            raise ValueError(
                f"env.dataset needs the package reasoning-gym, which cannot be imported ({error}); "
                "install it with: pip install 'jaxrl_single[envs]'"
            ) from error
    return reasoning_gym


def check(name: str, options: Mapping[str, Any]) -> None:
    """ValueError when there is no such dataset or option; makes none, which may take seconds."""
    with _own_randomness(name):
        _create(name, options, make=False)


def _create(name: str, options: Mapping[str, Any], *, make: bool = True) -> Any:
    factory = load().factory
    if name not in factory.DATASETS:
        near = difflib.get_close_matches(name, factory.DATASETS, n=5, cutoff=0.3)
        raise ValueError(
            f"env.dataset is {name!r}, and reasoning-gym has no such dataset; near are {near}"
        )
    known = sorted(factory.DATASETS[name][1].__dataclass_fields__)
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ValueError(f"env.dataset_options has {unknown}; {name!r} knows {known}")
    try:
        if make:
            return factory.create_dataset(name, **options)
        config = factory.DATASETS[name][1](**options)
        config.validate()
    # Datasets check their options by assertions, and some by what they run into.
    except (AssertionError, TypeError, ValueError, LookupError) as error:
        raise ValueError(
            f"env.dataset_options {dict(options)} do not suit the dataset {name!r}: {error}"
        ) from error


@contextlib.contextmanager
def _own_randomness(*seed: object) -> Iterator[None]:
    """Some datasets draw from the global generators: seeded inside, as before afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    text = "/".join(map(str, seed))
    random.seed(text)
    np.random.seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big"))
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _contradicts_itself(entry: Mapping[str, Any]) -> bool:
    """basic_arithmetic without parentheses forgets that a product binds stronger than a sum."""
    expression = entry.get("metadata", {}).get("expression")
    try:
        return calculator_tool.evaluate(expression) != fractions.Fraction(entry["answer"])
    except (ValueError, TypeError, AttributeError):  # no arithmetic, or an answer in words
        return False
