"""Files of token ids: what is read, and that all wrong lines are named."""

import json
import re

import pytest

from jaxrl_single.lab import token_lines


def read(tmp_path, *lines):
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return token_lines.read(path, vocab_size=10)


def test_lines_keep_their_numbers_and_ids(tmp_path):
    found = read(tmp_path, '{"token_ids": [0, 9, 3]}', "", '{"id": {"a": 1}, "token_ids": [4]}')
    assert [(line.number, line.id, line.tokens.tolist()) for line in found] == [
        (1, None, [0, 9, 3]),
        (3, {"a": 1}, [4]),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5", "expected a JSON object, found a int"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "expected a list of at least one"),
        ('{"token_ids": []}', "expected a list of at least one"),
        ('{"token_ids": "12"}', "expected a list of at least one"),
        ('{"token_ids": [1, 10]}', r"token_ids\[1\] is 10, expected a number 0 \.\. 9"),
        ('{"token_ids": [-1]}', r"token_ids\[0\] is -1"),
        ('{"token_ids": [1.0]}', r"token_ids\[0\] is 1\.0"),
        ('{"token_ids": [true]}', r"token_ids\[0\] is True"),
        ('{"token_ids": [1], "ids": 3}', r"unknown fields \['ids'\]; allowed are"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    with pytest.raises(token_lines.BadLines, match=f"ids.jsonl, line 2: .*{message}"):
        read(tmp_path, '{"token_ids": [1]}', line)


def test_all_wrong_lines_are_named_up_to_five(tmp_path):
    wrong = [json.dumps({"token_ids": [number]}) for number in range(10, 17)]
    with pytest.raises(token_lines.BadLines) as caught:
        read(tmp_path, *wrong[:3], '{"token_ids": [1]}', wrong[3])
    assert re.findall(r"line (\d+):", str(caught.value)) == ["1", "2", "3", "5"]
    with pytest.raises(token_lines.BadLines, match=r"; 7 lines are wrong in all$") as caught:
        read(tmp_path, *wrong)
    assert re.findall(r"line (\d+):", str(caught.value)) == ["1", "2", "3", "4", "5"]


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(token_lines.BadLines, match="no line"):
        read(tmp_path, "", "  ")
