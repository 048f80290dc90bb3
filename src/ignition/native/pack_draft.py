"""Pack a draft head for the C kernels, beside its target's arrays and in the same layout.

Names start with `draft.`. The joint becomes two matrices, one for each of its inputs, so that no
product is wider than the target's; the head is the target's own rows in the target's own blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ignition.checkpoint import BlockQuantized, Checkpoint, Tensor
from ignition.draft.file import DraftHead
from ignition.draft.shapes import HIDDEN_NORM, JOIN, LAYER, TOKEN_NORM
from ignition.native.pack import MATRICES, Array, put_matrix

PREFIX: Final = "draft."
TOKEN_IDS: Final = PREFIX + "token_ids"
LAYER_VECTORS: Final = ("attn_norm", "ffn_norm")


def pack_draft(
    checkpoint: Checkpoint, head: DraftHead, precision: Literal["int8", "fp32"]
) -> dict[str, Array]:
    """Return the packed arrays of a head of this target. Raises PackError."""
    hidden = checkpoint.geometry.hidden_size
    packed: dict[str, Array] = {TOKEN_IDS: np.ascontiguousarray(head.token_ids, np.int32)}
    join = head.parameters[JOIN]
    put_matrix(packed, PREFIX + "join_hidden", join[:, :hidden], precision)
    put_matrix(packed, PREFIX + "join_token", join[:, hidden:], precision)
    for part in MATRICES:
        put_matrix(packed, PREFIX + part, head.parameters[LAYER + part], precision)
    for part in LAYER_VECTORS:
        packed[PREFIX + part] = np.ascontiguousarray(head.parameters[LAYER + part])
    for part in (HIDDEN_NORM, TOKEN_NORM):
        packed[PREFIX + part] = np.ascontiguousarray(head.parameters[part])
    output = checkpoint.tensors["embed" if checkpoint.geometry.tied_embeddings else "head"]
    put_matrix(packed, PREFIX + "head", _rows(output, head.token_ids), precision)
    return packed


def _rows(tensor: Tensor, ids: npt.NDArray[np.int32]) -> Tensor:
    """Return some rows of a matrix, padded to whole panels."""
    padding = -len(ids) % 8
    if not isinstance(tensor, BlockQuantized):
        return np.pad(tensor[ids], ((0, padding), (0, 0)))
    # Any row will do where the head has none: no token id belongs to it.
    chosen = np.concatenate([ids, np.zeros(padding, np.int32)])
    minimums = tensor.minimums
    return dataclasses.replace(
        tensor,
        codes=tensor.codes[chosen],
        scales=tensor.scales[chosen],
        minimums=None if minimums is None else minimums[chosen],
    )
