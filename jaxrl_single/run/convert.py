"""Writes a checkpoint in Hugging Face layout, for this package, vLLM and transformers.

    python -m jaxrl_single.run.convert --from=DIR|FILE.gguf|WORKDIR --to=DIR

From another such directory, from a GGUF file, or from a run: the newest version that it has
published (--version=N names one that is still there, --version=best that of the best evaluation;
where there is none, the newest checkpoint) or with --critic its newest critic. Tokenizer and chat
template come along. Tensors pass one by one; --dtype says what they are stored in.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterator

import numpy as np

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf, hf_names, pretrained
from jaxrl_single.report import bar
from jaxrl_single.run import command_line, run_source
from jaxrl_single.weights import base

Report = Callable[[int, int, str], None]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", required=True, metavar="DIR|FILE.gguf|WORKDIR")
    parser.add_argument("--to", required=True, metavar="DIR", help="must not exist")
    parser.add_argument("--dtype", choices=config_lib.DTYPES, help="default: as they are")
    parser.add_argument(
        "--version", type=run_source.version, metavar="N|best", help="of a run's policy"
    )
    parser.add_argument("--critic", action="store_true", help="of a run, instead of its policy")
    args = vars(parser.parse_args())
    source, target = args.pop("source"), args.pop("to")

    def work() -> None:
        with bar.Bar("tensors", sys.stderr) as shown:
            what = convert(source, target, report=shown.show, **args)
        print(what)

    return command_line.tool(work, for_people=(base.InvalidWeights,))


def convert(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    dtype: str | None = None,
    version: int | str | None = None,
    critic: bool = False,
    report: Report = lambda done, total, text: None,
) -> str:
    """Writes a checkpoint; see the top of this file. Returns what it was, in words.

    Raises:
      ValueError: the source is none, or its tensors are not those of its model.
      base.InvalidWeights: the weights of a run are damaged, or there is no such version.
      OSError: something cannot be read, or the target exists.
    """
    if pathlib.Path(target).exists():
        raise FileExistsError(f"{target} exists already; choose another directory")
    if run_source.is_run(source):
        found = run_source.open_weights(source, version=version, critic=critic)
    elif version is not None or critic:
        raise ValueError(f"{source} is not the workdir of a run; --version and --critic are of one")
    else:
        found = pretrained.open_checkpoint(source, dtype=dtype)
    model = found.description.model
    model = dataclasses.replace(model, dtype=dtype or model.dtype)
    places = hf_names.places(model, critic=found.is_critic)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for number, (name, array) in enumerate(found.tensors(), start=1):
            yield name, array.astype(places[name].dtype, copy=False)
            report(number, len(places), name)

    hf.write(
        target,
        dataclasses.replace(found.description, model=model),
        tensors(),
        write_text=found.write_text,
        is_critic=found.is_critic,
    )
    return f"{found.where} is in {target}"


if __name__ == "__main__":
    sys.exit(main())
