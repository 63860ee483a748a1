"""Lines of a user's file: what is no text in UTF-8 is named by file and line."""

import gzip

import pytest

from jaxrl_single.lab import lines


def test_a_byte_order_mark_and_other_ends_of_lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf1\r\n\n\xc3\xa4")
    assert [(number, text.strip()) for number, text in lines.numbered(path)] == [
        (1, "1"),
        (2, ""),
        (3, "ä"),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{}\n{\xff}\n", r"in.jsonl, line 2: not UTF-8 \(byte 2 is 0xff\); convert"),
        ("{}\n".encode("utf-16"), r"in.jsonl, line 1: not UTF-8 \(byte 1 is 0xff\)"),
        (gzip.compress(b"{}\n"), r"in.jsonl: packed by gzip; unpack it first"),
    ],
)
def test_what_is_no_text(tmp_path, data, message):
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        list(lines.numbered(path))
