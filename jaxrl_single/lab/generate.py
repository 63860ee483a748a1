"""Answers a file of prompts with a checkpoint, offline; what `run.generate` does.

The output has one JSON line per answer: index of the prompt, its id if it has one, sample (0 ..
n - 1), prompt_token_ids, token_ids, logprobs (of the sampled distribution), text if the model has a
tokenizer, finish_reason ("stop" or "length") and stop_reason. Lines are written as answers finish;
at the end they are put in order.

Beside it stands OUTPUT.settings.json. A rerun with the same settings makes what is missing; one
with others is refused. A chat template that shows the date shows the one on which the output was
begun. An answer depends on its prompt, its number and the seed, never on the answers beside it or
on where a run was interrupted.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

from jaxrl_single import wire, workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.lab import prompts_file, resumable, serving
from jaxrl_single.models import content, hf, hf_config, pretrained
from jaxrl_single.sampler import checks
from jaxrl_single.sampler import engine as engine_lib

_CACHE_SIZES = (0.5,)  # a second cache for the time when answers are short, or few are left
_QUEUED = 2  # times the slots: answers under way, so that no slot waits for its next prompt


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How answers are sampled; see `wire.Request`.

    Attributes:
      max_tokens: most new tokens of an answer, where the prompt does not say.
      n: answers per prompt.
      ignore_eos: go on through the model's stop tokens, up to max_tokens.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    seed: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError; the other fields are checked with the first request."""
        for name in ("max_tokens", "n"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")


def generate(
    model: str | os.PathLike,
    prompts: str | os.PathLike,
    output: str | os.PathLike,
    sampling: Sampling,
    *,
    num_slots: int = 64,
    dtype: str | None = None,
    report: resumable.Report = lambda done, total, text: None,
) -> dict[str, float]:
    """Answers all prompts that `output` does not answer yet.

    Args:
      model: a Hugging Face checkpoint or a GGUF file, see `pretrained.locate`.
      prompts: see prompts_file.
      num_slots: answers sampled together, at most.
      dtype: to compute in; None = the checkpoint's own.

    Returns:
      tokens_per_s: generated in this run, over the time from the first prompt to the last answer.
      generated_tokens: in this run. compile_s: before that. peak_rss_mb: of this process, 10^6 B.

    Raises:
      ValueError: something of the checkpoint, the prompts or the settings is not in order.
      FloatingPointError: the weights, finite themselves, compute no finite logits for an answer;
        the other answers are written.
      OSError: a file cannot be read or written.
    """
    output = pathlib.Path(output)
    date = resumable.earlier_setting(output, "date", datetime.date.today().isoformat())
    source = _Source.open(model, prompts, sampling, dtype, date)
    # What is wrong with the settings is wrong with every request: said before the long work.
    checks.request_tokens(
        source.request(source.prompts[0], 0), vocab_size=source.description.model.vocab_size
    )
    with resumable.claimed(output, source.settings()):
        return _complete(output, source, num_slots, report)


def _complete(
    output: pathlib.Path, source: _Source, num_slots: int, report: resumable.Report
) -> dict[str, float]:
    """Adds the answers that are missing and puts all in order; returns and raises as `generate`."""
    sampling = source.sampling
    total = len(source.prompts) * sampling.n
    done = {(line["index"], line["sample"]) for line in workdir.read_jsonl(output)}
    missing = [
        (prompt, sample)
        for prompt in source.prompts
        for sample in range(sampling.n)
        if (prompt.index, sample) not in done
    ]
    generated, compile_s, seconds = 0, 0.0, 0.0
    failed: list[tuple[prompts_file.Prompt, int, checks.NotFinite]] = []
    if missing:
        report(len(done), total, "reading the checkpoint")
        # By the whole file, so that a rerun samples with the same number of slots.
        num_slots = min(num_slots, total)
        engine = _engine(source, num_slots=num_slots)
        report(len(done), total, "compiling")
        compile_s = resumable.timed(engine.warm_up)
        began = time.perf_counter()
        for prompt, sample, answer in _answers(engine, source, missing, _QUEUED * num_slots):
            if isinstance(answer, checks.NotFinite):
                failed.append((prompt, sample, answer))
                continue
            workdir.append_jsonl(output, source.line(prompt, sample, answer))
            done.add((prompt.index, sample))
            generated += len(answer.tokens)
            seconds = time.perf_counter() - began
            report(len(done), total, f"{generated / seconds:.0f} tokens/s")
    if done:
        _put_in_order(output)
    if failed:
        raise _not_finite(failed)
    return {
        "tokens_per_s": generated / seconds if seconds else 0.0,
        "generated_tokens": generated,
        "compile_s": compile_s,
        "peak_rss_mb": resumable.peak_rss_mb(),
    }


@dataclasses.dataclass(frozen=True)
class _Source:
    """What answers are made of."""

    model: pathlib.Path
    content: dict[str, str]  # digests of the checkpoint
    prompts: Sequence[prompts_file.Prompt]
    sampling: Sampling
    date: str | None  # that chat templates show
    description: hf_config.Description
    text: text_lib.Text | None
    stop_token_ids: tuple[int, ...]

    @classmethod
    def open(
        cls,
        model: str | os.PathLike,
        prompts: str | os.PathLike,
        sampling: Sampling,
        dtype: str | None,
        date: str | None,
    ) -> _Source:
        model = pretrained.locate(model)
        if model.is_dir() and hf_config.is_critic(model):
            raise ValueError(f"{model} is a critic, which gives no answers")
        description = hf.describe(model, dtype=dtype)
        has_text = model.is_file() or (model / "tokenizer.json").exists()
        now = datetime.datetime.fromisoformat(date) if date else None
        text = text_lib.HfText.load(model, now=now) if has_text else None
        found = prompts_file.read(
            prompts,
            text,
            vocab_size=description.model.vocab_size,
            context_length=description.context_length,
            max_tokens=sampling.max_tokens,
        )
        stop = text.stop_token_ids if text else description.stop_token_ids
        stop = () if sampling.ignore_eos else stop
        digests = content.in_words(model)
        return cls(model, digests, found, sampling, date, description, text, stop)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer, as far as the context goes."""
        wanted = max(len(prompt.tokens) + prompt.max_tokens for prompt in self.prompts)
        return min(wanted, self.description.context_length)

    def settings(self) -> dict[str, Any]:
        """What the answers depend on, apart from rounding."""
        content = repr([(prompt.tokens, prompt.max_tokens) for prompt in self.prompts])
        digest = hashlib.sha256(content.encode()).hexdigest()
        return dataclasses.asdict(self.sampling) | {
            **self.content,
            "dtype": self.description.model.dtype,
            "date": self.date,
            "prompts": f"{len(self.prompts)}, sha256 {digest[:16]}",
        }

    def request(self, prompt: prompts_file.Prompt, sample: int) -> wire.Request:
        sampling = self.sampling
        return wire.Request(
            session=f"{prompt.index}/{sample}",
            ticket=prompt.index,
            attempt=sample,
            turn=0,
            tokens=list(prompt.tokens),
            max_new_tokens=prompt.max_tokens,
            stop_token_ids=self.stop_token_ids,
            temperature=sampling.temperature,
            seed=sampling.seed,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            record=False,
        )

    def line(
        self, prompt: prompts_file.Prompt, sample: int, answer: wire.Completion
    ) -> dict[str, Any]:
        line = {"index": prompt.index, "sample": sample}
        if prompt.id is not None:
            line["id"] = prompt.id
        line |= {
            "prompt_token_ids": prompt.tokens,
            "token_ids": answer.tokens,
            "logprobs": answer.logprobs,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        return line | ({"text": self.text.decode(answer.tokens)} if self.text else {})


def _engine(source: _Source, *, num_slots: int) -> engine_lib.Engine:
    config, params = hf.load(source.model, dtype=source.description.model.dtype)
    return serving.make_engine(
        config,
        params,
        0,
        num_slots=num_slots,
        cache_length=source.longest,
        cache_sizes=_CACHE_SIZES,
        seed=source.sampling.seed,
    )


def _answers(
    engine: engine_lib.Engine,
    source: _Source,
    missing: Sequence[tuple[prompts_file.Prompt, int]],
    most: int,
) -> Iterator[tuple[prompts_file.Prompt, int, wire.Completion | checks.NotFinite]]:
    """The answers in the order in which they finish; `most` are under way at once."""
    waiting = iter(missing)
    running: dict[futures.Future, tuple[prompts_file.Prompt, int]] = {}
    while True:
        while len(running) < most and (new := next(waiting, None)) is not None:
            running[engine.submit(source.request(*new))] = new
        if not running:
            return
        engine.step()
        for future in [future for future in running if future.done()]:
            prompt, sample = running.pop(future)
            engine.release(f"{prompt.index}/{sample}")
            problem = future.exception()
            if problem is not None and not isinstance(problem, checks.NotFinite):
                raise problem
            yield prompt, sample, problem or future.result()


def _not_finite(
    failed: Sequence[tuple[prompts_file.Prompt, int, checks.NotFinite]],
) -> FloatingPointError:
    prompt, sample, problem = min(failed, key=lambda found: (found[0].index, found[1]))
    token = problem.place - len(prompt.tokens)
    return FloatingPointError(
        f"prompt {prompt.index} (from 0), sample {sample}: the weights, finite themselves, give "
        f"token {token} of the answer logits that are not finite; nothing is sampled from those. "
        f"{len(failed)} answers failed so, the others are written. Look for a weight that is much "
        "too large, or compute with --dtype=float32"
    )


def _put_in_order(output: pathlib.Path) -> None:
    lines = output.read_bytes().splitlines(keepends=True)
    records = workdir.read_jsonl(output)
    order = sorted(range(len(records)), key=lambda i: (records[i]["index"], records[i]["sample"]))
    if order != list(range(len(lines))):
        workdir.write_bytes(output, b"".join(lines[i] for i in order))
