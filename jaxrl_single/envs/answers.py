"""Where the answer is in what a model says at the end, and how a script says one."""

from __future__ import annotations

import re

from jaxrl_single.envs import thoughts

FORMS = ("text", "last_number", "tag", "boxed")
_TAG, _END_TAG = "<answer>", "</answer>"
_BOX = "\\boxed{"
# A number, its thousands apart or not: 12, -3.5, .5, 1,234,567, 3.2e-08. A minus right after a
# digit subtracts, and a point right after a letter or digit ends what is before it.
_NUMBER = re.compile(
    r"(?<![\d.])(?:(?<!\d)-)?"
    r"(?:\d++(?:,\d{3})*+(?:\.\d++)?+|(?<!\w)\.\d++)(?:[eE][+-]?+\d++(?!\w))?+"
)
_MINUS = "\N{MINUS SIGN}"


def extract(text: str, form: str) -> str | None:
    """Finds the answer in a final message; None when there is none of this form.

    What the model thinks is no answer, and a message that ends within a thought has none.

    Args:
      text: the whole message.
      form: of FORMS. text: all of it; last_number: the last number in it; tag: inside the last
        <answer>...</answer>; boxed: inside the last \\boxed{...}.
    """
    said = thoughts.said(text).strip()
    if form == "text":
        return said or None
    if form == "last_number":
        numbers = _NUMBER.findall(said.replace(_MINUS, "-"))
        return numbers[-1].replace(",", "") if numbers else None
    if form == "tag":
        return _in_last_tag(said)
    return _in_last_box(said)


def phrase(answer: str, form: str) -> str:
    """A final message in which `extract` finds the answer."""
    return {
        "text": answer,
        "last_number": f"The answer is {answer}.",
        "tag": f"<answer>{answer}</answer>",
        "boxed": f"{_BOX}{answer}}}",
    }[form]


def _in_last_tag(text: str) -> str | None:
    start = text.rfind(_TAG, 0, max(0, text.rfind(_END_TAG)))
    if start < 0:
        return None
    return text[start + len(_TAG) : text.find(_END_TAG, start)].strip() or None


def _in_last_box(text: str) -> str | None:
    """Counts braces, because answers such as \\frac{1}{2} have some of their own."""
    start = text.rfind(_BOX)
    depth = 1
    for end in range(start + len(_BOX), len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len(_BOX) : end].strip() or None
    return None
