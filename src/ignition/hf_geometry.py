"""Reads the geometry of a Llama-family model out of a Hugging Face config.json.

What cannot be reproduced exactly is refused by name; keys that the reference implementation of
the architecture does not read either are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ignition.geometry import ModelGeometry
from ignition.json_file import JsonFile

FAMILIES: Final = ("llama", "qwen2", "qwen3")

_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "hidden_act": (None, "silu"),
    "mlp_bias": (None, False),
    "use_sliding_window": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "quantization_config": (None,),
    "rope_interleaved": (None, False),
    # Biases of the attention output come with this flag, except in qwen2, which ignores it.
    "attention_bias": (None, False),
}
_LLAMA3_KEYS: Final = (
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "original_max_position_embeddings",
)


def read_geometry(config: JsonFile) -> ModelGeometry:
    """Return the geometry. Raises CheckpointError."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise config.error("model_type", repr(family), f"one of {', '.join(FAMILIES)}")
    _refuse_unsupported(config, family)

    hidden = config.integer("hidden_size", 2, 65_536)
    heads = config.integer("num_attention_heads", 1, 1024)
    kv_heads = config.integer("num_key_value_heads", 1, 1024, heads if family == "llama" else None)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", kv_heads, f"a divisor of {heads} query heads")
    theta, scaling = _rope(config)

    return ModelGeometry(
        family=family,
        layer_count=config.integer("num_hidden_layers", 1, 1024),
        hidden_size=hidden,
        query_heads=heads,
        kv_heads=kv_heads,
        head_size=_head_size(config, family, hidden, heads),
        ffn_size=config.integer("intermediate_size", 1, 1 << 20),
        vocabulary_size=config.integer("vocab_size", 1, 1 << 24),
        context_length_tokens=config.integer("max_position_embeddings", 1, 1 << 24),
        rms_epsilon=config.real("rms_norm_eps", 1.0, 1e-6),
        rope_theta=theta,
        tied_embeddings=config.flag("tie_word_embeddings") or False,
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        rope_scaling=scaling,
    )


def _refuse_unsupported(config: JsonFile, family: str) -> None:
    for key, neutral in _NEUTRAL.items():
        value = config.get(key)
        if value not in neutral and (key, family) != ("attention_bias", "qwen2"):
            expected = " or ".join(repr(item) for item in neutral if item is not None)
            raise config.error(key, repr(value), f"{expected or 'none'} (others are not supported)")
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list):
        for kind in layer_types:
            if kind != "full_attention":
                raise config.error("layer_types", repr(kind), "full_attention in every layer")


def _head_size(config: JsonFile, family: str, hidden: int, heads: int) -> int:
    default = None if family == "qwen3" else hidden // heads
    if config.get("head_dim") is None and hidden % heads:
        raise config.error("num_attention_heads", heads, f"a divisor of hidden_size {hidden}")
    size = config.integer("head_dim", 2, 1024, default)
    if size % 2:
        raise config.error("head_dim", size, "an even number")
    return size


def _rope(config: JsonFile) -> tuple[float, tuple[tuple[str, float], ...] | None]:
    """Return theta and the Llama 3 scaling; newer files keep both in `rope_parameters`."""
    field = "rope_scaling" if config.get("rope_parameters") is None else "rope_parameters"
    parameters = config.get(field)
    theta = config.real("rope_theta", 1e12, 10_000.0)
    if parameters is None:
        return theta, None
    if not isinstance(parameters, dict):
        raise config.error(field, repr(parameters), "an object")
    theta = _number(config, field, {"rope_theta": theta, **parameters}, "rope_theta")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise config.error(f"{field}.rope_type", repr(kind), "default or llama3")

    scaling = {key: _number(config, field, parameters, key) for key in _LLAMA3_KEYS}
    if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise config.error(
            f"{field}.high_freq_factor", scaling["high_freq_factor"], "more than low_freq_factor"
        )
    return theta, tuple(sorted(scaling.items()))


def _number(config: JsonFile, field: str, parameters: Mapping[str, object], key: str) -> float:
    value = parameters.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not is_number or not 0 < value < 1e30:
        raise config.error(f"{field}.{key}", repr(value), "a number above 0, below 1e30")
    return float(value)
