"""Log-probs of given token ids under a checkpoint, offline; what `run.logprobs` does.

Every line {"token_ids": [...]} of the input gets a line of the output, in order:

  logprobs    natural log of each token's probability given those before it, at temperature 1;
              null for the first, which nothing precedes
  entropies   nats, of the distribution that each token was drawn from; null for the first
  id          if the line of the input has one

Both are float32, whatever dtype the model computes in. A line is read in pages of its tokens
through a cache of keys and values, so memory grows by the cache alone: no array of the length
squared, none of the length times the vocabulary.

Beside the output stands OUTPUT.settings.json. A rerun with the same settings makes what is missing;
one with others is refused. The numbers of a line depend on its tokens and on `chunk`, not on the
lines beside it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import param_tree, workdir
from jaxrl_single.lab import resumable, token_lines
from jaxrl_single.models import api, content, kv_cache, pretrained
from jaxrl_single.ops import logprobs as logprob_ops

_PAGE_SIZES = (16, 32, 64, 128)  # tokens; larger ones are faster, but a line's last one is not full
_PAGES_PER_LINE = 8  # at least that of a line of mean length
_PROJECTED = 128  # tokens whose logits exist at one time


def score(
    model: str | os.PathLike,
    lines: str | os.PathLike,
    output: str | os.PathLike,
    *,
    dtype: str | None = None,
    chunk: int = 512,
    report: resumable.Report = lambda done, total, text: None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """Scores all lines that `output` does not hold yet.

    Args:
      model: a Hugging Face checkpoint or a GGUF file, see `pretrained.locate`.
      lines: see token_lines.
      dtype: to compute in; None = the checkpoint's own.
      chunk: tokens that are read together, of one line or several.
      note: gets what is odd, but no error.

    Returns:
      tokens_per_s: read in this run, over the time without compiling. scored_tokens: in this run.
      compile_s: before that. peak_rss_mb: of this process, 10^6 B.

    Raises:
      ValueError: something of the checkpoint, the lines or the settings is not in order.
      FloatingPointError: the weights, finite themselves, compute no finite log-prob for a token.
      OSError: a file cannot be read or written.
    """
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, it must be at least 1")
    output = pathlib.Path(output)
    checkpoint = pretrained.open_checkpoint(model, dtype=dtype)
    if checkpoint.is_critic:
        raise ValueError(f"{checkpoint.path} is a critic, which gives no log-probs")
    given = token_lines.read(lines, vocab_size=checkpoint.config.vocab_size)
    with resumable.claimed(output, _settings(checkpoint, given)):
        _note_long(given, checkpoint.description.context_length, note)
        return _complete(output, lines, checkpoint, given, chunk, report)


def _complete(
    output: pathlib.Path,
    lines: str | os.PathLike,
    checkpoint: pretrained.Pretrained,
    given: Sequence[token_lines.Line],
    chunk: int,
    report: resumable.Report,
) -> dict[str, float]:
    """Adds the lines that are missing; returns and raises as `score`."""
    # Lines are finished in order, so what is there is the beginning.
    missing = given[len(workdir.read_jsonl(output)) :]
    total, left = (sum(len(line.tokens) for line in some) for some in (given, missing))
    compile_s, seconds = 0.0, 0.0
    if missing:
        report(total - left, total, "reading the checkpoint")
        reader = _reader(checkpoint, given, chunk)
        report(total - left, total, "compiling")
        compile_s = resumable.timed(reader.warm_up)
        began = time.perf_counter()

        def tell(num_read: int) -> None:
            speed = num_read / (time.perf_counter() - began)
            report(total - left + num_read, total, f"{speed:.0f} tokens/s")

        results = reader.score((line.tokens for line in missing), tell)
        for line, scores in zip(missing, results, strict=True):
            _refuse_not_finite(lines, line, scores)
            workdir.append_jsonl(output, _record(line, scores))
        seconds = time.perf_counter() - began
    return {
        "tokens_per_s": left / seconds if seconds else 0.0,
        "scored_tokens": left,
        "compile_s": compile_s,
        "peak_rss_mb": resumable.peak_rss_mb(),
    }


@dataclasses.dataclass(frozen=True)
class Scores:
    """Of the tokens of a line but the first, [T - 1] float32."""

    logprobs: np.ndarray
    entropies: np.ndarray


class Reader:
    """Reads lines of tokens with one policy, several pages at once."""

    def __init__(
        self,
        policy: api.Policy,
        params: api.Params,
        *,
        longest: int,
        page_size: int,
        num_rows: int,
    ):
        """Takes a copy of params, which the caller may drop.

        Args:
          longest: tokens of the longest line.
          page_size: B, tokens of a page.
          num_rows: R, pages that are read together.
        """
        self._policy = policy
        self._page_size = page_size
        self._num_rows = num_rows
        self._table_width = max(1, -(-(longest - 1) // page_size))
        # Only the last line that a dispatch begins is unfinished after it.
        num_pages = self._table_width + num_rows
        self._free = list(range(num_pages))
        self._unembedding = jnp.asarray(policy.unembedding(params))
        self._serving = policy.serving(params)
        self._cache = policy.init_cache(num_pages, page_size)

    def warm_up(self) -> None:
        """Compiles what `score` runs, so that it can be timed."""
        self._read(_Rows.empty(self._num_rows, self._page_size, self._table_width))

    def score(
        self, lines: Iterable[np.ndarray], tell: Callable[[int], None] = lambda num_read: None
    ) -> Iterator[Scores]:
        """The scores of each line, in order.

        Args:
          lines: i32 [T], T >= 1, each; none longer than `longest`.
          tell: called after each dispatch with the number of tokens that were read or finished.
        """
        pending: collections.deque[_Line] = collections.deque()
        finished = 0
        for pieces in self._dispatches(lines, pending):
            if pieces:
                self._read_pieces(pieces)
            while pending and pending[0].num_read == len(pending[0].tokens) - 1:
                line = pending.popleft()
                self._free += line.pages
                finished += len(line.tokens)
                yield Scores(line.logprobs, line.entropies)
            tell(finished + sum(line.num_read for line in pending))

    def _dispatches(
        self, lines: Iterable[np.ndarray], pending: collections.deque[_Line]
    ) -> Iterator[list[tuple[_Line, int]]]:
        """Up to R pieces (line, number of its page) each, page by page, line by line."""
        pieces: list[tuple[_Line, int]] = []
        for tokens in lines:
            line = _Line.of(tokens)
            pending.append(line)
            # The last token predicts nothing that is asked for.
            for page in range(-(-(len(tokens) - 1) // self._page_size)):
                line.pages.append(self._free.pop())
                pieces.append((line, page))
                if len(pieces) == self._num_rows:
                    yield pieces
                    pieces = []
        yield pieces

    def _read_pieces(self, pieces: Sequence[tuple[_Line, int]]) -> None:
        rows = _Rows.empty(self._num_rows, self._page_size, self._table_width)
        parts = []
        for row, (line, page) in enumerate(pieces):
            begin = page * self._page_size
            end = min(begin + self._page_size, len(line.tokens) - 1)
            rows.tokens[row, : end - begin] = line.tokens[begin:end]
            rows.following[row, : end - begin] = line.tokens[begin + 1 : end + 1]
            rows.page_index[row], rows.last[row] = page, end - begin
            rows.table[row, : len(line.pages)] = line.pages
            parts.append((line, slice(begin, end)))
        logprobs, entropies = self._read(rows)
        for row, (line, part) in enumerate(parts):
            width = part.stop - part.start
            line.logprobs[part] = logprobs[row, :width]
            line.entropies[part] = entropies[row, :width]
            line.num_read = part.stop

    def _read(self, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
        self._cache, scores = _read(
            self._policy, self._serving, self._unembedding, self._cache, rows
        )
        return jax.device_get(scores)


@dataclasses.dataclass
class _Line:
    """A line on its way; `num_read` of its tokens have been, and their followers scored."""

    tokens: np.ndarray
    logprobs: np.ndarray
    entropies: np.ndarray
    pages: list[int]
    num_read: int = 0

    @classmethod
    def of(cls, tokens: np.ndarray) -> _Line:
        return cls(tokens, *np.zeros((2, len(tokens) - 1), np.float32), [])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rows:
    """Pages of known tokens; see `api.Policy.read`.

    Attributes:
      tokens, following: i32 [R, B], and the token after each; those before column `last` count.
      page_index: i32 [R], which page of its line the row is.
      last: i32 [R]; 0 in a row that is not used.
      table: i32 [R, M], the page ids of the row's line, in order.
    """

    tokens: np.ndarray
    following: np.ndarray
    page_index: np.ndarray
    last: np.ndarray
    table: np.ndarray

    @classmethod
    def empty(cls, num_rows: int, page_size: int, table_width: int) -> _Rows:
        shapes = ((num_rows, page_size),) * 2 + ((num_rows,),) * 2 + ((num_rows, table_width),)
        return cls(*(np.zeros(shape, np.int32) for shape in shapes))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _read(
    policy: api.Policy,
    serving: Any,
    unembedding: jax.Array,
    cache: kv_cache.Cache,
    rows: _Rows,
) -> tuple[kv_cache.Cache, tuple[jax.Array, jax.Array]]:
    """Reads the rows; log-probs of `following` and entropies, [R, B] each."""
    first = jnp.zeros_like(rows.last)
    where = (rows.page_index, first, rows.last, rows.table)
    hidden, cache, _ = policy.read(serving, cache, rows.tokens, *where)
    scores = logprob_ops.token_logprobs(
        hidden.reshape(-1, hidden.shape[-1]),
        unembedding,
        rows.following.reshape(-1),
        jnp.ones(rows.tokens.size, jnp.float32),
        chunk=_PROJECTED,
    )
    return cache, jax.tree.map(lambda array: array.reshape(rows.tokens.shape), scores)


def _reader(
    checkpoint: pretrained.Pretrained, lines: Sequence[token_lines.Line], chunk: int
) -> Reader:
    """For all lines of the file, so that a rerun computes in the same way."""
    # One by one, so that the host's copy of one is gone before the next is read.
    leaves = {path: jnp.asarray(checkpoint.leaf(path)) for path in checkpoint.leaf_shapes()}
    lengths = [len(line.tokens) for line in lines]
    wanted = sum(lengths) / len(lengths) / _PAGES_PER_LINE
    page_size = next((size for size in _PAGE_SIZES if size >= wanted), _PAGE_SIZES[-1])
    page_size = min(page_size, chunk)
    num_pages = sum(-(-(length - 1) // page_size) for length in lengths)
    return Reader(
        api.build_policy(checkpoint.config),
        param_tree.unflatten(leaves),
        longest=max(lengths),
        page_size=page_size,
        num_rows=max(1, min(chunk // page_size, num_pages)),
    )


def _settings(
    checkpoint: pretrained.Pretrained, lines: Sequence[token_lines.Line]
) -> dict[str, Any]:
    """What the scores depend on, apart from rounding."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(repr((line.id, len(line.tokens))).encode() + line.tokens.tobytes())
    return {
        **content.in_words(checkpoint.path),
        "dtype": checkpoint.config.dtype,
        "input": f"{len(lines)} lines, sha256 {digest.hexdigest()[:16]}",
    }


def _note_long(
    lines: Sequence[token_lines.Line], context_length: int, note: Callable[[str], None]
) -> None:
    long = [line.number for line in lines if len(line.tokens) > context_length]
    if long:
        note(
            f"line {long[0]} is longer than the model's context of {context_length} tokens "
            f"({len(long)} lines are); it is scored all the same"
        )


def _refuse_not_finite(lines: str | os.PathLike, line: token_lines.Line, scores: Scores) -> None:
    sound = np.isfinite(scores.logprobs) & np.isfinite(scores.entropies)
    if not sound.all():
        place = 1 + int(sound.argmin())  # the first token has no score
        raise FloatingPointError(
            f"{lines}, line {line.number}: the weights, finite themselves, give token_ids[{place}] "
            f"= {line.tokens[place]} no finite log-prob; the lines before it are written. Look for "
            "a weight that is much too large, or compute with --dtype=float32"
        )


def _record(line: token_lines.Line, scores: Scores) -> dict[str, Any]:
    record = {} if line.id is None else {"id": line.id}
    return record | {
        "logprobs": [None, *scores.logprobs.tolist()],
        "entropies": [None, *scores.entropies.tolist()],
    }
