"""Text of tokens as they come, and stop strings across the borders of tokens."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxrl_single.sampler import stops

TEXT = "Naïve 日本語 – 🤖🦾 says: stop</s>, héllo"


@pytest.fixture(scope="module")
def of_bytes() -> tokenizers.Tokenizer:
    """A token for each byte, and a few longer ones that begin or end inside characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    robot = bytes_of.pre_tokenize_str("🤖🦾")[0][0]
    merges = [(robot[2], robot[3]), (robot[2:4], robot[4]), ("o", "p"), ("s", "t")]
    pieces = letters + ["".join(pair) for pair in merges]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(pieces)}, merges)
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = bytes_of, decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="module")
def of_words() -> tokenizers.Tokenizer:
    """Words, the first of which loses its space."""
    words = ["▁the", "▁end", "▁is", "▁near", "e", "n", "d", "▁"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({word: number for number, word in enumerate(words)}, [])
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _pieces(tokenizer, ids):
    stream = stops.TextStream(tokenizer.decode)
    return [stream.add(token) for token in ids] + [stream.rest()]


def test_the_pieces_are_the_text(of_bytes):
    ids = of_bytes.encode(TEXT).ids
    pieces = _pieces(of_bytes, ids)
    assert "".join(pieces) == TEXT == of_bytes.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    assert max(map(len, pieces)) <= 2  # nothing is held longer than a character lasts
    assert pieces[-1] == ""


def test_a_character_is_given_by_the_token_that_completes_it(of_bytes):
    ids = of_bytes.encode("a🤖🦾b").ids
    # a | F0 9F | A4 96 F0, which completes the first and begins the second | 9F A6 BE | b
    assert len(ids) == 1 + 2 + 1 + 3 + 1
    assert _pieces(of_bytes, ids) == ["a", "", "", "🤖", "", "", "🦾", "b", ""]


def test_words_keep_the_spaces_between_them(of_words):
    ids = [0, 1, 2, 7, 4, 3]
    assert _pieces(of_words, ids) == ["the", " end", " is", " ", "e", " near", ""]
    assert of_words.decode(ids) == "the end is e near"


def test_bytes_that_are_no_text_do_not_hold_the_rest_back(of_bytes):
    """Random bytes: whatever they are, the pieces are the text of all and the window is short."""
    lengths = []

    def text_of(ids):
        lengths.append(len(ids))
        return of_bytes.decode(ids)

    rng = np.random.default_rng(0)
    lead = of_bytes.encode("é").ids[0]
    for ids in (
        rng.integers(0, 256, 500).tolist(),
        rng.integers(0, 260, 500).tolist(),
        [lead] * 200 + of_bytes.encode("é and so on").ids,
    ):
        stream = stops.TextStream(text_of)
        text = "".join([stream.add(token) for token in ids] + [stream.rest()])
        whole = of_bytes.decode(ids)
        # Where no character begins, decoders differ in how many marks they write.
        assert text.replace("\ufffd", "") == whole.replace("\ufffd", "")
    assert max(lengths) <= 40


def test_an_incomplete_end_is_the_rest(of_bytes):
    ids = of_bytes.encode("ab🤖").ids[:-1]
    assert _pieces(of_bytes, ids)[:2] == ["a", "b"]
    assert "".join(_pieces(of_bytes, ids)) == of_bytes.decode(ids)


@pytest.mark.parametrize(
    ("strings", "found", "text"),
    [
        (["</s>"], "</s>", "Naïve 日本語 – 🤖🦾 says: stop</s>"),
        (["stop"], "stop", "Naïve 日本語 – 🤖🦾 says: stop"),
        (["stop</s>, h", "p<"], "p<", "Naïve 日本語 – 🤖🦾 says: stop<"),
        (["🦾 s", "语"], "🦾 s", "Naïve 日本語 – 🤖🦾 s"),
        (["語"], "語", "Naïve 日本語"),
        (["top", "sto", "st"], "st", "Naïve 日本語 – 🤖🦾 says: st"),
        (["ostop", "Naïve ", "x"], "Naïve ", "Naïve "),
    ],
)
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_stop_string_is_found_at_the_token_that_completes_it(
    of_bytes, strings, found, text, at_once
):
    ids = of_bytes.encode(TEXT).ids
    finder = stops.StopStrings(strings, of_bytes.decode)
    for begin in range(0, len(ids), at_once):
        result = finder.find(ids[begin : begin + at_once])
        if result is not None:
            break
    count, string = result
    assert string == found
    assert of_bytes.decode(ids[: begin + count]) == text


@pytest.mark.parametrize("strings", [["the end."], ["END"], ["nd end"], ["theend"]])
def test_text_without_a_stop_string_has_none(of_words, strings):
    assert stops.StopStrings(strings, of_words.decode).find([0, 1, 2, 3, 0, 1]) is None


def test_of_several_strings_of_one_token_the_first_in_the_text_counts(of_words):
    for strings, found in (
        (["nd", "en"], "en"),
        (["e end", "he e"], "he e"),
        (["end", "en"], "end"),
        (["en", "end"], "en"),
    ):
        assert stops.StopStrings(strings, of_words.decode).find([0, 1, 2]) == (2, found)


def test_a_repeated_beginning_does_not_hide_a_string(of_bytes):
    ids = of_bytes.encode("aabaabaac").ids
    assert stops.StopStrings(["aabaac"], of_bytes.decode).find(ids) == (9, "aabaac")
