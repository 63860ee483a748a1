"""What a checkpoint is, wherever it lies: digests of its model, tokenizer and template. No jax."""

from __future__ import annotations

import os
import pathlib

from jaxrl_single import digest
from jaxrl_single.models import gguf_header, hf_config, hf_files, pretrained

Digests = dict[str, str]  # name of what belongs to a part -> digest

_SAYS_NOTHING = ("_name_or_path", "transformers_version")  # of config.json: where it came from
_TEMPLATE = "chat_template"  # of tokenizer_config.json, chat_template.jinja and a GGUF's metadata
_GGUF_TEXT = "tokenizer."  # metadata of the tokenizer and its template


def of_model(path: str | os.PathLike) -> Digests:
    """Of its shape and its tensors; names of files, the order of shards and the place don't count.

    Args:
      path: as `pretrained.locate` takes it.

    Raises:
      ValueError: there is no checkpoint, or a file of it is not in order.
      OSError: a file cannot be read.
    """
    found = pretrained.locate(path)
    if found.is_file():
        return _gguf_model(found)
    config = hf_config.read_object(found / "config.json")
    tensors = sorted(digest.of_file(shard) for shard in {*hf_files.locate(found).values()})
    return {
        "config.json": digest.of_json(
            {key: value for key, value in config.items() if key not in _SAYS_NOTHING}
        ),
        "tensors": tensors[0] if len(tensors) == 1 else digest.of_json(tensors),
    }


def of_text(path: str | os.PathLike) -> dict[str, Digests]:
    """Of "tokenizer" and "template", {} where the checkpoint has none; otherwise as `of_model`."""
    found = pretrained.locate(path)
    if found.is_file():
        return _gguf_text(found)
    tokenizer, template = {}, {}
    for name in pretrained.TEXT_FILES:
        file = found / name
        if not file.exists():
            continue
        if name == "tokenizer_config.json":
            fields = hf_config.read_object(file)
            templates = fields.pop(_TEMPLATE, None)
            tokenizer[name] = digest.of_json(fields)
            if templates is not None:
                template[f"{_TEMPLATE} of {name}"] = digest.of_json(templates)
        else:
            (template if name.startswith(_TEMPLATE) else tokenizer)[name] = digest.of_file(file)
    for file in sorted(found.glob("additional_chat_templates/*.jinja")):
        template[f"{file.parent.name}/{file.name}"] = digest.of_file(file)
    return {"tokenizer": tokenizer, "template": template}


def in_words(path: str | os.PathLike) -> dict[str, str]:
    """What a command notes beside its output, so that it knows the checkpoint again."""
    found = {"model": of_model(path), **of_text(path)}
    return {
        part: f"sha256 {digest.short(digest.of_json(one))}" for part, one in found.items() if one
    }


def _gguf_model(file: pathlib.Path) -> Digests:
    header = gguf_header.read(file)
    facts = {k: value for k, value in header.values.items() if not k.startswith(_GGUF_TEXT)}
    begin = min((tensor.offset for tensor in header.tensors), default=0)
    places = [[one.name, list(one.shape), one.kind, one.offset - begin] for one in header.tensors]
    return {
        "metadata": digest.of_json([facts, places]),
        "tensors": digest.of_file(file, begin=begin),
    }


def _gguf_text(file: pathlib.Path) -> dict[str, Digests]:
    values = gguf_header.read(file).values
    text = {name: value for name, value in values.items() if name.startswith(_GGUF_TEXT)}
    templates = {name: text.pop(name) for name in sorted(text) if _TEMPLATE in name}
    return {
        "tokenizer": {"metadata": digest.of_json(text)},
        "template": {"metadata": digest.of_json(templates)} if templates else {},
    }
