"""Tunix's sampler under benchmarks/sampler.py: FILE MODEL_DIRECTORY NUM_SESSIONS CONTEXT"""

import json
import pathlib
import sys
from collections.abc import Callable

import worker
from tunix.generate import sampler as sampler_lib
from tunix.models.qwen3 import model as model_lib
from tunix.models.qwen3 import params as params_lib

_NEVER = 2**30  # a token that no model samples, so nothing stops


class Ids:
    """A tokenizer for texts that are ids."""

    def encode(self, text: str, **_) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int], **_) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        return 0  # none

    def pad_id(self) -> int:
        return 0

    def eos_id(self) -> int:
        return _NEVER


def make(directory: str, context: int) -> Callable[[worker.Workload], int]:
    facts = json.loads(pathlib.Path(directory, "config.json").read_text())
    num_experts = facts.get("num_experts")
    shape = model_lib.ModelConfig(
        num_layers=facts["num_hidden_layers"],
        vocab_size=facts["vocab_size"],
        embed_dim=facts["hidden_size"],
        hidden_dim=facts["moe_intermediate_size" if num_experts else "intermediate_size"],
        num_heads=facts["num_attention_heads"],
        head_dim=facts["head_dim"],
        num_kv_heads=facts["num_key_value_heads"],
        rope_theta=facts["rope_theta"],
        norm_eps=facts["rms_norm_eps"],
        use_tied_embedding=facts["tie_word_embeddings"],
        num_experts=num_experts,
        num_experts_per_tok=facts.get("num_experts_per_tok"),
    )
    sampler = sampler_lib.Sampler(
        params_lib.create_model_from_safe_tensors(directory, shape),
        Ids(),
        sampler_lib.CacheConfig(
            cache_size=context,
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
        ),
    )
    return lambda workload: play(sampler, workload)


def play(sampler: sampler_lib.Sampler, workload: worker.Workload) -> int:
    def generate(contexts: list[list[int]], num_new: int) -> list[list[int]]:
        answer = sampler(
            [" ".join(map(str, context)) for context in contexts],
            max_generation_steps=num_new,
            max_prompt_length=max(map(len, contexts)),
            temperature=1.0,
            top_p=1.0,
            seed=workload.seed,
            return_logprobs=True,
        )
        return [list(map(int, tokens)) for tokens in answer.tokens]

    return worker.play_in_batches(workload, generate)


if __name__ == "__main__":
    worker.serve(lambda: make(sys.argv[1], int(sys.argv[3])))
