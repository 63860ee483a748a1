"""GGUF files of llama.cpp, under the names of a Hugging Face checkpoint. No jax.

One file holds the weights, quantized or not, the tokenizer (gguf_tokenizer.py) and facts of the
model. Tensors are dequantized one by one, to float32, by the package `gguf`.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from jaxrl_single.models import gguf_header

# Their architecture -> model_type of config.json.
FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
_FIELDS = {  # of config.json -> their key behind the architecture's name
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "moe_intermediate_size": "expert_feed_forward_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_ALWAYS = {  # what their code computes and no key says
    "qwen3_moe": {"norm_topk_prob": True},
}
_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {  # of a layer
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {  # one tensor for all of them
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TURNED = re.compile(r"blk\.\d+\.attn_(q|k)\.")
_FREQUENCIES = "rope_freqs.weight"
_THETA = 10_000.0  # where a file does not say
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_LENGTH = 8192  # tokens of pretraining, the same for all releases so far


class File:
    """A file whose metadata are in memory, its tensors are not.

    Attributes:
      path: of the file.
      model_type: of its family, as config.json has it.
    """

    def __init__(self, path: str | os.PathLike):
        """Reads the metadata.

        Raises:
          ValueError: the file is torn, is one of several, or of a family that our models do not
            compute.
          OSError: it cannot be read.
        """
        self.path = pathlib.Path(path)
        self._header = gguf_header.read(self.path)
        self._architecture = str(self.value("general.architecture"))
        if self._architecture not in FAMILIES:
            raise ValueError(
                f"{self.path}: the architecture is {self._architecture!r}; "
                f"this package reads {sorted(FAMILIES)} from GGUF"
            )
        if self.value("split.count", 0) > 1:
            raise ValueError(
                f"{self.path} is one of several files; join them with llama-gguf-split --merge"
            )
        self.model_type = FAMILIES[self._architecture]
        self._places = dict(self._named())

    def value(self, key: str, default: Any = None) -> Any:
        """Of the metadata: a number, a text, or a list of either; `default` where there is none."""
        return self._header.values.get(key, default)

    def config(self) -> dict[str, Any]:
        """What config.json says of such a model, but for the tokens that end a text.

        Raises:
          ValueError: a way of stretching rotary positions that is not known.
        """
        keys = {name: f"{self._architecture}.{key}" for name, key in _FIELDS.items()}
        found = {name: self.value(key) for name, key in keys.items()}
        embedding = self.shape(_ENDS["token_embd.weight"])
        theta = found["rope_theta"] or _THETA
        facts = {
            **found,
            **_ALWAYS.get(self.model_type, {}),
            "model_type": self.model_type,
            "vocab_size": embedding[0],
            "head_dim": self._head_size(),
            # llama.cpp leaves an unembedding out that is the embedding.
            "tie_word_embeddings": _ENDS["output.weight"] not in self._places,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._places,
            "rope_theta": theta,
            "rope_scaling": self._scaling(theta),
            "dtype": "float32",
        }
        return {name: value for name, value in facts.items() if value is not None}

    def names(self) -> set[str]:
        """Of all tensors, as a checkpoint has them; one without a counterpart keeps its own."""
        return set(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, as a checkpoint has it.

        Raises:
          ValueError: there is no such tensor.
        """
        if name not in self._places:
            raise ValueError(f"{self.path}: the tensor {name} is missing")
        tensor, expert = self._places[name]
        return self._shape_of(tensor, expert)

    def read(
        self, name: str, shape: tuple[int, ...], index: tuple[Any, ...] = (...,)
    ) -> np.ndarray:
        """A part of a tensor, float32; the whole of it is dequantized.

        Raises:
          ValueError: it has another shape, is quantized in a way that the package gguf does not
            know, or that package is missing.
          OSError: the file cannot be read.
        """
        tensor, expert = self._places[name]
        if self.shape(name) != shape:
            raise ValueError(
                f"{self.path}: {name} has shape {list(self.shape(name))}, "
                f"the metadata ask for {list(shape)}"
            )
        array = self._numbers(tensor, expert)
        if self._architecture == "llama" and (found := _TURNED.match(tensor.name)):
            heads = "head_count" if found[1] == "q" else "head_count_kv"
            array = _in_halves(array, self.value(f"llama.attention.{heads}"))
        return array[index]

    @staticmethod
    def _shape_of(tensor: gguf_header.Tensor, expert: int | None) -> tuple[int, ...]:
        return tensor.shape if expert is None else tensor.shape[1:]

    def _named(self) -> Iterator[tuple[str, tuple[gguf_header.Tensor, int | None]]]:
        """(name in a checkpoint, (their tensor, number of the expert or None))."""
        for tensor in self._header.tensors:
            in_layer = _IN_LAYER.fullmatch(tensor.name)
            if tensor.name == _FREQUENCIES:
                continue
            if in_layer is None or in_layer[2] not in _PARTS | _EXPERTS:
                yield _ENDS.get(tensor.name, tensor.name), (tensor, None)
                continue
            layer, part, kind = in_layer.groups()
            if part in _PARTS:
                yield f"model.layers.{layer}.{_PARTS[part]}.{kind}", (tensor, None)
                continue
            for expert in range(tensor.shape[0]):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{_EXPERTS[part]}.{kind}"
                yield name, (tensor, expert)

    def _numbers(self, tensor: gguf_header.Tensor, expert: int | None) -> np.ndarray:
        """A tensor, or that of one expert, float32."""
        package = _package(self.path)
        shape, offset = self._shape_of(tensor, expert), tensor.offset
        try:
            kind = package.GGMLQuantizationType(tensor.kind)
            per_block, block_bytes = package.GGML_QUANT_SIZES[kind]
            stored = (*shape[:-1], shape[-1] // per_block * block_bytes)
            offset += (expert or 0) * math.prod(stored)
            # Not through a map of the file: its pages would count as memory of this process.
            data = np.fromfile(self.path, np.uint8, math.prod(stored), offset=offset)
            return package.dequantize(data.reshape(stored), kind)
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"{self.path}: {tensor.name}: {error}") from error

    def _head_size(self) -> int | None:
        names = ("attention.key_length", "embedding_length", "attention.head_count")
        size, width, heads = (self.value(f"{self._architecture}.{name}") for name in names)
        return size if size or not (width and heads) else width // heads

    def _scaling(self, theta: float) -> dict[str, Any] | None:
        """The object rope_scaling of config.json."""
        prefix = f"{self._architecture}.rope.scaling"
        stretched = [one for one in self._header.tensors if one.name == _FREQUENCIES]
        if stretched:
            return self._llama3_scaling(theta, self._numbers(stretched[0], None))
        kind = self.value(f"{prefix}.type", "none")
        if kind == "none":
            return None
        keys = {
            "factor": "factor",
            "original_max_position_embeddings": "original_context_length",
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
        }
        values = {name: self.value(f"{prefix}.{key}") for name, key in keys.items()}
        if self.value(f"{prefix}.attn_factor", 1.0) != 1.0:
            raise ValueError(f"{self.path}: {prefix}.attn_factor is not 1, which is not known here")
        return {"rope_type": kind} | {k: v for k, v in values.items() if v is not None}

    def _llama3_scaling(self, theta: float, stored: np.ndarray) -> dict[str, Any]:
        """llama.cpp keeps a factor for each frequency, and not what they were computed from."""
        factor = float(stored.max())
        frequencies = theta ** (-np.arange(stored.size) / stored.size)
        turns = _LLAMA3_LENGTH * frequencies / (2 * math.pi)
        low, high = _LLAMA3.values()
        kept = np.clip((turns - low) / (high - low), 0, 1)
        if not np.allclose(stored, 1 / (kept + (1 - kept) / factor), rtol=1e-4):
            raise ValueError(
                f"{self.path}: {_FREQUENCIES} is not what Llama 3 has; take the checkpoint in "
                "Hugging Face layout"
            )
        return {
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": _LLAMA3_LENGTH,
            **_LLAMA3,
        }


def _in_halves(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q and k in our order: pair i of a head is rows i and i + H/2.

    llama.cpp turns rows 2i and 2i + 1 of a `llama` together, and has them stored so.
    """
    split = array.reshape(num_heads, -1, 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def _package(path: pathlib.Path) -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise ValueError(
            f"{path}: reading GGUF needs the package gguf ({error}); "
            'install it with: pip install "jaxrl_single[gguf]"'
        ) from error
    return gguf
