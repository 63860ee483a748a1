"""The tokenizer, chat templates and stop tokens of a GGUF file. No jax.

llama.cpp keeps the vocabulary and the merges of byte-level BPE, and only the name of how text is
cut before them; what each name means is here.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jaxrl_single.models import gguf

_UNUSED, _CONTROL, _USER_DEFINED = 5, 3, 4  # kinds of tokens
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_STOPS = ("eos", "eot", "eom")  # ends of a text, a turn, a message
_DEFAULT = "default"
# Contractions, words, digits, signs, spaces: as cl100k of tiktoken has it, but for the digits.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How text is cut before merging.

    Attributes:
      digits: "word" as GPT-2 has it; "single" the same with every digit on its own; else the
        repetition of digits in _WORDS.
      nfc: the text is normalized first.
      ignore_merges: a word that is in the vocabulary is one token, even where no merge leads there.
      bos: a plain prompt begins with this token if the file does not say.
    """

    digits: str
    nfc: bool = False
    ignore_merges: bool = False
    bos: bool = False


_CUTS = {
    "gpt-2": _Cut("word"),
    "smollm": _Cut("single"),
    "qwen2": _Cut("", nfc=True),
    "llama-bpe": _Cut("{1,3}", ignore_merges=True, bos=True),
}


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a `data.text.HfText` is made of.

    Attributes:
      special_tokens: names that templates know, such as eos_token, to texts.
      templates: chat templates by name; "default" is the one for all uses.
    """

    tokenizer: tokenizers.Tokenizer
    stop_token_ids: tuple[int, ...]
    special_tokens: Mapping[str, str]
    templates: Mapping[str, str]


def read(file: gguf.File) -> Parts:
    """Makes the tokenizer of a file.

    Raises:
      ValueError: no byte-level BPE, or text is cut in a way that is not known.
    """
    kind, cut = file.value("tokenizer.ggml.model"), file.value("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in _CUTS:
        raise ValueError(
            f"{file.path}: the tokenizer is {kind!r} with text cut as {cut!r}; this package knows "
            f"'gpt2' (byte-level BPE) cut as one of {sorted(_CUTS)}. Put tokenizer.json beside a "
            "checkpoint in Hugging Face layout instead"
        )
    tokens = file.value("tokenizer.ggml.tokens")
    ids = {name: file.value(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()}
    return Parts(
        tokenizer=_tokenizer(file, tokens, _CUTS[cut]),
        stop_token_ids=stop_token_ids(file),
        special_tokens={f"{name}_token": tokens[i] for name, i in ids.items() if i is not None},
        templates=_templates(file),
    )


def stop_token_ids(file: gguf.File) -> tuple[int, ...]:
    """Generation ends with one of these; empty if the file names none."""
    found = [file.value(f"tokenizer.ggml.{name}_token_id") for name in _STOPS]
    return tuple(dict.fromkeys(i for i in found if i is not None))


def write(parts: Parts, directory: pathlib.Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, as transformers and vLLM read them."""
    parts.tokenizer.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **parts.special_tokens,
    }
    if set(parts.templates) == {_DEFAULT}:
        config["chat_template"] = parts.templates[_DEFAULT]
    elif parts.templates:
        named = sorted(parts.templates.items())
        config["chat_template"] = [{"name": name, "template": text} for name, text in named]
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _tokenizer(file: gguf.File, tokens: list[str], cut: _Cut) -> tokenizers.Tokenizer:
    kinds = file.value("tokenizer.ggml.token_type") or [1] * len(tokens)
    # Unused ones only fill the embedding up.
    vocabulary = {
        token: i
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != _UNUSED
    }
    merges = [tuple(merge.split(" ")) for merge in file.value("tokenizer.ggml.merges")]
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=cut.ignore_merges)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{file.path}: the tokenizer is not in order ({error})") from error
    tokenizer = tokenizers.Tokenizer(model)
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(cut.digits)
    tokenizer.decoder = decoders.ByteLevel()
    bos = file.value("tokenizer.ggml.bos_token_id")
    if bos is not None and file.value("tokenizer.ggml.add_bos_token", cut.bos):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
        )
    tokenizer.add_special_tokens(_whole(tokens, kinds, _CONTROL))
    tokenizer.add_tokens(_whole(tokens, kinds, _USER_DEFINED))
    return tokenizer


def _whole(tokens: list[str], kinds: list[int], wanted: int) -> list[tokenizers.AddedToken]:
    """Tokens of a kind that is never cut."""
    return [
        tokenizers.AddedToken(token, special=wanted == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == wanted
    ]


def _pre_tokenizer(digits: str) -> pre_tokenizers.PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if digits == "word":
        return gpt2
    if digits == "single":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS % digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _templates(file: gguf.File) -> dict[str, str]:
    found = {_DEFAULT: file.value("tokenizer.chat_template")}
    for name in file.value("tokenizer.chat_templates") or ():
        found[name] = file.value(f"tokenizer.chat_template.{name}")
    return {name: template for name, template in found.items() if template is not None}
