"""What transformers computes with checkpoints: python run_transformers.py

Reads {"tokens": [[...], ...], "pairs": [[DIRECTORY, RESAVED], ...]} from standard input. For each
pair it writes a line with the log-probs of the whole vocabulary after each token, float32, and
saves the checkpoint of DIRECTORY again in RESAVED.
"""

import json
import sys

import torch
import transformers


def main() -> None:
    asked = json.load(sys.stdin)
    tokens = torch.tensor(asked["tokens"])
    for directory, resaved in asked["pairs"]:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True
        )
        problems = {name: sorted(map(str, names)) for name, names in info.items() if names}
        with torch.no_grad():
            logprobs = model(tokens).logits.log_softmax(-1)
        model.save_pretrained(resaved)
        print(json.dumps({"logprobs": logprobs.tolist(), "problems": problems}))


if __name__ == "__main__":
    main()
