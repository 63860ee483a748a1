"""A rendered conversation as token ids: control tokens only where the template wrote them. No jax.

Content is tokenised on its own, so the ids around it never depend on it. Only a blank that the
template puts before it goes with it, for words are tokens together with their blank. What the
assistant said is tokenised together with the template's text around it, as the model writes it.
"""

from __future__ import annotations

import re
import secrets

import tokenizers

from jaxrl_single.chat import shadows

# A token of our own, so that a text does not stand at the beginning; nobody can spell it.
_ANCHOR = f"{chr(shadows.FIRST)}{secrets.token_hex(16)}"
_UNKNOWN = "\U0010fffe"  # no character, and never will be
_WORD = re.compile(r"[\w\s\u2581]+")  # added tokens that are only words or blanks control nothing


class Encoder:
    """Ids of what a template shows.

    Attributes:
      control: the added tokens that control: text -> id. Content never becomes one of them.
      special: ids of those that the tokenizer calls special; tags of thoughts often are not.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        self._full = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        words = [one for one in added.values() if not one.special and _WORD.fullmatch(one.content)]
        kept = {one.content for one in words}
        self.control = {one.content: i for i, one in added.items() if one.content not in kept}
        self.special = frozenset(i for i, one in added.items() if one.special)
        self._control_ids = frozenset(self.control.values())
        # The same tokenizer (it shares the vocabulary) that knows no control tokens.
        plain = tokenizers.Tokenizer(tokenizer.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(tokenizer, part) is not None:
                setattr(plain, part, getattr(tokenizer, part))
        plain.add_tokens(words)
        plain.add_special_tokens([_ANCHOR])
        self._plain = plain
        # What a tokenizer makes of a letter that it does not know controls nothing.
        self._forbidden = self._control_ids - set(self._encode(plain, _UNKNOWN).ids)
        self._ids = {plain.token_to_id(one.content): tokenizer.token_to_id(one.content)
                     for one in words}  # fmt: skip
        self._puts_blanks = self._puts_blanks_before()

    def ids(self, shown: shadows.Shown) -> list[int]:
        """Token ids.

        Raises:
          ValueError: a text cannot be tokenised, or not without becoming a control token.
        """
        found: list[int] = []
        stretch, place = "", "start"  # what is read together; where it stands
        for text, kind in shown.runs():
            if kind == shadows.SAID:
                if stretch[-1:].isspace() and text[:1].isspace():
                    # Where the assistant begins, its blanks do not join those before it.
                    found += self._ordinary(stretch, place)
                    stretch, place = "", "middle"
                stretch += text
                continue
            if kind == shadows.CONTENT:
                if stretch.endswith(" "):
                    stretch, text = stretch[:-1], " " + text
                found += self._ordinary(stretch, place) if stretch else []
                found += self._ordinary(text, "middle" if stretch else place)
                stretch, place = "", "middle"
                continue
            for piece, token in self._cut(text):
                stretch += piece
                if token is not None:
                    found += self._ordinary(stretch, place)
                    found.append(token)
                    stretch, place = "", "behind control"
        return found + self._ordinary(stretch, place)

    def _cut(self, text: str) -> list[tuple[str, int | None]]:
        """The template's own text at its control tokens: (text before, token or None)."""
        encoding = self._encode(self._full, text)
        cuts, end = [], 0
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._control_ids:
                cuts.append((text[end:start], token))
                end = stop
        return [*cuts, (text[end:], None)]

    def _ordinary(self, text: str, place: str) -> list[int]:
        """Ids of a text that controls nothing."""
        if not text:
            return []
        found = self._plain_ids(text, place)
        if not self._forbidden.isdisjoint(found):
            # Some models have a control token in their vocabulary of words, too.
            found = [token for one in text for token in self._plain_ids(one, "middle")]
        if not self._forbidden.isdisjoint(found):
            raise ValueError(f"the tokenizer has no ordinary tokens for {text!r:.200}")
        return found

    def _plain_ids(self, text: str, place: str) -> list[int]:
        before = ""
        if self._puts_blanks and place != "start":
            before = _ANCHOR if place == "behind control" else _ANCHOR + "\n"
        skipped = self._encode(self._plain, before).ids
        ids = self._encode(self._plain, before + text).ids
        if ids[: len(skipped)] != skipped:
            raise ValueError(f"the tokenizer cannot read {text!r:.200} on its own")
        return [self._ids.get(token, token) for token in ids[len(skipped) :]]

    def _puts_blanks_before(self) -> bool:
        """Whether the beginning of a text gets a blank that the text has not."""
        alone, anchored, within = (
            self._plain.encode(text, add_special_tokens=False).ids
            for text in ("a", f"{_ANCHOR}a", f"{_ANCHOR}\na")
        )
        return alone != anchored[1:] or within[-len(alone) :] != alone

    def _encode(self, tokenizer: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
        try:
            return tokenizer.encode(text, add_special_tokens=False)
        except TypeError as error:  # the library's word for halves of characters
            raise ValueError(f"not a text: {error} (is a character cut in half?)") from error
