"""Reads a local GGUF file of a Llama-family model into a Checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ignition.checkpoint import Checkpoint, Tensor, TextAssets
from ignition.checkpoint_errors import CheckpointError
from ignition.geometry import ModelGeometry
from ignition.gguf_geometry import Metadata, read_geometry
from ignition.gguf_header import GgufFile, TensorEntry, open_gguf
from ignition.gguf_tensors import decode, decode_float32, unpermute_rows
from ignition.tensor_plan import tensor_shapes
from ignition.tokenizer import read_text_assets

_FREQUENCIES: Final = "rope_freqs.weight"

_TOP: Final = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
}
_ROLES: Final = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
}


def read_gguf(path: Path, *, name: str) -> Checkpoint:
    """Read a model to be served under a name. Raises CheckpointError; touches nothing else."""
    file, geometry = _open_checked(path)
    text = read_text_assets(Metadata(file), geometry.vocabulary_size)

    return Checkpoint(
        name=name,
        source=path.name,
        sha256=_sha256(file),
        geometry=geometry,
        tensors={
            canonical: _read_tensor(file, file.tensors[stored_name(canonical)], canonical, geometry)
            for canonical in tensor_shapes(geometry)
        },
        text=text,
    )


def summarize_gguf(path: Path) -> tuple[ModelGeometry, str]:
    """Return geometry and sha256 of a file without decoding its tensors. Raises CheckpointError."""
    file, geometry = _open_checked(path)
    return geometry, _sha256(file)


def read_gguf_text(path: Path) -> TextAssets:
    """Return tokenizer and template of a file without its tensors. Raises CheckpointError."""
    file, geometry = _open_checked(path)
    return read_text_assets(Metadata(file), geometry.vocabulary_size)


def _open_checked(path: Path) -> tuple[GgufFile, ModelGeometry]:
    file = open_gguf(path)
    factors = None
    if _FREQUENCIES in file.tensors:
        factors = decode_float32(file, file.tensors[_FREQUENCIES])
    geometry = read_geometry(file, factors)
    _check_tensors(file, geometry)
    return file, geometry


def _sha256(file: GgufFile) -> str:
    return hashlib.sha256(file.data).hexdigest()


def stored_name(canonical: str) -> str:
    """Return the name that a GGUF file gives a canonical tensor."""
    if canonical in _TOP:
        return _TOP[canonical]
    _, layer, role = canonical.split(".")
    return f"blk.{layer}.{_ROLES[role]}"


def _check_tensors(file: GgufFile, geometry: ModelGeometry) -> None:
    """Every tensor of the geometry is there in its shape, and no other tensor is."""
    planned = {stored_name(name): shape for name, shape in tensor_shapes(geometry).items()}
    for stored, shape in planned.items():
        entry = file.tensors.get(stored)
        found = "nothing" if entry is None else f"shape {entry.shape}"
        if entry is None or entry.shape != shape:
            raise CheckpointError(
                file=file.name, field=f"tensor {stored}", found=found, expected=f"shape {shape}"
            )
    for stored in file.tensors:
        if stored not in planned and stored != _FREQUENCIES:
            raise CheckpointError(
                file=file.name,
                field=f"tensor {stored}",
                found="a tensor that this architecture does not use",
                expected="none (it would be ignored, which changes the model)",
            )


def _read_tensor(
    file: GgufFile, entry: TensorEntry, canonical: str, geometry: ModelGeometry
) -> Tensor:
    tensor = decode(file, entry) if len(entry.shape) == 2 else decode_float32(file, entry)
    _check_finite(file, entry, tensor)
    if geometry.family != "llama":
        return tensor
    role = canonical.rpartition(".")[2]
    if role in ("q", "q_bias"):
        return unpermute_rows(tensor, geometry.query_heads)
    if role in ("k", "k_bias"):
        return unpermute_rows(tensor, geometry.kv_heads)
    return tensor


def _check_finite(file: GgufFile, entry: TensorEntry, tensor: Tensor) -> None:
    parts: list[npt.NDArray[np.float32] | None]
    parts = [tensor] if isinstance(tensor, np.ndarray) else [tensor.scales, tensor.minimums]
    for part in parts:
        if part is not None and not np.isfinite(part).all():
            raise CheckpointError(
                file=file.name,
                field=f"tensor {entry.name}",
                found="an infinite or undefined value",
                expected="finite weights",
            )
