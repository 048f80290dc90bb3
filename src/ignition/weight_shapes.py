"""The canonical dense tensors of a geometry and their shapes."""

from __future__ import annotations

from ignition.geometry import ModelGeometry


def dense_shapes(geometry: ModelGeometry) -> dict[str, tuple[int, ...]]:
    """Return canonical tensor name -> shape; projections are [out, in]."""
    table = (geometry.vocabulary_size, geometry.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"embed": table, "norm": (geometry.hidden_size,)}
    if not geometry.tied_embeddings:
        shapes["head"] = table
    for layer in range(geometry.layer_count):
        for name, shape in _layer_shapes(geometry).items():
            shapes[f"layers.{layer}.{name}"] = shape
    return shapes


def _layer_shapes(geometry: ModelGeometry) -> dict[str, tuple[int, ...]]:
    hidden, ffn = geometry.hidden_size, geometry.ffn_size
    queries, keys = geometry.query_heads * geometry.head_size, geometry.kv_width
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "ffn_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    if geometry.attention_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if geometry.qk_norm:
        shapes |= {"q_norm": (geometry.head_size,), "k_norm": (geometry.head_size,)}
    return shapes
