"""JSONL tasks: what is read, and that each fault names its file and line."""

import pytest

from jaxrl_single import types
from jaxrl_single.envs import tasks_file

GOOD = '{"question": "1+2", "answer": "3"}'


def _write(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_reads_ids_defaults_and_further_keys(tmp_path):
    path = _write(
        tmp_path,
        GOOD,
        "",
        '{"id": "x", "question": "2*3", "answer": "6", "level": 2, "tags": ["a"]}',
    )
    assert tasks_file.read_tasks(path) == [
        types.Task("mine/1", "1+2", "3"),
        types.Task("x", "2*3", "6", {"level": 2, "tags": ["a"]}),
    ]


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = _write(tmp_path, "\ufeff" + GOOD)
    assert tasks_file.read_tasks(path) == [types.Task("mine/1", "1+2", "3")]


def test_only_line_feeds_end_a_line(tmp_path):
    question = "a\u2028b\x85c"
    path = _write(tmp_path, f'{{"question": "{question}", "answer": "3"}}\r', GOOD)
    assert tasks_file.read_tasks(path) == [
        types.Task("mine/1", question, "3"),
        types.Task("mine/2", "1+2", "3"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question": "1+2"', r"not JSON \(Expecting ',' delimiter at column 19\)"),
        ("[1, 2]", "is a list, expected an object"),
        ('{"question": "1+2"}', r"lacks \['answer'\]; needed are .* found are \['question'\]"),
        ('{"answer": "3"}', r"lacks \['question'\]"),
        ('{"question": "1+2", "answer": 3}', "answer is 3, expected a non-empty string"),
        ('{"question": " ", "answer": "3"}', 'question is " ", expected a non-empty string'),
        ('{"question": "1+2", "answer": null}', "answer is null"),
        ('{"id": 7, "question": "1+2", "answer": "3"}', "id is 7"),
        ('{"id": "mine/1", "question": "1+2", "answer": "3"}', "'mine/1' was used in line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
    path = _write(tmp_path, GOOD, line)
    with pytest.raises(tasks_file.InvalidTasks, match=complaint) as caught:
        tasks_file.read_tasks(path)
    assert f"{path}, line 2" in str(caught.value)


def test_check_is_reported_with_the_line(tmp_path):
    def check(task):
        if "x" in task.question:
            raise ValueError("'x' is not in the vocabulary")

    path = _write(tmp_path, GOOD, '{"question": "1+x", "answer": "3"}')
    assert len(tasks_file.read_tasks(path)) == 2
    with pytest.raises(tasks_file.InvalidTasks, match="line 2: 'x' is not in the vocabulary"):
        tasks_file.read_tasks(path, check=check)


def test_empty_missing_and_binary_files(tmp_path):
    with pytest.raises(tasks_file.InvalidTasks, match="holds no task"):
        tasks_file.read_tasks(_write(tmp_path, "", "  "))
    with pytest.raises(tasks_file.InvalidTasks, match=r"nowhere\.jsonl: cannot be read"):
        tasks_file.read_tasks(tmp_path / "nowhere.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(tasks_file.InvalidTasks, match="cannot be read"):
        tasks_file.read_tasks(tmp_path / "binary")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": "\\ud800", "answer": "1"}', "question holds half of a character"),
        ('{"question": "1", "answer": "1", "n": ' + "9" * 5000 + "}", "can be read"),
        ("[" * 200_000, "can be read"),
    ],
)
def test_lines_that_no_json_reader_expects_are_named_too(tmp_path, line, words):
    path = tmp_path / "odd.jsonl"
    path.write_text(line)
    with pytest.raises(tasks_file.InvalidTasks, match=f"odd.jsonl, line 1: .*{words}"):
        tasks_file.read_tasks(path)
