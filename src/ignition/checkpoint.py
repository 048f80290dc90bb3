"""Checkpoint: a model as read from disk, before anything is packed for a backend.

Tensor names are canonical, whatever file they came from:

    embed, norm, head (absent when tied), and per layer i
    layers.{i}.attn_norm, .q, .k, .v, .o, .ffn_norm, .gate, .up, .down
    layers.{i}.q_bias, .k_bias, .v_bias (attention_bias), .q_norm, .k_norm (qk_norm)

Projections are [out, in]; rows of q and k are in the half-split rotary order of Hugging Face.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ignition.geometry import ModelGeometry


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockQuantized:
    """A matrix in blocks of 32 along its input axis: value = scale * code + minimum."""

    codes: npt.NDArray[np.uint8] | npt.NDArray[np.int8]
    """[N, K]; uint8 0..15 for q4_0/q4_1, int8 for q8_0 (q4_0 has minimum = -8 * scale)."""
    scales: npt.NDArray[np.float32]
    """[N, K / 32]."""
    minimums: npt.NDArray[np.float32] | None
    """[N, K / 32], or None where every minimum is zero (q8_0)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return (self.codes.shape[0], self.codes.shape[1])

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the exact float32 values, [N, K]."""
        rows, columns = self.shape
        blocks = self.codes.reshape(rows, columns // 32, 32).astype(np.float32)
        blocks *= self.scales[..., None]
        if self.minimums is not None:
            blocks += self.minimums[..., None]
        return blocks.reshape(rows, columns)


Tensor = BlockQuantized | npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextAssets:
    """Tokenizer and template of a checkpoint."""

    tokenizer_json: str
    """Serialised tokenizer of the `tokenizers` library."""
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Geometry, tensors and text assets of one model."""

    name: str
    """Name to serve it under."""
    source: str
    """File or directory name (no path)."""
    sha256: str
    geometry: ModelGeometry
    tensors: Mapping[str, Tensor]
    text: TextAssets

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as float32, dequantised when needed. Raises KeyError."""
        tensor = self.tensors[name]
        return tensor.dequantize() if isinstance(tensor, BlockQuantized) else tensor
