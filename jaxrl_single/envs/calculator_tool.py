"""A calculator as a tool: exact arithmetic of expressions, safe for whatever a model writes."""

from __future__ import annotations

import ast
import fractions
import re
from collections.abc import Mapping
from typing import Any

MAX_LENGTH = 200  # characters of an expression
_MAX_BITS = 4096  # of a numerator or denominator on the way; bounds time and length of the result
_DIGITS = 12  # significant ones of a result that no finite decimal holds
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", ",": ""})
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=\d)")  # Python refuses 007, people don't


class CalculationError(ValueError):
    """An expression has no value here; the message says why."""


class CalculatorTool:
    """`calculator(expression)`; it keeps nothing between calls."""

    name = "calculator"
    parameter = "expression"
    schema: Mapping[str, Any] = {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Computes an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {
                        "type": "string",
                        "description": "Numbers, + - * / // % ** and brackets, such as (3+4)*5.",
                    }
                },
                "required": ["expression"],
            },
        },
    }

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The value as text, or `error: ...`."""
        try:
            return show(evaluate(arguments["expression"]))
        except CalculationError as error:
            return f"error: {error}"

    async def close(self) -> None:
        """Holds nothing."""


def evaluate(text: str) -> fractions.Fraction:
    """Computes an expression exactly.

    Args:
      text: numbers with + - * / // % ** and brackets; also × ÷ ^, commas in numbers, and an
        equals sign at the end.

    Raises:
      CalculationError: it is too long, is no such expression, divides by zero, or its value or a
        value on the way is too large.
    """
    if len(text) > MAX_LENGTH:
        raise CalculationError(f"the expression is longer than {MAX_LENGTH} characters")
    plain = text.translate(_SIGNS).strip().removesuffix("=").strip()
    try:
        tree = ast.parse(_LEADING_ZEROS.sub("", plain), mode="eval")
        return _value(tree.body)
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    # A parser in C meets deep nesting with the last two.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, CalculationError):
            raise
        raise CalculationError(f"{text[:60]!r} is not an arithmetic expression") from None


def show(value: fractions.Fraction) -> str:
    """A whole number or a finite decimal in full if it is short, else 12 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    rest, places = value.denominator, 0
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest == 1 and places <= _DIGITS:
        digits = f"{abs(value.numerator) * 10**places // value.denominator:0{places + 1}d}"
        return f"{'-' * (value < 0)}{digits[:-places]}.{digits[-places:]}"
    try:
        return f"{float(value):.{_DIGITS}g}"
    except OverflowError:
        raise CalculationError("the result is too large") from None


def _value(node: ast.expr) -> fractions.Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            result = fractions.Fraction(str(number)) if abs(number) != float("inf") else None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            result = _value(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            result = _apply(operator, _value(left), _value(right))
        case _:
            raise CalculationError(
                f"{ast.unparse(node)!r} is not allowed, only numbers, + - * / // % ** and brackets"
            )
    if result is None or _bits(result) > _MAX_BITS:
        raise CalculationError("the result is too large")
    return result


def _apply(
    operator: ast.operator, left: fractions.Fraction, right: fractions.Fraction
) -> fractions.Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return fractions.Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow():
            return _power(left, right)
    raise CalculationError("only + - * / // % ** are allowed")


def _power(base: fractions.Fraction, exponent: fractions.Fraction) -> fractions.Fraction:
    if exponent.denominator != 1:
        raise CalculationError("exponents must be whole numbers")
    if _bits(base) * abs(exponent) > _MAX_BITS and abs(base) not in (0, 1):
        raise CalculationError("the result is too large")
    if abs(base) in (0, 1):
        exponent = exponent % 2 if base else fractions.Fraction(min(max(exponent, -1), 1))
    return base ** int(exponent)


def _bits(value: fractions.Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
