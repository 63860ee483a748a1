"""Writes weights of a run as a Hugging Face checkpoint, for run.generate, vLLM and transformers.

    python -m jaxrl_single.run.export_hf WORKDIR --output=DIR

The newest published version is taken; --version=N names one of those that are still there. The
tokenizer of the run and its stop token come along.
"""

import argparse
import sys

from jaxrl_single import workdir
from jaxrl_single.models import hf
from jaxrl_single.run import child_process
from jaxrl_single.stages import build, sampler_process
from jaxrl_single.stages import world as world_lib
from jaxrl_single.weights import base, filesystem


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", metavar="WORKDIR")
    parser.add_argument("--output", required=True, metavar="DIR", help="must not exist")
    parser.add_argument("--version", type=int, help="default: the newest")
    args = parser.parse_args()
    try:
        version = export(workdir.Workdir(args.workdir), args.output, args.version)
    except (ValueError, OSError, base.InvalidWeights) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"version {version} is in {args.output}")
    return 0


def export(paths: workdir.Workdir, output: str, version: int | None = None) -> int:
    """Writes a version, None = the newest; returns its number."""
    run_id = workdir.run_id_of(paths)
    config = child_process.load_config(paths)
    weights = filesystem.FileWeights(sampler_process.weights_directory(config, paths), run_id)
    version = weights.latest() if version is None else version
    if version is None:
        raise ValueError(f"{paths.root} has published no weights yet; the warm start comes first")
    params, _ = weights.fetch(version)
    language = world_lib.make(config).language
    hf.save(
        output,
        build.models(config, language.vocab_size)[0].config,
        params,
        context_length=config.env.max_tokens,
        stop_token_ids=language.stop_token_ids,
        tokenizer=paths.tokenizer,
    )
    return version


if __name__ == "__main__":
    sys.exit(main())
