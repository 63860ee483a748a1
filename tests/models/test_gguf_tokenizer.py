"""Tokenizers made from the metadata of GGUF files cut and join text as theirs do."""

import gguf
import pytest

from jaxrl_single.data import text as text_lib
from jaxrl_single.models import gguf as gguf_lib
from jaxrl_single.models import gguf_tokenizer
from tests.models import gguf_lab

MERGES = ("Ġ t", "1 2", "12 3", "Ġ Ġ", "h e", "l l", "he ll")


@pytest.fixture
def make(tmp_path):
    """Writes a file without tensors; returns its text."""

    def made(*, change=lambda writer: None, **options):
        path = tmp_path / "x.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        options = {"special": ["<s>", "</s>", "<|im|>"], "merges": MERGES} | options
        gguf_lab.add_text(writer, **options)
        change(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return text_lib.HfText.load(path)

    return made


def pieces(text, ids):
    return [text.decode([i], keep_special=True) for i in ids]


@pytest.mark.parametrize(
    ("pre", "said", "expected"),
    [
        ("gpt-2", "123 the", ["123", " t", "he"]),
        ("smollm", "123 the", ["1", "2", "3", " t", "he"]),
        ("qwen2", "123 the", ["1", "2", "3", " t", "he"]),
        ("llama-bpe", "1231 the", ["123", "1", " t", "he"]),
        # Two blanks before a digit: GPT-2 gives the second to the number.
        ("gpt-2", "a  1", ["a", " ", " ", "1"]),
        ("smollm", "a  1", ["a", "  ", "1"]),
        ("qwen2", "a  t", ["a", " ", " t"]),
    ],
)
def test_text_is_cut_as_the_file_says(make, pre, said, expected):
    text = make(pre=pre, change=lambda writer: writer.add_add_bos_token(False))
    assert pieces(text, text.encode(said)) == expected
    assert text.decode(text.encode(said)) == said


def test_characters_are_joined_from_bytes_and_normalized_by_qwen(make):
    said = "é 🙂\n"
    for pre in ("gpt-2", "smollm", "qwen2"):
        text = make(pre=pre)
        assert text.decode(text.encode(said)) == said
    assert make(pre="qwen2").encode("e\u0301") == make(pre="qwen2").encode("é")
    assert make(pre="smollm").encode("e\u0301") != make(pre="smollm").encode("é")


def test_special_tokens_are_never_cut_and_shown_on_request(make):
    text = make(
        extra=("<tool>", "[PAD9]"), kinds=(gguf.TokenType.USER_DEFINED, gguf.TokenType.UNUSED)
    )
    ids = text.encode("a<|im|><tool></s>[PAD9]")
    assert ids[1] == 2
    assert pieces(text, ids)[:4] == ["a", "<|im|>", "<tool>", "</s>"]
    assert text.decode(ids) == "a<tool>[PAD9]"  # a user's token is no special one
    assert len(ids) == 4 + len("[PAD9]")  # and an unused one is no token
    assert text.stop_token_ids == (1,)


def test_stop_tokens_are_all_ends(make):
    def change(writer):
        writer.add_uint32("tokenizer.ggml.eot_token_id", 2)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 1)

    assert make(change=change).stop_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", None, False),
     ("smollm", True, True)],
)  # fmt: skip
def test_a_plain_prompt_begins_as_the_file_says_and_a_rendered_one_never(make, pre, said, begins):
    def change(writer):
        if said is not None:
            writer.add_add_bos_token(said)
        writer.add_chat_template("{{ bos_token }}{{ messages[0]['content'] }}")

    text = make(pre=pre, change=change)
    assert (text.encode("a")[0] == 0) == begins
    assert text.render([{"role": "user", "content": "a"}]) == [0, *text.tokenise("a")]


def test_a_word_of_the_vocabulary_needs_no_merges_in_llama(make):
    # Nothing merges to it, so only a tokenizer that looks words up first can find it.
    options = {"extra": ("zeta",), "kinds": (gguf.TokenType.NORMAL,)}
    llama = make(pre="llama-bpe", **options)
    assert pieces(llama, llama.tokenise("zeta")) == ["zeta"]
    qwen = make(pre="qwen2", **options)
    assert len(qwen.tokenise("zeta")) == 4


def test_several_templates(make):
    templates = [
        {"name": "default", "template": "D {{ messages | tojson }}"},
        {"name": "tool_use", "template": "T {{ messages[0].content + tools[0].function.name }}"},
    ]
    text = make(change=lambda writer: writer.add_chat_template(templates))
    said = [{"role": "user", "content": "a"}]
    assert text.render_text(said) == 'D [{"role": "user", "content": "a"}]'
    tool = {"type": "function", "function": {"name": "f"}}
    assert text.render_text(said, tools=[tool]) == "T af"


def test_what_is_saved_is_the_same_text(make, tmp_path):
    text = make(
        pre="llama-bpe", change=lambda w: w.add_chat_template("<|im|>{{ messages[0].content }}")
    )
    parts = gguf_tokenizer.read(gguf_lib.File(tmp_path / "x.gguf"))
    gguf_tokenizer.write(parts, tmp_path)
    again = text_lib.HfText.load(tmp_path)
    said = "hello 123 é</s>"
    assert again.encode(said) == text.encode(said)
    said = [{"role": "user", "content": "x"}]
    assert again.render(said) == text.render(said)
    assert again.stop_token_ids == text.stop_token_ids


def test_other_tokenizers_are_named_with_what_is_known(make):
    with pytest.raises(ValueError, match=r"cut as 'tekken'.*\['gpt-2', 'llama-bpe', 'qwen2', 'sm"):
        make(pre="tekken")

    def sentencepiece(writer):
        del writer.kv_data[0]["tokenizer.ggml.model"]
        writer.add_tokenizer_model("llama")

    with pytest.raises(ValueError, match=r"tokenizer is 'llama'.*tokenizer\.json"):
        make(change=sentencepiece)
