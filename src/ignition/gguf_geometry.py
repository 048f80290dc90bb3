"""Reads the geometry of a Llama-family model out of GGUF metadata.

Every hyperparameter of the architecture is either used, checked to be neutral, or refused by
name: a value that is silently ignored would change the model's output.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ignition.checkpoint_errors import CheckpointError
from ignition.geometry import ModelGeometry
from ignition.gguf_header import GgufFile, Value
from ignition.rope import llama3_frequency_factors

FAMILIES: Final = ("llama", "qwen2", "qwen3")

_USED: Final = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "vocab_size",
)
_NEUTRAL: Final[dict[str, tuple[Value, ...]]] = {
    # Hyperparameters that change nothing at these values.
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "tensor_data_layout": ("", "Meta AI original pth"),
    "pooling_type": (0,),
}
_LLAMA3_ORIGINAL_CONTEXTS: Final = (8192, 4096, 16_384, 32_768, 131_072)


class Metadata:
    """Typed access to the metadata of one file; every failure is a CheckpointError."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file.name
        self.fields = file.fields

    def error(self, key: str, found: object, expected: str) -> CheckpointError:
        """Return the error for a metadata key."""
        return CheckpointError(
            file=self.file, field=f"metadata {key}", found=found, expected=expected
        )

    def integer(self, key: str, smallest: int, largest: int, default: int | None = None) -> int:
        """Return an integer within limits; absent keys take the default, if there is one."""
        value = self.fields.get(key, default)
        expected = f"an integer from {smallest} to {largest}"
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            # Some converters write one value per layer; equal ones are the same as a scalar.
            value = value[0].item()
        if value is None:
            raise self.error(key, "nothing", expected)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, _describe(value), expected)
        if not smallest <= value <= largest:
            raise self.error(key, value, expected)
        return value

    def real(self, key: str, largest: float, default: float | None = None) -> float:
        """Return a number in (0, largest]."""
        value = self.fields.get(key, default)
        expected = f"a number above 0, at most {largest:g}"
        if value is None:
            raise self.error(key, "nothing", expected)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, _describe(value), expected)
        if not math.isfinite(value) or not 0 < value <= largest:
            raise self.error(key, value, expected)
        return float(value)

    def text(self, key: str) -> str | None:
        """Return a string, or None where the key is absent."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, _describe(value), "a string")
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean, or None where the key is absent."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, _describe(value), "a boolean")
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self.fields.get(key)
        if not isinstance(value, list):
            raise self.error(key, _describe(value), "a list of strings")
        return value

    def numbers(self, key: str, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """Return a numeric array of a length."""
        value = self.fields.get(key)
        if not isinstance(value, np.ndarray) or value.size != count:
            raise self.error(key, _describe(value), f"{count} numbers")
        return value


def _describe(value: Value | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | np.ndarray):
        return f"a list of {len(value)}"
    return repr(value)


def read_geometry(
    file: GgufFile, frequency_factors: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None
) -> ModelGeometry:
    """Return the geometry; `frequency_factors` is the file's `rope_freqs` tensor, if it has one.

    Raises CheckpointError for an unknown architecture or a hyperparameter that is missing, out
    of range or not supported.
    """
    metadata = Metadata(file)
    family = metadata.text("general.architecture")
    if family not in FAMILIES:
        raise metadata.error("general.architecture", family, f"one of {', '.join(FAMILIES)}")
    _refuse_unsupported(metadata, family)

    hidden = metadata.integer(f"{family}.embedding_length", 32, 65_536)
    heads = metadata.integer(f"{family}.attention.head_count", 1, 1024)
    kv_heads = metadata.integer(f"{family}.attention.head_count_kv", 1, 1024, heads)
    if heads % kv_heads:
        raise metadata.error(
            f"{family}.attention.head_count_kv", kv_heads, f"a divisor of {heads} query heads"
        )
    head_size = _head_size(metadata, family, hidden, heads)
    context = metadata.integer(f"{family}.context_length", 1, 1 << 24)
    theta = metadata.real(f"{family}.rope.freq_base", 1e12, 10_000.0)
    has_q_bias = "blk.0.attn_q.bias" in file.tensors

    return ModelGeometry(
        family=family,
        layer_count=metadata.integer(f"{family}.block_count", 1, 1024),
        hidden_size=hidden,
        query_heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn_size=metadata.integer(f"{family}.feed_forward_length", 1, 1 << 20),
        vocabulary_size=_vocabulary_size(metadata, family),
        context_length_tokens=context,
        rms_epsilon=metadata.real(f"{family}.attention.layer_norm_rms_epsilon", 1.0),
        rope_theta=theta,
        tied_embeddings="output.weight" not in file.tensors,
        attention_bias=has_q_bias,
        qk_norm=family == "qwen3",
        rope_scaling=_rope_scaling(file.name, frequency_factors, theta, head_size),
    )


def _refuse_unsupported(metadata: Metadata, family: str) -> None:
    prefix = f"{family}."
    for key, value in metadata.fields.items():
        name = key.removeprefix(prefix)
        if name == key or name in _USED:
            continue
        if name not in _NEUTRAL:
            raise metadata.error(key, _describe(value), "no such hyperparameter (not supported)")
        if not isinstance(value, bool | int | float | str) or value not in _NEUTRAL[name]:
            neutral = " or ".join(repr(item) for item in _NEUTRAL[name])
            raise metadata.error(key, _describe(value), f"{neutral} (others are not supported)")
    if metadata.fields.get("split.count", 1) not in (0, 1):
        raise metadata.error("split.count", metadata.fields["split.count"], "one file")


def _head_size(metadata: Metadata, family: str, hidden: int, heads: int) -> int:
    key = f"{family}.attention.key_length"
    if key not in metadata.fields and hidden % heads:
        raise metadata.error(
            f"{family}.attention.head_count", heads, f"a divisor of the {hidden} hidden elements"
        )
    size = metadata.integer(key, 2, 1024, hidden // heads)
    if size % 2:
        raise metadata.error(key, size, "an even head size")
    for name in ("attention.value_length", "rope.dimension_count"):
        other = metadata.integer(f"{family}.{name}", 1, 65_536, size)
        if other != size:
            raise metadata.error(f"{family}.{name}", other, f"the head size {size}")
    return size


def _vocabulary_size(metadata: Metadata, family: str) -> int:
    size = len(metadata.strings("tokenizer.ggml.tokens"))
    if size == 0:
        raise metadata.error("tokenizer.ggml.tokens", "an empty list", "a vocabulary")
    declared = metadata.integer(f"{family}.vocab_size", 1, 1 << 24, size)
    if declared != size:
        raise metadata.error(f"{family}.vocab_size", declared, f"the {size} tokens listed")
    return size


def _rope_scaling(
    file: str,
    factors: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None,
    theta: float,
    head_size: int,
) -> tuple[tuple[str, float], ...] | None:
    """Recover the Llama 3 parameters that produce the stored frequency factors."""
    if factors is None:
        return None
    factor = float(factors.max())
    for original in _LLAMA3_ORIGINAL_CONTEXTS:
        parameters = {
            "factor": factor,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": float(original),
        }
        expected = llama3_frequency_factors(parameters, theta=theta, head_size=head_size)
        if expected.shape == factors.shape and np.allclose(expected, factors, rtol=1e-5, atol=0):
            return tuple(sorted(parameters.items()))

    raise CheckpointError(
        file=file,
        field="tensor rope_freqs.weight",
        found=f"factors from {float(factors.min()):g} to {factor:g}",
        expected="Llama 3 frequency factors (low 1, high 4)",
    )
