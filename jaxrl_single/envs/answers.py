"""Where the answer is in what a model says at the end, and how a script says one."""

from __future__ import annotations

import re

FORMS = ("text", "last_number", "tag", "boxed")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOX = "\\boxed{"
# A number, its thousands apart or not: 12, -3.5, .5, 1,234,567, 3.2e-08. A minus right after a
# digit subtracts, and a point right after a letter or digit ends what is before it.
_NUMBER = re.compile(
    r"(?<![\d.])(?:(?<!\d)-)?(?:\d+(?:,\d{3})*(?:\.\d+)?|(?<!\w)\.\d+)(?:[eE][+-]?\d+(?!\w))?"
)
_MINUS = "\N{MINUS SIGN}"
_END_OF_THOUGHT = "</think>"


def extract(text: str, form: str) -> str | None:
    """Finds the answer in a final message; None when there is none of this form.

    What stands before `</think>` is thought and no answer.

    Args:
      text: the whole message.
      form: of FORMS. text: all of it; last_number: the last number in it; tag: inside the last
        <answer>...</answer>; boxed: inside the last \\boxed{...}.
    """
    said = text.rpartition(_END_OF_THOUGHT)[2].strip()
    if form == "text":
        return said or None
    if form == "last_number":
        numbers = _NUMBER.findall(said.replace(_MINUS, "-"))
        return numbers[-1].replace(",", "") if numbers else None
    if form == "tag":
        inside = _TAG.findall(said)
        return inside[-1].strip() or None if inside else None
    return _in_last_box(said)


def phrase(answer: str, form: str) -> str:
    """A final message in which `extract` finds the answer."""
    return {
        "text": answer,
        "last_number": f"The answer is {answer}.",
        "tag": f"<answer>{answer}</answer>",
        "boxed": f"{_BOX}{answer}}}",
    }[form]


def _in_last_box(text: str) -> str | None:
    """Counts braces, because answers such as \\frac{1}{2} have some of their own."""
    start = text.rfind(_BOX)
    depth = 1
    for end in range(start + len(_BOX), len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len(_BOX) : end].strip() or None
    return None
