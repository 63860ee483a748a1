"""A second battery of attempts, by tables: none gains anything, and the pool serves on."""

import os
import textwrap

import pytest
import sandbox_attempts as attempts
import sandbox_lab as lab

pytestmark = pytest.mark.usefixtures("others_run_on")
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
ENOSYS, EPERM = 38, 1


def _values(interpreters, expressions, helpers=attempts.HELPERS):
    """The values of named expressions, in one interpreter."""
    code = f"for name, text in {expressions!r}.items():\n    print(repr((name, eval(text))))"
    prepared, done = lab.run(interpreters, textwrap.dedent(helpers), code, timeout_s=20.0)
    assert (prepared.error, done.error) == ("", "")
    return dict(eval(line) for line in done.output.splitlines())


@x86_64
def test_calls_are_refused(interpreters):
    names = list(attempts.CALLS)
    for some in (names[:40], names[40:]):  # an answer has a limit
        values = _values(interpreters, {name: f"call(*{attempts.CALLS[name]!r})" for name in some})
        got = {
            name: value
            for name, value in values.items()
            if value not in ((-1, ENOSYS), (-1, EPERM))
        }
        assert got == {}


@x86_64
def test_calls_of_another_architecture_are_refused(interpreters):
    prepared, done, number = lab.run(interpreters, attempts.HELPERS, attempts.AS_I386, "number")
    assert (prepared.error, done.error) == ("", "")
    assert number.output == f"{-ENOSYS}\n"


def test_nothing_is_gained(interpreters):
    lab.run(interpreters, "open('/tmp/left', 'w').close()")
    attempted = {name: f"gain({text!r})" for name, text in attempts.GAINS.items()}
    values = _values(interpreters, attempted)
    assert [name for name, gained in values.items() if gained] == []


def _is_observation(result):
    (result.output + result.error).encode()
    assert result.outcome in ("done", "error", "timeout", "died")
    assert len(result.output) <= 2 * lab.LIMITS.output_chars
    assert len(result.error) <= lab.LIMITS.output_chars
    assert "root:" not in result.error


@pytest.mark.parametrize("name", attempts.TO_ITSELF)
def test_what_it_does_to_itself_is_an_observation(interpreters, name):
    _, done, after, last = lab.run(
        interpreters, "kept = 1", attempts.TO_ITSELF[name], "1 + 1", "2 + 2", timeout_s=0.5
    )
    _is_observation(done)
    _is_observation(after)
    # Who has broken Python's own parts may go on without; but a new interpreter is whole.
    assert last.output == "4\n" or done.kept


@pytest.mark.parametrize("name", attempts.ON_THE_SOCKET)
def test_what_it_says_in_place_of_an_answer_is_an_observation(interpreters, name):
    data, length = attempts.ON_THE_SOCKET[name]
    header = f"struct.pack('>I', {'len(data)' if length is None else length})"
    code = f"""
        import os, struct
        data = {data}
        for number in range(3, 20):
            try: os.write(number, {header if name != "half a length" else "b'12'"} + data)
            except OSError: pass
        while True: pass
    """
    done, after = lab.run(interpreters, textwrap.dedent(code), "6 * 7", timeout_s=0.5)
    assert (done.outcome in ("died", "timeout"), done.kept) == (True, False)
    assert after.output == "42\n"
