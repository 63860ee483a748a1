"""Chat templates in the styles of well-known families, each with what it does to content.

qwen      tools and calls as JSON, thoughts split off, answers of tools in tags of a user's turn
llama     trims, writes answers of tools as JSON, drops words beside a call
glm       no ends of turns, arguments one by one, a macro that shows content
smollm    shows no tools, any role
mistral   a blank before the content, the system message within the first turn of the user
deepseek  arguments must be texts
"""

import json
import pathlib

import tokenizers

from jaxrl_single.data import text as text_lib

TOKENIZER = pathlib.Path(__file__).parents[1] / "data" / "golden" / "chat" / "tokenizer.json"
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|head|>", "<|/head|>", "<|eot|>")
SPECIAL += (
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "[INST]",
    "[/INST]",
    "</s>",
)
SPECIAL += ("[TOOL]", "[/TOOL]", "<|python_tag|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
TAGS += ("</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

_QWEN = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- '<tools>' }}{% for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall: <tool_call>\\n{"name": ...}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}
{%- if m.role == 'user' and not m.content.startswith('<tool_response>') %}
{%- set ns.last = loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set content = m.content %}
{%- set thought = m.reasoning_content or '' %}
{%- if not thought and '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string
    else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

_LLAMA = """\
{%- if tools %}
{{- '<|head|>system<|/head|>\\n\\nAnswer with {"name": NAME, "parameters": dictionary}.' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson(indent=4) }}{% endfor %}
{{- '<|eot|>' }}
{%- endif %}
{%- for m in messages %}
{%- if m.tool_calls %}
{{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- for call in m.tool_calls %}
{{- '{"name": "' + call.function.name + '", "parameters": ' }}
{{- call.function.arguments | tojson + '}' }}
{%- endfor %}
{{- '<|eot|>' }}
{%- elif m.role == 'tool' %}
{{- '<|head|>ipython<|/head|>\\n\\n' + (m.content | tojson if m.content is iterable) + '<|eot|>' }}
{%- else %}
{{- '<|head|>' + m.role + '<|/head|>\\n\\n' + m.content | trim + '<|eot|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""

_GLM = """\
{%- macro visible(content) -%}{{- content }}{%- endmacro -%}
{%- if tools %}
{{- '<|system|>\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson(ensure_ascii=False) }}{% endfor %}
{{- '\\n</tools>' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- elif m.role == 'assistant' %}
{{- '<|assistant|>\\n' + visible(m.content).split('</think>')[-1].strip() }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' }}
{{- value if value is string else value | tojson }}{{- '</arg_value>' }}
{%- endfor %}
{{- '\\n</tool_call>' }}
{%- endfor %}
{%- else %}
{{- '<|' + m.role + '|>\\n' + visible(m.content) }}
{%- if m.role == 'user' and enable_thinking is defined and not enable_thinking
   and not visible(m.content).endswith('/nothink') %}{{- '/nothink' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""

_SMOLLM = """\
{% for m in messages %}
{% if loop.first and m.role != 'system' %}
{{ '<|im_start|>system\\nBe of use.<|im_end|>\\n' }}
{%- endif %}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_MISTRAL = """\
{%- set ns = namespace(system='') %}
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first %}
{%- set ns.system = m.content + '\\n\\n' %}
{%- elif m.role == 'user' %}
{%- if tools and m == asked[-1] %}{{- '[TOOL] ' + tools | tojson + '[/TOOL]' }}{% endif %}
{{- '[INST] ' + ns.system + m.content + '[/INST]' }}{% set ns.system = '' %}
{%- elif m.role == 'assistant' %}
{%- if m.tool_calls %}
{{- m.content }}[TOOL] {% for call in m.tool_calls %}{{- call.function | tojson }}{% endfor %}
{{- '[/TOOL]' }}
{%- else %}
{{- ' ' + m.content | trim + '</s>' }}
{%- endif %}
{%- elif m.role == 'tool' %}
{{- '[TOOL] ' + m.content | trim + '[/TOOL]' }}
{%- else %}
{{- raise_exception('only one system message, at the beginning') }}
{%- endif %}
{%- endfor %}"""

_DEEPSEEK = """\
{%- for m in messages %}
{%- if m.role == 'system' %}{{- m.content }}
{%- elif m.role == 'user' %}{{- '<|user|>' + m.content }}
{%- elif m.role == 'tool' %}{{- '<|observation|>' + m.content + '<|eot|>' }}
{%- else %}
{{- '<|assistant|>' }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```' }}
{%- endfor %}
{{- m.content.split('</think>')[-1] + '</s>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

SOURCES = {
    "qwen": _QWEN,
    "llama": _LLAMA,
    "glm": _GLM,
    "smollm": _SMOLLM,
    "mistral": _MISTRAL,
    "deepseek": _DEEPSEEK,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds a text.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What to find."}},
            "required": ["text"],
        },
    },
}


def make_tokenizer():
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([tokenizers.AddedToken(tag, special=False) for tag in TAGS])
    return tokenizer


def make_text(name, **options):
    return text_lib.HfText(make_tokenizer(), templates={"default": SOURCES[name]}, **options)


def save(directory, name, **generation):
    """A directory that `HfText.load` reads."""
    directory.mkdir(exist_ok=True)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(SOURCES[name])
    if generation:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory
