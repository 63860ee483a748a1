"""Expressions against Python's own arithmetic, and refusal of everything else."""

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxrl_single.envs import expression


def _evaluate(text):
    results = []
    for operation in expression.parse(text):
        left = results[operation.left] if operation.left_is_result else operation.left
        right = results[operation.right] if operation.right_is_result else operation.right
        results.append(expression.apply(operation.operator, left, right))
    return results


def test_operations_come_in_order_with_references():
    assert expression.parse("(37+58)*46") == [
        expression.Operation("+", 37, 58),
        expression.Operation("*", 0, 46, left_is_result=True),
    ]
    assert _evaluate("2-3*(4+5)") == [9, 27, -25]
    assert _evaluate("9-4-3") == [5, 2]


_numbers = st.integers(0, 999).map(str)
_expressions = st.recursive(
    _numbers,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner, st.booleans()).map(
        lambda parts: ("({}{}{})" if parts[3] else "{}{}{}").format(*parts[:3])
    ),
    max_leaves=8,
).filter(lambda text: not text.isdigit())


@hypothesis.given(_expressions)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_expression_has_the_value_that_python_gives(text):
    assert _evaluate(text)[-1] == eval(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "ends where"),
        ("12", "no operation"),
        ("1+", "ends where"),
        ("(1+2", "not closed"),
        ("1+2)", "goes on after its end"),
        ("1/2", "not an expression"),
        ("1 + 2", "not an expression"),
        ("*3", "where a number"),
        ("2(3+4)", "goes on after its end"),
        ("1+\u0663", "not an expression"),
    ],
)
def test_what_is_no_expression_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        expression.parse(text)
