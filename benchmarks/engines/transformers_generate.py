"""transformers' generate under benchmarks/sampler.py: FILE MODEL_DIRECTORY NUM_SESSIONS CONTEXT

Batches of equal lengths, so that nothing is padded. Between turns the cache is kept.
"""

import os
import sys
from collections.abc import Callable

import torch
import transformers
import worker


def make(directory: str) -> Callable[[worker.Workload], int]:
    torch.set_num_threads(os.cpu_count())
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return lambda workload: play(model.eval(), workload)


def play(model, workload: worker.Workload) -> int:
    torch.manual_seed(workload.seed)
    cache = None

    def generate(contexts: list[list[int]], num_new: int) -> list[list[int]]:
        nonlocal cache
        ids = torch.tensor(contexts)
        answer = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=num_new,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
        cache = answer.past_key_values
        return answer.sequences[:, ids.shape[1] :].tolist()

    return worker.play_in_batches(workload, generate)


if __name__ == "__main__":
    worker.serve(lambda: make(sys.argv[1]))
