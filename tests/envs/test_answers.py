"""Where the answer of a final message is, and who judges it."""

import asyncio

import pytest

from jaxrl_single import types
from jaxrl_single.envs import answer_checks, answers


@pytest.mark.parametrize(
    ("text", "form", "answer"),
    [
        ("  42 ", "text", "42"),
        ("", "text", None),
        ("<think>7 or 8?</think>\n42", "text", "42"),
        ("<think>7</think>", "text", None),
        ("The answer is 42.", "last_number", "42"),
        ("3 + 4 = 7", "last_number", "7"),
        ("It is -3.50 dollars", "last_number", "-3.50"),
        ("10-3", "last_number", "3"),
        ("1,234,567!", "last_number", "1234567"),
        ("It is \N{MINUS SIGN}5", "last_number", "-5"),
        ("10 \N{MINUS SIGN} 3 = 7", "last_number", "7"),
        ("10\N{MINUS SIGN}3", "last_number", "3"),
        ("The answer is .5", "last_number", ".5"),
        ("about -.25.", "last_number", "-.25"),
        ("see 2 in end.5", "last_number", "2"),
        ("version 1.2.3", "last_number", "1.2"),
        ("5...", "last_number", "5"),
        ("The answer is 3.33333333333e-08.", "last_number", "3.33333333333e-08"),
        ("about -1.5E+20", "last_number", "-1.5E+20"),
        ("1e5 or so", "last_number", "1e5"),
        ("It is 2e", "last_number", "2"),
        ("5 eggs, 2e-x", "last_number", "2"),
        ("id 3e55f", "last_number", "55"),
        ("3, 4", "last_number", "4"),
        ("none at all", "last_number", None),
        ("<think>99</think> no", "last_number", None),
        ("<answer>1</answer> or <answer> 2\n</answer>", "tag", "2"),
        ("<answer>1", "tag", None),
        ("<answer> </answer>", "tag", None),
        (r"so \boxed{1}, no: $\boxed{\frac{1}{2}}$.", "boxed", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{2}", "boxed", None),
        ("<answer>1</answer> <answer>2", "tag", "1"),
        ("<answer>1</answer> x</answer>", "tag", "1"),
        ("5 <think>7</think>", "last_number", "5"),
        ("7 </think> 5", "last_number", "5"),
        ("5 <think>7", "last_number", None),
        ("\ud800", "text", "\ud800"),
        ("1", "boxed", None),
    ],
)
def test_answer_is_found_or_missing(text, form, answer):
    assert answers.extract(text, form) == answer


@pytest.mark.parametrize("form", answers.FORMS)
@pytest.mark.parametrize("answer", ["42", "-3.5"])
def test_what_a_script_says_holds_its_answer(form, answer):
    assert answers.extract(answers.phrase(answer, form), form) == answer


@pytest.mark.parametrize(
    ("check", "right", "given", "score"),
    [
        (answer_checks.exact, "Paris", " paris ", 1.0),
        (answer_checks.exact, "Paris", "Paris, France", 0.0),
        (answer_checks.number, "1000", "1,000.0", 1.0),
        (answer_checks.number, "1000", "1001", 0.0),
        (answer_checks.number, "1000", "a thousand", 0.0),
        (answer_checks.number, "no number", "also none", 0.0),
        (answer_checks.number, "NaN", "NaN", 0.0),
        (answer_checks.number, "5", "\ud800", 0.0),
        (answer_checks.number, "5", "9" * 100_000, 0.0),
        (answer_checks.number, "5", "1e" + "9" * 50, 0.0),
        (answer_checks.number, "5", "1e-999999999", 0.0),
        (answer_checks.exact, "5", "\ud800", 0.0),
    ],
)
def test_checks_against_the_answer_of_the_task(check, right, given, score):
    assert asyncio.run(check(types.Task("t", "?", right), given)) == score
