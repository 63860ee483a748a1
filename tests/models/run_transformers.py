"""What transformers computes with a checkpoint: python run_transformers.py DIRECTORY RESAVED

Reads {"tokens": [[...], ...]} from standard input; writes one line with the log-probs of the whole
vocabulary after each token, float32, and saves the checkpoint again in RESAVED.
"""

import json
import sys

import torch
import transformers


def main() -> None:
    directory, resaved = sys.argv[1:]
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    problems = {name: sorted(map(str, names)) for name, names in info.items() if names}
    with torch.no_grad():
        tokens = torch.tensor(json.load(sys.stdin)["tokens"])
        logprobs = model(tokens).logits.log_softmax(-1)
    model.save_pretrained(resaved)
    print(json.dumps({"logprobs": logprobs.tolist(), "problems": problems}))


if __name__ == "__main__":
    main()
