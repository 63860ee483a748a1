"""Chat templates with the habits of well-known ones, on a small tokenizer; none is a copy.

chatml   any role, a system message of its own when none is given (SmolLM2)
tagged   tools in the system message, answers of tools in tags of one user message (Qwen 2.5)
thinks   the same, and thoughts before the last question are left out (Qwen 3)
forgets  thoughts are always left out (DeepSeek R1)
headers  trims, writes what tools answer as JSON, another end for some messages (Llama 3.1)
speaker  no end of messages: the name of the next speaker is one (GLM 4.5)
coder    trims, and closes calls its own way (Qwen 3 Coder)
"""

import dataclasses
import pathlib

import tokenizers

from jaxrl_single.data import text as text_lib
from jaxrl_single.rollout import text_chat

TOKENIZER = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat" / "tokenizer.json"
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|bos|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<|eom|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|system|>",
)
SUM = {
    "type": "function",
    "function": {
        "name": "sum",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}

_CHATML = """\
{% for m in messages %}
{% if loop.first and m.role != 'system' %}
<|im_start|>system
Be of use.<|im_end|>
{% endif %}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""

_TAGGED_FRAME = """\
{%- macro system(text) %}
{{- '<|im_start|>system\\n' + text }}
{%- for tool in tools or [] %}{{- '\\n' + tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endmacro %}
{%- if messages[0].role == 'system' %}
{{- system(messages[0].content) }}
{%- elif tools %}
{{- system('Tools:') }}
{%- endif %}
{%- set ns = namespace(question=0) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
ASSISTANT
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""

_PLAIN = "{{- '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}"
_THINKS = """\
{%- set parts = m.content.split('</think>') %}
{%- set said = parts[-1].lstrip('\\n') %}
{%- set thought = (parts[0] if parts | length > 1 else '').replace('<think>', '').strip('\\n') %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.question and (loop.last or thought) %}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
{%- endif %}
{{- said + '<|im_end|>\\n' }}"""
_FORGETS = """\
{{- '<|im_start|>assistant\\n' + m.content.split('</think>')[-1].lstrip() + '<|im_end|>\\n' }}"""
_CODER = """\
{{- '<|im_start|>assistant\\n' + m.content | trim + '<|im_end|>\\n' }}"""

_HEADERS = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|head|>ipython<|/head|>\\n\\n' + m.content | tojson + '<|eot|>' }}
{%- else %}
{{- '<|head|>' + m.role + '<|/head|>\\n\\n' + m.content | trim + '<|eot|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""

_SPEAKER = """\
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}
{{- '<|' + m.role + '|>\\n' + m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""


@dataclasses.dataclass(frozen=True)
class Template:
    """A template, the format of its calls, and what ends a message of its model."""

    source: str
    tool_format: str
    stops: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")


TEMPLATES = {
    "chatml": Template(_CHATML, "hermes"),
    "tagged": Template(_TAGGED_FRAME.replace("ASSISTANT", _PLAIN), "hermes"),
    "thinks": Template(_TAGGED_FRAME.replace("ASSISTANT", _THINKS), "hermes"),
    "forgets": Template(_TAGGED_FRAME.replace("ASSISTANT", _FORGETS), "hermes"),
    "headers": Template(_HEADERS, "llama3", ("<|eom|>", "<|eot|>")),
    "speaker": Template(_SPEAKER, "glm", ("<|endoftext|>", "<|user|>", "<|observation|>")),
    "coder": Template(_TAGGED_FRAME.replace("ASSISTANT", _CODER), "qwen3_coder"),
}


def make_text(name):
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.add_special_tokens(list(SPECIAL))
    template = TEMPLATES[name]
    return text_lib.HfText(
        tokenizer,
        stop_token_ids=tuple(tokenizer.token_to_id(stop) for stop in template.stops),
        templates={"default": template.source},
        special_tokens={"bos_token": "<|bos|>"},
        where=name,
    )


def make_chat(name, **options):
    return text_chat.TextChat(make_text(name), **options)
