"""A checkpoint behind OpenAI's endpoints, without a run.

    python -m jaxrl_single.run.serve --model=DIR|FILE.gguf|package:NAME/FILE|WORKDIR [--port=8000]

Of the workdir of a run it serves the newest version that was published (--version=N another that is
still there, --version=best that of the best evaluation; where there is none, the newest
checkpoint), and goes on with it whatever the run does. It listens on this machine alone; with
another --host it needs a bearer token, in a file (--token_file) or in JAXRL_SAMPLER_TOKEN. Ctrl-C
ends it. What the endpoints understand: docs/sampler.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import shlex
import sys
from typing import Any

import numpy as np

from jaxrl_single import param_tree, types, workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import tool_formats
from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf_config, pretrained
from jaxrl_single.run import child_process, command_line, run_source
from jaxrl_single.sampler.service import access
from jaxrl_single.weights import base

_HELLO = [{"role": "user", "content": "Hello"}]
_PYTHON = """\
    import openai

    client = openai.OpenAI(base_url="{url}", api_key={key})
    answer = client.{method}.create(model="policy", {arguments})
    print(answer)
"""


@dataclasses.dataclass(frozen=True)
class _Model:
    """What is served.

    Attributes:
      name: of the model, for clients.
      where: in words, for people.
      params: nested dict of numpy arrays.
      version: of the weights; 0 where there is but one.
      tool_format: that its config names, "" = as the chat template shows.
    """

    name: str
    where: str
    description: hf_config.Description
    params: param_tree.Params
    text: text_lib.Text
    version: int = 0
    tool_format: str = ""


def main() -> int:
    args = _parser().parse_args()
    os.environ.update(child_process.cache_env())

    def serve() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # how it ends, before it serves too
            _serve(args)

    return command_line.tool(serve, for_people=(base.InvalidWeights,))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, metavar="DIR|FILE|WORKDIR")
    parser.add_argument(
        "--version", type=run_source.version, metavar="N|best", help="of a run; default: newest"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 = any free one")
    parser.add_argument("--token_file", default="", help="holds the bearer token")
    parser.add_argument("--dtype", choices=config_lib.DTYPES, help="default: the checkpoint's own")
    parser.add_argument("--num_slots", type=int, default=8, help="answers sampled together")
    parser.add_argument(
        "--context_length",
        type=int,
        default=4096,
        help="tokens of a prompt with its answer, at most those of the model",
    )
    parser.add_argument("--tool_format", default="", help="default: as the chat template shows")
    parser.add_argument(
        "--top_logprobs", type=int, default=5, help="most that a client may ask for"
    )
    parser.add_argument("--seed", type=int, default=0, help="of requests that name none")
    return parser


def _serve(args: argparse.Namespace) -> None:
    token = access.read_token(args.token_file)
    # Before the long work.
    access.check(args.host, token)
    if not 0 <= args.port < 2**16:
        raise ValueError(f"--port is {args.port}, ports are 0 .. 65535; 0 = any free one")
    if args.tool_format:
        tool_formats.get(args.tool_format)
    print("reading the weights", file=sys.stderr, flush=True)
    model = _of_run(args) if run_source.is_run(args.model) else _of_checkpoint(args)
    from jaxrl_single.lab import serving  # imports jax

    engine = serving.make_engine(
        model.description.model,
        model.params,
        model.version,
        num_slots=args.num_slots,
        cache_length=min(args.context_length, model.description.context_length),
        cache_sizes=(0.25,),
        seed=args.seed,
        record=types.Record(topk=args.top_logprobs),
        text_of=model.text.decode,
    )
    print("compiling", file=sys.stderr, flush=True)
    engine.warm_up()
    engine.start()

    def started(port: int) -> None:
        print(_announcement(model, args.host, port, token is not None), flush=True)

    try:
        asyncio.run(
            serving.run(
                engine,
                model.text,
                host=args.host,
                port=args.port,
                token=token,
                model_name=model.name,
                tool_format=args.tool_format or model.tool_format,
                max_top_logprobs=args.top_logprobs,
                started=started,
            )
        )
    finally:
        engine.stop()


def _of_checkpoint(args: argparse.Namespace) -> _Model:
    if args.version is not None:
        raise ValueError(f"{args.model} is not the workdir of a run; --version is of one")
    found = pretrained.open_checkpoint(args.model, dtype=args.dtype)
    if found.is_critic:
        raise ValueError(f"{found.path} is a critic, which gives no answers")
    text = text_lib.HfText.load(found.path)
    return _Model(found.path.stem, found.where, found.description, found.params(), text)


def _of_run(args: argparse.Namespace) -> _Model:
    from jaxrl_single.stages import world  # imports jax

    paths = workdir.Workdir(args.model)
    config = child_process.load_config(paths)
    found = run_source.open_weights(args.model, version=args.version)
    shape = dataclasses.replace(
        found.description.model, dtype=args.dtype or found.description.model.dtype
    )
    params = {
        path: np.asarray(leaf[...]).astype(shape.dtype, copy=False)
        for path, leaf in param_tree.flatten(found.params).items()
    }
    return _Model(
        config.model.path or config.model.size,
        f"{found.where} of {paths.root}",
        dataclasses.replace(found.description, model=shape),
        param_tree.unflatten(params),
        world.make_language(config, workdir.began(paths))[1],
        version=found.version,
        tool_format=config.env.tool_format,
    )


def _announcement(model: _Model, host: str, port: int, has_token: bool) -> str:
    url = access.url(host, port) + "/v1"
    if model.text.template:
        route, method, asked = "chat/completions", "chat.completions", {"messages": _HELLO}
    else:  # a language of its own, which has no word for hello
        route, method, asked = "completions", "completions", {"prompt": [1, 2, 3]}
    asked: dict[str, Any] = asked | {"max_tokens": 32}
    curl = ["curl", f"{url}/{route}", "-H", "Content-Type: application/json"]
    shown = shlex.join([*curl, "-d", json.dumps({"model": "policy"} | asked)])
    key = '"none"'
    if has_token:
        shown += f' -H "Authorization: Bearer ${access.TOKEN_VARIABLE}"'
        key = f'os.environ["{access.TOKEN_VARIABLE}"]'
    arguments = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    python = _PYTHON.format(url=url, key=key, method=method, arguments=arguments)
    if has_token:
        python = python.replace("import openai", "import os\n\n    import openai")
    return f"serving {model.where} at {url} (Ctrl-C ends it)\n\n    {shown}\n\n{python}"


if __name__ == "__main__":
    sys.exit(main())
