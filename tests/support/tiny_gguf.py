"""Small GGUF files with random weights, written by the `gguf` package."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt

CONTROL_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "Ġ w", "Ċ Ċ")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokens() -> list[str]:
    """The 256 characters that stand for bytes, in byte order."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return list(bytes_to_unicode().values())


def vocabulary() -> list[str]:
    """Control tokens, bytes, and the results of the merges."""
    merged = [rule.replace(" ", "") for rule in MERGES]
    return [*CONTROL_NAMES, *byte_tokens(), *merged, "<tool_call>"]


@dataclasses.dataclass(kw_only=True)
class TinyGguf:
    """What to write; change fields or metadata before `write`."""

    family: str = "llama"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    ffn: int = 96
    context: int = 128
    pre: str = "smollm"
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further or other metadata: None leaves a key out."""
    tensors: dict[str, npt.NDArray[np.float32] | None] = dataclasses.field(default_factory=dict)
    """Other tensors: None leaves one out."""

    def random_tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        source = np.random.default_rng(7)
        return {
            name: source.normal(0, 0.1, shape).astype(np.float32)
            for name, shape in self._shapes().items()
        }

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        query, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (len(vocabulary()), self.hidden),
            "output_norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            block = f"blk.{layer}"
            shapes |= {
                f"{block}.attn_norm.weight": (self.hidden,),
                f"{block}.ffn_norm.weight": (self.hidden,),
                f"{block}.attn_q.weight": (query, self.hidden),
                f"{block}.attn_k.weight": (kv, self.hidden),
                f"{block}.attn_v.weight": (kv, self.hidden),
                f"{block}.attn_output.weight": (self.hidden, query),
                f"{block}.ffn_gate.weight": (self.ffn, self.hidden),
                f"{block}.ffn_up.weight": (self.ffn, self.hidden),
                f"{block}.ffn_down.weight": (self.hidden, self.ffn),
            }
            if self.family == "qwen2":
                shapes |= {f"{block}.attn_{role}.bias": (kv,) for role in "kv"}
                shapes[f"{block}.attn_q.bias"] = (query,)
            if self.family == "qwen3":
                shapes |= {f"{block}.attn_{role}_norm.weight": (self.head_size,) for role in "qk"}
        return shapes

    def _metadata(self) -> dict[str, Any]:
        tokens = vocabulary()
        types = [3] * len(CONTROL_NAMES) + [1] * (len(tokens) - len(CONTROL_NAMES) - 1) + [4]
        family = self.family
        fields = {
            f"{family}.block_count": self.layers,
            f"{family}.context_length": self.context,
            f"{family}.embedding_length": self.hidden,
            f"{family}.feed_forward_length": self.ffn,
            f"{family}.attention.head_count": self.heads,
            f"{family}.attention.head_count_kv": self.kv_heads,
            f"{family}.attention.key_length": self.head_size,
            f"{family}.attention.value_length": self.head_size,
            f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{family}.rope.freq_base": 10_000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": self.pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": list(MERGES),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": CHAT_TEMPLATE,
        }
        return {**fields, **self.metadata}

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.family)
        for key, value in self._metadata().items():
            _add(writer, key, value)
        for name, tensor in {**self.random_tensors(), **self.tensors}.items():
            if tensor is not None:
                kind = self.kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
                writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
