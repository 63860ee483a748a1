"""GGUF files as llama.cpp's converter writes them, from parameters of ours."""

import re

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from jaxrl_single.models import hf

_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)")


def _plain_text(writer):
    add_text(writer, ["<a>", "<b>"])


def write(
    path,
    architecture,
    shape,
    params,
    *,
    change=lambda writer: None,
    text=_plain_text,
    kind=None,
    context_length=256,
):
    """A file of a model.

    Args:
      change: adds what else the file has.
      text: adds the vocabulary.
      kind: gguf.GGMLQuantizationType of the matrices; None = float32.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context_length)
    writer.add_embedding_length(shape.d_model)
    writer.add_block_count(shape.num_layers)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_feed_forward_length(shape.d_ff)
    if shape.num_experts:
        writer.add_expert_feed_forward_length(shape.d_ff)
        writer.add_expert_count(shape.num_experts)
        writer.add_expert_used_count(shape.experts_per_token)
    text(writer)
    change(writer)
    for name, array in tensors(architecture, shape, params).items():
        if kind is not None and array.ndim > 1:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(architecture, shape, params) -> dict[str, np.ndarray]:
    """Their names -> arrays."""
    found, experts = {}, {}
    for name, array in hf.tensors(shape, params):
        if match := _EXPERT.fullmatch(name):
            layer, expert, part = match.groups()
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(expert)] = array
        elif match := _LAYER.fullmatch(name):
            layer, part, end = match.groups()
            if architecture == "llama" and part.endswith(("q_proj", "k_proj")):
                heads = shape.num_heads if "q_" in part else shape.num_kv_heads
                halves = array.reshape(heads, 2, -1, *array.shape[1:])
                array = halves.swapaxes(1, 2).reshape(array.shape)
            found[f"blk.{layer}.{_PARTS[part]}.{end}"] = array
        else:
            found[_ENDS[name]] = array
    for name, of_experts in experts.items():
        found[name] = np.stack([of_experts[number] for number in range(len(of_experts))])
    return found


def add_text(writer, special, *, merges=("a b",), pre="gpt-2", extra=(), kinds=()) -> list[str]:
    """A vocabulary of special tokens, all bytes, the results of merges, and extra tokens."""
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [merge.replace(" ", "") for merge in merges]
    all_kinds = [gguf.TokenType.CONTROL] * len(special)
    all_kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(special)) + list(kinds)
    tokens += extra
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(all_kinds)
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    return tokens
