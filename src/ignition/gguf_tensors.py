"""Decodes the tensors of a GGUF file into float32 arrays or blocks of 32 codes."""

from __future__ import annotations

from typing import Final

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from ignition.checkpoint import BlockQuantized, Tensor
from ignition.checkpoint_errors import CheckpointError
from ignition.gguf_header import GgufFile, TensorEntry

BLOCK: Final = 32

_Kind = GGMLQuantizationType
_BLOCK_KINDS: Final = (_Kind.Q4_0, _Kind.Q4_1, _Kind.Q8_0)


def decode(file: GgufFile, entry: TensorEntry) -> Tensor:
    """Return a tensor with the values of the file exactly.

    Matrices of Q4_0, Q4_1 and Q8_0 stay quantised; everything else becomes float32.
    Raises CheckpointError for an encoding that cannot be decoded.
    """
    raw = file.tensor_bytes(entry)
    kind = entry.quantization
    if kind in _BLOCK_KINDS and len(entry.shape) == 2:
        return _decode_blocks(raw, entry.shape, kind)
    return decode_float32(file, entry)


def decode_float32(file: GgufFile, entry: TensorEntry) -> npt.NDArray[np.float32]:
    """Return a tensor as float32 in its shape. Raises CheckpointError."""
    raw = file.tensor_bytes(entry)
    kind = entry.quantization
    if kind == _Kind.F32:
        return raw.view("<f4").reshape(entry.shape).astype(np.float32)
    if kind == _Kind.F16:
        return raw.view("<f2").reshape(entry.shape).astype(np.float32)
    if kind == _Kind.BF16:
        return widen_bfloat16(raw.view("<u2")).reshape(entry.shape)

    try:
        values = gguf.quants.dequantize(raw.reshape(*entry.shape[:-1], -1), kind)
    except NotImplementedError as error:
        raise CheckpointError(
            file=file.name,
            field=f"tensor {entry.name} type",
            found=kind.name,
            expected="a type that can be decoded, such as F32, F16, BF16, Q4_1, Q8_0 or Q4_K",
        ) from error
    return np.ascontiguousarray(values, np.float32).reshape(entry.shape)


def widen_bfloat16(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return bfloat16 bit patterns as float32 values of the same shape."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _decode_blocks(
    raw: npt.NDArray[np.uint8], shape: tuple[int, ...], kind: GGMLQuantizationType
) -> BlockQuantized:
    """Split blocks of 32 into codes [N, K], scales [N, K/32] and minimums [N, K/32] or None."""
    rows, columns = shape
    blocks = raw.reshape(rows, columns // BLOCK, -1)
    scales = _halves(blocks[..., 0:2])

    if kind == _Kind.Q8_0:
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(rows, columns)
        return BlockQuantized(codes=codes, scales=scales, minimums=None)
    if kind == _Kind.Q4_0:
        nibbles = _nibbles(blocks[..., 2:], shape)
        return BlockQuantized(codes=nibbles, scales=scales, minimums=np.float32(-8) * scales)
    nibbles = _nibbles(blocks[..., 4:], shape)
    return BlockQuantized(codes=nibbles, scales=scales, minimums=_halves(blocks[..., 2:4]))


def _halves(pairs: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(pairs).view("<f2")[..., 0].astype(np.float32)


def _nibbles(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Low nibbles are elements 0..15 of a block, high nibbles are elements 16..31."""
    codes = np.empty((*packed.shape[:2], BLOCK), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., :16])
    np.right_shift(packed, 4, out=codes[..., 16:])
    return codes.reshape(shape)


def unpermute_rows(tensor: Tensor, heads: int) -> Tensor:
    """Return query or key rows in half-split rotary order.

    Files of architecture `llama` store each head's rows as pairs (0, half), (1, half + 1), ...
    Works on [N, K] matrices and [N] biases; N = heads * head_size.
    """
    if isinstance(tensor, BlockQuantized):
        order = _half_split_order(tensor.shape[0], heads)
        minimums = None if tensor.minimums is None else tensor.minimums[order]
        return BlockQuantized(
            codes=tensor.codes[order], scales=tensor.scales[order], minimums=minimums
        )
    return tensor[_half_split_order(tensor.shape[0], heads)]


def _half_split_order(rows: int, heads: int) -> npt.NDArray[np.intp]:
    half = rows // heads // 2
    return np.arange(rows).reshape(heads, half, 2).swapaxes(1, 2).reshape(rows)
