"""Pack a checkpoint into the byte layout that the C kernels read (panel.h).

Every array of the result can be stored with safetensors and used in place when mapped from disk.
Matrices are named `<tensor>.<kind>` with kind q4, q8 or f32, shape [panels, bytes] of uint8;
vectors keep their names and are float32. A tied head is not stored twice.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ignition.checkpoint import BlockQuantized, Checkpoint, Tensor

BLOCK: Final = 32
LANES: Final = 8
MATRICES: Final = ("q", "k", "v", "o", "gate", "up", "down")
VECTORS: Final = ("attn_norm", "ffn_norm", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm")

MatrixKind = Literal["q4", "q8", "f32"]
Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


class PackError(Exception):
    """A checkpoint tensor cannot be packed; the message names it."""


def pack(checkpoint: Checkpoint, precision: Literal["int8", "fp32"]) -> dict[str, Array]:
    """Return the packed arrays of a checkpoint. Raises PackError, naming the tensor."""
    geometry = checkpoint.geometry
    packed: dict[str, Array] = {}
    for name in ("embed",) if geometry.tied_embeddings else ("embed", "head"):
        put_matrix(packed, name, _tensor(checkpoint, name), precision)
    packed["norm"] = _vector(checkpoint, "norm")
    for layer in range(geometry.layer_count):
        for part in MATRICES:
            name = f"layers.{layer}.{part}"
            put_matrix(packed, name, _tensor(checkpoint, name), precision)
        for part in VECTORS:
            name = f"layers.{layer}.{part}"
            if name in checkpoint.tensors:
                packed[name] = _vector(checkpoint, name)
    return packed


def quantize_q8_0(weights: F32) -> BlockQuantized:
    """Quantise [N, K] floats to int8 with one half-precision scale per 32 inputs."""
    rows, columns = weights.shape
    blocks = weights.reshape(rows, columns // BLOCK, BLOCK)
    scales = (np.abs(blocks).max(axis=-1) / np.float32(127)).astype(np.float16)
    steps = scales.astype(np.float32)
    inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0)
    codes = np.clip(np.rint(blocks * inverse[..., None]), -127, 127).astype(np.int8)
    return BlockQuantized(codes=codes.reshape(rows, columns), scales=steps, minimums=None)


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    if name not in checkpoint.tensors:
        raise PackError(f"the checkpoint has no tensor {name}")
    return checkpoint.tensors[name]


def _vector(checkpoint: Checkpoint, name: str) -> F32:
    return np.ascontiguousarray(checkpoint.float32(name), dtype=np.float32).reshape(-1)


def put_matrix(
    packed: dict[str, Array], name: str, tensor: Tensor, precision: Literal["int8", "fp32"]
) -> None:
    """Pack one matrix under its name and kind. Raises PackError."""
    if precision == "fp32":
        dense = tensor.dequantize() if isinstance(tensor, BlockQuantized) else tensor
        packed[f"{name}.f32"] = _pack_f32(_pad(dense, 0))
        return
    if not isinstance(tensor, BlockQuantized):
        tensor = quantize_q8_0(_pad(np.asarray(tensor, dtype=np.float32), 0))
    kind: MatrixKind = "q8" if tensor.codes.dtype == np.int8 else "q4"
    _check_exact(name, tensor)
    packed[f"{name}.{kind}"] = _pack_q8(tensor) if kind == "q8" else _pack_q4(tensor)


def _pad(array: npt.NDArray[np.generic], value: float) -> F32:
    """Pad rows to whole panels and columns to whole blocks with a value."""
    rows, columns = array.shape
    padding = ((0, -rows % LANES), (0, -columns % BLOCK))
    return np.pad(np.asarray(array, dtype=np.float32), padding, constant_values=value)


def _check_exact(name: str, tensor: BlockQuantized) -> None:
    """Scales are stored as half floats; block formats have such scales, and nothing may be lost."""
    for array in (tensor.scales, tensor.minimums):
        if array is None:
            continue
        with np.errstate(over="ignore"):
            stored = array.astype(np.float16).astype(np.float32)
        if not np.array_equal(stored, array):
            raise PackError(f"tensor {name}: block scales are not half-precision numbers")
    if tensor.minimums is not None and tensor.codes.dtype == np.int8:
        raise PackError(f"tensor {name}: 8-bit blocks with a minimum are not supported")
    if tensor.codes.dtype == np.uint8 and tensor.codes.max(initial=0) > 15:
        raise PackError(f"tensor {name}: a 4-bit code is above 15")


def _panels(codes: npt.NDArray[np.generic], width: int) -> npt.NDArray[np.generic]:
    """[N, K] -> [panels, blocks, steps, 8 rows, width], where a step is `width` inputs."""
    rows, columns = codes.shape
    shape = (rows // LANES, LANES, columns // BLOCK, BLOCK // width, width)
    return codes.reshape(shape).transpose(0, 2, 3, 1, 4)


def _pad_rows(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.pad(array, ((0, -array.shape[0] % LANES), (0, 0)))


def _scale_panels(scales: F32) -> npt.NDArray[np.float16]:
    """[N, blocks] -> [panels, blocks, 8 rows] in half precision."""
    padded = _pad_rows(scales).astype(np.float16)
    return padded.reshape(-1, LANES, scales.shape[1]).transpose(0, 2, 1)


def _bytes(array: npt.NDArray[np.generic]) -> Bytes:
    """View an array as bytes, one row per panel."""
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(contiguous.shape[0], -1).view(np.uint8)


def _pack_q4(tensor: BlockQuantized) -> Bytes:
    steps = _panels(_pad_rows(tensor.codes), 8).astype(np.uint8)
    codes = steps[..., :4] | (steps[..., 4:] << 4)
    minimums = np.zeros_like(tensor.scales) if tensor.minimums is None else tensor.minimums
    scales = np.stack([_scale_panels(tensor.scales), _scale_panels(minimums)], axis=2)
    return np.concatenate([_bytes(codes), _bytes(scales)], axis=1)


def _pack_q8(tensor: BlockQuantized) -> Bytes:
    codes = _panels(_pad_rows(tensor.codes), 4)
    return np.concatenate([_bytes(codes), _bytes(_scale_panels(tensor.scales))], axis=1)


def _pack_f32(dense: F32) -> Bytes:
    rows, columns = dense.shape
    return _bytes(dense.reshape(rows // LANES, LANES, columns).transpose(0, 2, 1))
