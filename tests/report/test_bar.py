"""The bar of a command, in a terminal and in a file."""

import io
import re

from jaxrl_single.report import bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Closed(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def fill(stream):
    with bar.Bar("answers", stream) as shown:
        for done in range(201):
            shown.show(done, 200, f"{done} tokens/s")


def test_a_file_gets_a_line_now_and_then_and_the_last_state():
    stream = io.StringIO()
    fill(stream)
    assert stream.getvalue() == "answers 0/200  0 tokens/s\nanswers 200/200  200 tokens/s\n"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    fill(stream)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert re.search(r"answers ━+ 200/200 \S+\s+200 tokens/s", text.split("\r")[-1].strip()), text


def test_nothing_is_shown_where_nothing_was_counted():
    for stream in (io.StringIO(), Terminal()):
        with bar.Bar("answers", stream):
            pass
        assert "answers" not in stream.getvalue()


def test_a_reader_that_went_away_does_not_end_the_work():
    fill(Closed())
