"""Throughput of our sampler, vLLM, transformers and Tunix on the same checkpoints, in one run.

python benchmarks/sampler.py --vllm=VENV/bin/python --transformers=... --tunix=... [--rounds=3]
    [--models=dense_small,...] [--workloads=uniform,...] [--root=runs/sampler_benchmark] [--tiny]

Each engine runs in a process and an environment of its own; one whose Python is not given, or does
not start, is left out. 64 requests of 64 prompt tokens begin at once and sample up to 128 tokens
at temperature 1, float32, log-probs of the sampled tokens included where the engine has them
(transformers' generate has none):

    uniform      128 new tokens each
    ragged       16 to 128 new tokens
    three_turns  40, 40 and 48 new tokens, 16 tokens of observation between

The engines take turns within each round, so that whatever else the machine does meets all of them;
prompts are new in each round. The first play of a shape compiles and is not counted. Numbers are
medians of new tokens per second, prefill included. OMP_NUM_THREADS is the number of cores.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
ENGINES = {
    "ours": "ours.py",
    "vllm": "vllm_cpu.py",
    "transformers": "transformers_generate.py",
    "tunix": "tunix_sampler.py",
}
_DENSE_SMALL = {
    "vocab_size": 4096,
    "num_layers": 4,
    "d_model": 256,
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_size": 32,
    "d_ff": 1024,
}
MODELS = {
    "dense_small": _DENSE_SMALL,
    "moe_small": _DENSE_SMALL | {"d_ff": 512, "num_experts": 8, "experts_per_token": 2},
    "dense_large": _DENSE_SMALL | {"num_layers": 8, "d_model": 512, "head_size": 64, "d_ff": 2048},
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Requests, tokens of a prompt and of an observation, and the unit of new tokens (of 16)."""

    requests: int = 64
    prompt: int = 64
    observation: int = 16
    eighth: int = 16

    @property
    def context(self) -> int:
        return self.prompt + 8 * self.eighth + 2 * self.observation


def main() -> None:
    arguments = parse()
    sizes = Sizes(4, 8, 4, 2) if arguments.tiny else Sizes()
    workloads = {name: WORKLOADS[name] for name in arguments.workloads.split(",")}
    pythons = {"ours": sys.executable} | {
        name: getattr(arguments, name) for name in ENGINES if name != "ours"
    }
    for name in arguments.models.split(","):
        checkpoint = make_checkpoint(arguments.root, name, sizes.context)
        workers = start(pythons, checkpoint, sizes)
        seconds = {}
        try:
            for number in range(arguments.rounds + 1):
                play_round(workers, workloads, sizes, number, seconds)
        finally:
            for worker in workers.values():
                worker.end()
        print(table(name, workers, workloads, sizes, seconds), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ENGINES:
        if name != "ours":
            parser.add_argument(f"--{name}", default="", help=f"Python that has {name}")
    parser.add_argument("--models", default=",".join(MODELS), help="comma list")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT / "runs" / "sampler_benchmark")
    parser.add_argument("--tiny", action="store_true", help="4 requests of 8 tokens: does it run?")
    arguments = parser.parse_args()
    for option, known in (("models", MODELS), ("workloads", WORKLOADS)):
        unknown = set(getattr(arguments, option).split(",")) - set(known)
        if unknown:
            parser.error(f"--{option}: unknown {sorted(unknown)}, known are {', '.join(known)}")
    return arguments


def uniform(sizes: Sizes, draw: random.Random) -> list[int]:
    return [8 * sizes.eighth]


def ragged(sizes: Sizes, draw: random.Random) -> list[int]:
    return [draw.randint(sizes.eighth, 8 * sizes.eighth)]


def three_turns(sizes: Sizes, draw: random.Random) -> list[int]:
    return [5 * sizes.eighth // 2, 5 * sizes.eighth // 2, 3 * sizes.eighth]


WORKLOADS = {"uniform": uniform, "ragged": ragged, "three_turns": three_turns}  # new tokens by turn


def workload(name: str, sizes: Sizes, number: int) -> dict:
    """The workload of a round, see engines/worker.py; the lengths are the same in every round."""
    lengths, tokens = random.Random(name), random.Random(f"{name}-{number}")

    def session() -> list[dict]:
        turns = WORKLOADS[name](sizes, lengths)
        read = [sizes.prompt] + [sizes.observation] * (len(turns) - 1)
        return [
            # Not 0, which some engines take for padding.
            {"tokens": [tokens.randint(1, 4095) for _ in range(count)], "num_new": new}
            for count, new in zip(read, turns, strict=True)
        ]

    return {"sessions": [session() for _ in range(sizes.requests)], "seed": number}


def make_checkpoint(root: pathlib.Path, name: str, context: int) -> pathlib.Path:
    """Random weights in Hugging Face layout; made by a process that ends before the engines run."""
    place = root.absolute() / f"{name}-{context}"
    if not place.exists():
        program = (
            "import json, sys, jax\n"
            "from jaxrl_single.models import api, config, hf\n"
            "shape = config.ModelConfig(**json.loads(sys.argv[2]))\n"
            "params = jax.device_get(api.build_policy(shape).init(jax.random.key(0)))\n"
            "hf.save(sys.argv[1], shape, params, context_length=int(sys.argv[3]))\n"
        )
        shape = json.dumps(MODELS[name])
        command = [sys.executable, "-c", program, str(place), shape, str(context)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment())
    return place


def environment() -> dict[str, str]:
    cores = str(os.cpu_count())
    return {
        # Of vLLM on CPU: gigabytes of cache; threads wherever the system puts them.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Its engine in the process that asks it: twice as fast here as in one of its own.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": cores,
        **os.environ,
    }


class Worker:
    """The process of one engine."""

    def __init__(self, name: str, python: str, checkpoint: pathlib.Path, sizes: Sizes):
        self.log = checkpoint.with_name(f"{checkpoint.name}-{name}.log")
        program = ROOT / "benchmarks" / "engines" / ENGINES[name]
        arguments = [str(checkpoint), str(sizes.requests), str(sizes.context)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )

    def play(self, message: dict) -> float | None:
        """Seconds of a workload; None if the engine has failed."""
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._process.stdout.readline()
        if not line.startswith("RESULT "):
            return None
        return json.loads(line.removeprefix("RESULT "))["seconds"]

    def end(self) -> None:
        """Its input ends, so it ends."""
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def start(pythons: dict[str, str], checkpoint: pathlib.Path, sizes: Sizes) -> dict[str, Worker]:
    """The engines whose Python is given."""
    missing = [name for name, python in pythons.items() if not python]
    if missing:
        print(f"left out, no Python given: {', '.join(missing)}", flush=True)
    return {
        name: Worker(name, python, checkpoint, sizes) for name, python in pythons.items() if python
    }


def play_round(
    workers: dict[str, Worker],
    workloads: dict,
    sizes: Sizes,
    number: int,
    seconds: dict[tuple[str, str], list[float]],
) -> None:
    """Every workload on every engine; round 0 is for compiling, and drops engines that fail."""
    for workload_name in workloads:
        message = workload(workload_name, sizes, number)
        for name in list(workers):
            found = workers[name].play(message)
            if found is None:
                worker = workers.pop(name)
                worker.end()
                print(f"{name} has failed and is left out, see {worker.log}", flush=True)
                continue
            if number > 0:
                seconds.setdefault((name, workload_name), []).append(found)
            print(f"round {number}, {workload_name}, {name}: {found:.2f} s", flush=True)


def table(
    model: str,
    workers: dict[str, Worker],
    workloads: dict,
    sizes: Sizes,
    seconds: dict[tuple[str, str], list[float]],
) -> str:
    """Tokens per second, and ours over the best of the others."""
    head = f"| {model} | {' | '.join(workers)} | ours / best other |"
    rows = [head, "|" + "---|" * (len(workers) + 2)]
    for name in workloads:
        sessions = workload(name, sizes, 0)["sessions"]
        new = sum(turn["num_new"] for session in sessions for turn in session)
        rates = {engine: new / statistics.median(seconds[engine, name]) for engine in workers}
        others = [rate for engine, rate in rates.items() if engine != "ours"]
        ratio = f"{rates['ours'] / max(others):.2f}" if others and "ours" in rates else ""
        rows.append(f"| {name} | {' | '.join(f'{r:.0f}' for r in rates.values())} | {ratio} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
