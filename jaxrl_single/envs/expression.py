"""Integer expressions such as `(37+58)*46`: reading them and computing one operation."""

from __future__ import annotations

import dataclasses
import re

_TOKEN = re.compile(r"[0-9]+|[-+*()]")
_PRECEDENCE = {"+": 1, "-": 1, "*": 2}
OPERATORS = "+-*"


@dataclasses.dataclass(frozen=True)
class Operation:
    """`left operator right`; an operand is a number or the index of an earlier operation.

    Attributes:
      left, right: the number, or the index into the list of operations.
      left_is_result, right_is_result: says which of the two.
    """

    operator: str
    left: int
    right: int
    left_is_result: bool = False
    right_is_result: bool = False


def apply(operator: str, left: int, right: int) -> int:
    """Computes one operation; `operator` is one of `OPERATORS`."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right


def parse(text: str) -> list[Operation]:
    """Lists the operations of an expression in an order in which they can be computed.

    `*` binds stronger than `+` and `-`; all three are left-associative.

    Raises:
      ValueError: the text is not such an expression, or has no operation at all.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ValueError(
            f"{text!r} is not an expression of whole numbers, {OPERATORS!r} and brackets"
        )
    operations: list[Operation] = []
    position, _ = _parse_chain(tokens, 0, 1, operations, text)
    if position != len(tokens):
        raise ValueError(f"{text!r} goes on after its end, at {tokens[position]!r}")
    if not operations:
        raise ValueError(f"{text!r} has no operation; it needs at least one of {OPERATORS!r}")
    return operations


def _parse_chain(
    tokens: list[str], position: int, lowest: int, operations: list[Operation], text: str
) -> tuple[int, tuple[int, bool]]:
    """Precedence climbing: reads operands joined by operators that bind at least `lowest`."""
    position, left = _parse_operand(tokens, position, operations, text)
    while position < len(tokens) and _PRECEDENCE.get(tokens[position], 0) >= lowest:
        operator = tokens[position]
        position, right = _parse_chain(
            tokens, position + 1, _PRECEDENCE[operator] + 1, operations, text
        )
        operations.append(Operation(operator, left[0], right[0], left[1], right[1]))
        left = (len(operations) - 1, True)
    return position, left


def _parse_operand(
    tokens: list[str], position: int, operations: list[Operation], text: str
) -> tuple[int, tuple[int, bool]]:
    """Reads a number or a bracket; returns (next position, (value, is it a result))."""
    if position >= len(tokens):
        raise ValueError(f"{text!r} ends where a number or '(' is expected")
    token = tokens[position]
    if token.isdigit():
        return position + 1, (int(token), False)
    if token != "(":
        raise ValueError(f"{text!r} has {token!r} where a number or '(' is expected")
    position, operand = _parse_chain(tokens, position + 1, 1, operations, text)
    if position >= len(tokens) or tokens[position] != ")":
        raise ValueError(f"{text!r} has a '(' that is not closed")
    return position + 1, operand
