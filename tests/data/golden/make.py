"""Makes a small tokenizer with a chat template, and what transformers makes of texts with it.

    python tests/data/golden/make.py

Needs transformers. The outputs are committed, so the tests need nothing but them.
"""

import json
import pathlib

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "chat"
TEMPLATE = """\
{%- if tools %}
<|begin|>tools
    {% for tool in tools %}
{{ tool | tojson }}
    {% endfor %}
<|end|>
{% endif %}
{% for message in messages %}
    {% if message.role == "comment" %}
        {% continue %}
    {% elif message.role not in ("user", "assistant", "tool") %}
        {{- raise_exception("unknown role " + message.role) }}
    {% endif %}
{{ "<|begin|>" + message.role + "\\n" }}
    {%- if message.role == "assistant" %}
        {%- generation %}
{{- message.content | trim }}{{ eos_token }}
        {%- endgeneration %}
    {%- else %}
{{- message["content"] + "<|end|>" }}
    {%- endif %}

{% endfor %}
{% if add_generation_prompt %}
<|begin|>assistant
{{ thought }}
{%- endif %}"""
SAMPLE = ["the weather is fine, the cat is on the mat", "assistant user tool the answer is the sum"]
USER = {"role": "user", "content": "Is 3 < 4 & 5 > 2?  Ünïcödé 日本 🙂"}
TOOL = {
    "type": "function",
    "function": {"name": "sum", "description": "a < b, 'é'", "parameters": {"type": "object"}},
}
CASES = {
    "one": {"messages": [USER]},
    "turns": {
        "messages": [
            USER,
            {"role": "assistant", "content": "  yes\n"},
            {"role": "user", "content": "the <|end|> of it"},
        ]
    },
    "finished": {
        "messages": [USER, {"role": "assistant", "content": "yes"}],
        "add_generation_prompt": False,
    },
    "tools": {"messages": [USER], "tools": [TOOL]},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "the answer is"}],
        "continue_final": True,
    },
    "variables": {"messages": [USER], "template_args": {"thought": "the sum < 4\n"}},
}
TEXTS = ["", "the cat", " the  mat\n", "日本 🙂 é", "<|begin|>user", "a<|end|>b"]
IDS = [[], [1, 2, 0, 5], [200, 150, 3, 3], [0, 1, 2]]


def main() -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|start|>", "<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    # Around a plain text, not around a rendered conversation.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", 0)]
    )
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|start|>"
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(HERE)
    loaded = transformers.AutoTokenizer.from_pretrained(HERE)
    expected = {
        "rendered": {
            name: {
                "input": case,
                "ids": loaded.apply_chat_template(
                    case["messages"],
                    tools=case.get("tools"),
                    add_generation_prompt=case.get(
                        "add_generation_prompt", "continue_final" not in case
                    ),
                    continue_final_message=case.get("continue_final", False),
                    return_dict=False,
                    **case.get("template_args", {}),
                ),
            }
            for name, case in CASES.items()
        },
        "encoded": [{"text": text, "ids": loaded.encode(text)} for text in TEXTS],
        "decoded": [
            {"ids": ids, "text": loaded.decode(ids, skip_special_tokens=skip), "keep": not skip}
            for ids in IDS
            for skip in (True, False)
        ],
    }
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
