"""Which tensors a model of a geometry consists of, by canonical name."""

from __future__ import annotations

from ignition.geometry import ModelGeometry


def tensor_shapes(geometry: ModelGeometry) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that the model must have, and of nothing more."""
    hidden, vocabulary = geometry.hidden_size, geometry.vocabulary_size
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocabulary, hidden), "norm": (hidden,)}
    if not geometry.tied_embeddings:
        shapes["head"] = (vocabulary, hidden)
    for layer in range(geometry.layer_count):
        for role, shape in _layer_shapes(geometry).items():
            shapes[f"layers.{layer}.{role}"] = shape
    return shapes


def _layer_shapes(geometry: ModelGeometry) -> dict[str, tuple[int, ...]]:
    hidden, ffn = geometry.hidden_size, geometry.ffn_size
    query, kv = geometry.query_heads * geometry.head_size, geometry.kv_width
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (query, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, query),
        "ffn_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    if geometry.attention_bias:
        shapes |= {"q_bias": (query,), "k_bias": (kv,), "v_bias": (kv,)}
    if geometry.qk_norm:
        shapes |= {"q_norm": (geometry.head_size,), "k_norm": (geometry.head_size,)}
    return shapes
