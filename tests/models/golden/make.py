"""Makes two small checkpoints with transformers, and the log-probs that it computes with them.

    python tests/models/golden/make.py

Needs transformers and torch. The outputs are committed, so the tests need nothing but them.
"""

import pathlib

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).parent
SHAPE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    "eos_token_id": [3, 4],
}
MOE = {
    "moe_intermediate_size": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}


def main() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, 20))
    dense = transformers.Qwen3Config(**SHAPE, tie_word_embeddings=True)
    make("qwen3", transformers.Qwen3ForCausalLM(dense), tokens, shard="1GB")
    moe = transformers.Qwen3MoeConfig(**SHAPE, **MOE, tie_word_embeddings=False)
    make("qwen3_moe", transformers.Qwen3MoeForCausalLM(moe), tokens, shard="8KB")


def make(name: str, model: torch.nn.Module, tokens: torch.Tensor, *, shard: str) -> None:
    """Weights in bfloat16 on disk; log-probs in float32 of the weights as they are on disk."""
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if path.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.4)
    model.to(torch.bfloat16).save_pretrained(HERE / name, max_shard_size=shard)
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(tokens).logits.log_softmax(-1)
    safetensors.torch.save_file(
        {"tokens": tokens.to(torch.int32), "logprobs": logprobs},
        HERE / name / "expected.safetensors",
    )


if __name__ == "__main__":
    main()
