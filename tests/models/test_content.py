"""Which parts of a checkpoint differ, and that its place and the names of its files don't count."""

import json
import pathlib
import shutil

import jax
import pytest

from jaxrl_single.models import api, content, hf, sizes
from tests.models import gguf_lab

CHAT = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("content") / "model"
    shape = sizes.get("tiny", vocab_size=296)
    params = jax.tree.map(
        lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(api.build_policy(shape).init, jax.random.key(0)),
    )
    hf.save(directory, shape, params, context_length=64, stop_token_ids=(20,), tokenizer=CHAT)
    return directory


def parts(path):
    return {"model": content.of_model(path), **content.of_text(path)}


def change_json(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


CHANGES = {
    "model": [
        lambda model: flip(model / "model.safetensors"),
        lambda model: change_json(model / "config.json", rope_theta=5.0),
    ],
    "tokenizer": [
        lambda model: change_json(model / "generation_config.json", eos_token_id=3),
        lambda model: change_json(model / "tokenizer_config.json", eos_token="<other>"),
    ],
    "template": [
        lambda model: change_json(model / "tokenizer_config.json", chat_template="{{ 1 }}"),
        lambda model: (model / "chat_template.jinja").write_text("{{ 1 }}"),
    ],
    None: [lambda model: change_json(model / "config.json", transformers_version="9")],
}


@pytest.mark.parametrize(
    ("part", "change"), [(part, change) for part in CHANGES for change in CHANGES[part]]
)
def test_a_change_is_told_by_its_part(checkpoint, tmp_path, part, change):
    before = parts(checkpoint)
    model = tmp_path / "elsewhere"
    shutil.copytree(checkpoint, model)
    assert parts(model) == before
    change(model)
    now = parts(model)
    assert [name for name in before if now[name] != before[name]] == ([part] if part else [])
    assert (content.in_words(model) != content.in_words(checkpoint)) == bool(part)


def test_of_a_gguf_file_the_template_is_not_the_model(tmp_path):
    shape = sizes.get("tiny_llama", vocab_size=8)
    made = api.build_policy(shape).init(jax.random.key(0))

    def write(name, template, params=made):
        file = tmp_path / name
        gguf_lab.write(
            file, "llama", shape, params, change=lambda writer: writer.add_chat_template(template)
        )
        return parts(file)

    before = write("one.gguf", "{{ 1 }}")
    assert write("two.gguf", "{{ 1 }}") == before
    longer = write("three.gguf", "{{ 1 }}" * 50)
    assert [name for name in before if longer[name] != before[name]] == ["template"]
    other = write("four.gguf", "{{ 1 }}", jax.tree.map(lambda leaf: leaf + 1, made))
    assert [name for name in before if other[name] != before[name]] == ["model"]
