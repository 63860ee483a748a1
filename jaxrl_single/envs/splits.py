"""Which generated questions are for training and which are held out, for every environment."""

from __future__ import annotations

import hashlib

SIZES = {"train": 1_000_000, "eval": 100_000}  # tasks of a split; its questions may repeat
_EVAL_SHARE = 10  # one question in so many belongs to the eval split


def split_of(question: str) -> str:
    """The split of a question, by its hash: so none is ever in both, whatever the seeds."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") % _EVAL_SHARE == 0 else "train"
