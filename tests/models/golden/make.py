"""Makes small checkpoints with transformers, and the log-probs that it computes with them.

    python tests/models/golden/make.py

Needs transformers and torch. The outputs are committed, so the tests need nothing but them.
"""

import json
import pathlib

import safetensors.torch
import torch
import transformers
from transformers.models.glm4_moe import modeling_glm4_moe

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


STRETCHED = {
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
}
GLM = {
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
    "use_qk_norm": True,
    "head_dim": 8,
}
# Kinds of rotary positions, and a length of sequence for the one that depends on it.
ROPES = [
    ("default", {}, None),
    ("linear", {"factor": 3.0}, None),
    ("dynamic", {"factor": 2.5}, 100),
    ("dynamic", {"factor": 2.5}, 1000),
    ("llama3", STRETCHED["llama3"] | {"original_max_position_embeddings": 32}, None),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 32}, None),
    (
        "yarn",
        {
            "factor": 40.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16,
            "beta_slow": 2,
            "attention_factor": 1.25,
            "truncate": False,
        },
        None,
    ),
]


def main() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, 20))
    dense = transformers.Qwen3Config(**SHAPE, tie_word_embeddings=True)
    make("qwen3", transformers.Qwen3ForCausalLM(dense), tokens, shard="1GB")
    moe = transformers.Qwen3MoeConfig(**SHAPE, **MOE, tie_word_embeddings=False)
    make("qwen3_moe", transformers.Qwen3MoeForCausalLM(moe), tokens, shard="8KB")
    llama = transformers.LlamaConfig(**with_rope("llama3"), tie_word_embeddings=False)
    make("llama", transformers.LlamaForCausalLM(llama), tokens, shard="1GB")
    shape = with_rope("yarn")
    del shape["head_dim"]
    qwen2 = transformers.Qwen2Config(**shape, tie_word_embeddings=True)
    make("qwen2", transformers.Qwen2ForCausalLM(qwen2), tokens, shard="1GB")
    glm = transformers.Glm4MoeConfig(**SHAPE | GLM, tie_word_embeddings=False)
    make("glm4_moe", transformers.Glm4MoeForCausalLM(glm), tokens, shard="1GB")
    make_ropes()


def with_rope(kind: str) -> dict:
    rope = SHAPE["rope_parameters"] | {"rope_type": kind} | STRETCHED[kind]
    return SHAPE | {"rope_parameters": rope}


def make_ropes() -> None:
    """Frequencies of each of ROPES, for heads of 32 of which 0.75 turn, and theta 5000."""
    made = []
    for kind, parameters, length in ROPES:
        rope = {"rope_type": kind, "rope_theta": 5000.0, "partial_rotary_factor": 0.75} | parameters
        shape = SHAPE | {"head_dim": 32, "rope_parameters": rope}
        config = transformers.Glm4MoeConfig(**shape)
        if kind == "default":
            module = modeling_glm4_moe.Glm4MoeRotaryEmbedding
            frequencies, factor = module.compute_default_rope_parameters(config, "cpu")
        else:
            function = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
            frequencies, factor = function(config, "cpu", seq_len=length)
        made.append(
            {
                "rope_parameters": config.rope_parameters,
                "length": length,
                "frequencies": frequencies.tolist(),
                "attention_factor": float(factor),
            }
        )
    (HERE / "ropes.json").write_text(json.dumps(made, indent=1) + "\n")


def make(name: str, model: torch.nn.Module, tokens: torch.Tensor, *, shard: str) -> None:
    """Weights in bfloat16 on disk; log-probs in float32 of the weights as they are on disk."""
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if path.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.4)
        model.to(torch.bfloat16)
        for path, bias in model.named_buffers():
            if path.endswith("e_score_correction_bias"):  # float32 in what is published
                bias.data = torch.rand(bias.shape) - 0.5
    model.save_pretrained(HERE / name, max_shard_size=shard)
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(tokens).logits.log_softmax(-1)
    safetensors.torch.save_file(
        {"tokens": tokens.to(torch.int32), "logprobs": logprobs},
        HERE / name / "expected.safetensors",
    )


if __name__ == "__main__":
    main()
