"""The tensors of a draft head: which there are, and how large.

A head is one decoder layer of the target's own sizes behind a joint of two vectors: the target's
hidden row of the position before, and the embedding of the token at the position. Embedding, final
norm and output head are the target's; of the last only the rows of `draft_token_ids` are used.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from ignition.geometry import ModelGeometry
from ignition.weight_shapes import dense_shapes

LAYER: Final = "layers.0."
JOIN: Final = "join"
"""[hidden, 2 * hidden]: the joint; its inputs are the normed hidden row, then the embedding."""
HIDDEN_NORM: Final = "hidden_norm"
TOKEN_NORM: Final = "token_norm"


def layer_geometry(target: ModelGeometry, draft_tokens: int) -> ModelGeometry:
    """Return the geometry of the head as a decoder of its own: one layer, its own small head.

    Biases and norms of query and key heads, which some families have, are left out: a head is
    trained from scratch and has no need of them.
    """
    return dataclasses.replace(
        target,
        layer_count=1,
        vocabulary_size=draft_tokens,
        tied_embeddings=False,
        attention_bias=False,
        qk_norm=False,
    )


def parameter_shapes(target: ModelGeometry) -> dict[str, tuple[int, ...]]:
    """Return the shape of every trained tensor."""
    hidden = target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        JOIN: (hidden, 2 * hidden),
        HIDDEN_NORM: (hidden,),
        TOKEN_NORM: (hidden,),
    }
    layer = dense_shapes(layer_geometry(target, 1))
    return shapes | {name: shape for name, shape in layer.items() if name.startswith(LAYER)}
