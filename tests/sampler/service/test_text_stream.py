"""AnswerStream: the pieces are the whole text, and no stop string shows in them."""

import itertools

import pytest

from jaxrl_single.sampler.service import text_stream

PIECES = {0: b"a", 1: b"b", 2: b"ab", 3: "ä".encode()[:1], 4: "ä".encode()[1:], 5: "漢".encode()}


class ByteText:
    """Tokens of bytes; some are parts of characters."""

    def decode(self, ids, *, keep_special=False):
        return b"".join(PIECES[token] for token in ids).decode(errors="replace")


def stream(chunks, whole, stop=()):
    answer = text_stream.AnswerStream(ByteText(), keep_special=False, hold=stop)
    return [*(answer.add(chunk) for chunk in chunks), answer.finish(whole)]


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_the_pieces_are_the_whole_text(size):
    for ids in itertools.product(PIECES, repeat=4):
        whole = ByteText().decode(ids)
        pieces = stream([ids[i : i + size] for i in range(0, 4, size)], whole)
        assert "".join(pieces) == whole


def test_half_a_character_waits():
    assert stream([[0], [3], [4]], "aä") == ["a", "", "ä", ""]
    assert stream([[0], [3]], "a\ufffd") == ["a", "", "\ufffd"]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_may_become_a_stop_string_waits(size):
    """Whole text in front of the first stop string: what the service answers without a stream."""
    stops = ("aba", "bb")
    for ids in itertools.product((0, 1, 2, 5), repeat=5):
        text = ByteText().decode(ids)
        ends = [text.find(stop) for stop in stops if stop in text]
        whole = text[: min(ends, default=len(text))]
        # The engine's answer ends with the token that completes the first stop string.
        count = next(
            (n for n in range(6) if any(s in ByteText().decode(ids[:n]) for s in stops)), 5
        )
        chunks = [ids[i : min(i + size, count)] for i in range(0, count, size)]
        pieces = stream(chunks, whole, stops)
        assert "".join(pieces) == whole
    assert stream([[0], [1], [5]], "ab漢", stops) == ["", "", "ab漢", ""]
