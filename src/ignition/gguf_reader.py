"""Reads a local GGUF file of a Llama-family model into a Checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ignition.checkpoint import Checkpoint, Tensor
from ignition.checkpoint_errors import CheckpointError
from ignition.geometry import ModelGeometry
from ignition.gguf_geometry import Metadata, read_geometry
from ignition.gguf_header import GgufFile, TensorEntry, open_gguf
from ignition.gguf_tensors import decode, decode_float32, unpermute_rows
from ignition.tokenizer import read_text_assets

_FREQUENCIES: Final = "rope_freqs.weight"

Plan = tuple[str, str, tuple[int, ...]]
"""(canonical name, name in the file, shape)."""


def read_gguf(path: Path, *, name: str) -> Checkpoint:
    """Read a model to be served under a name. Raises CheckpointError; touches nothing else."""
    file = open_gguf(path)
    geometry = _geometry_of(file)
    plan = list(tensor_plan(geometry))
    _check_plan(file, plan)
    text = read_text_assets(Metadata(file), geometry.vocabulary_size)

    return Checkpoint(
        name=name,
        source=path.name,
        sha256=hashlib.sha256(file.data).hexdigest(),
        geometry=geometry,
        tensors={
            canonical: _read_tensor(file, file.tensors[stored], canonical, geometry)
            for canonical, stored, _ in plan
        },
        text=text,
    )


def read_gguf_geometry(path: Path) -> ModelGeometry:
    """Read the sizes of a model alone, for planning. Raises CheckpointError."""
    return _geometry_of(open_gguf(path))


def _geometry_of(file: GgufFile) -> ModelGeometry:
    factors = None
    if _FREQUENCIES in file.tensors:
        factors = decode_float32(file, file.tensors[_FREQUENCIES])
    return read_geometry(file, factors)


def tensor_plan(geometry: ModelGeometry) -> Iterator[Plan]:
    """Yield every tensor that a model of this geometry must have, and nothing more."""
    hidden, vocabulary = geometry.hidden_size, geometry.vocabulary_size
    yield "embed", "token_embd.weight", (vocabulary, hidden)
    yield "norm", "output_norm.weight", (hidden,)
    if not geometry.tied_embeddings:
        yield "head", "output.weight", (vocabulary, hidden)
    for layer in range(geometry.layer_count):
        for canonical, stored, shape in _layer_plan(geometry):
            yield f"layers.{layer}.{canonical}", f"blk.{layer}.{stored}", shape


def _layer_plan(geometry: ModelGeometry) -> Iterator[Plan]:
    hidden, ffn = geometry.hidden_size, geometry.ffn_size
    query, kv = geometry.query_heads * geometry.head_size, geometry.kv_width
    yield "attn_norm", "attn_norm.weight", (hidden,)
    yield "q", "attn_q.weight", (query, hidden)
    yield "k", "attn_k.weight", (kv, hidden)
    yield "v", "attn_v.weight", (kv, hidden)
    yield "o", "attn_output.weight", (hidden, query)
    yield "ffn_norm", "ffn_norm.weight", (hidden,)
    yield "gate", "ffn_gate.weight", (ffn, hidden)
    yield "up", "ffn_up.weight", (ffn, hidden)
    yield "down", "ffn_down.weight", (hidden, ffn)
    if geometry.attention_bias:
        yield "q_bias", "attn_q.bias", (query,)
        yield "k_bias", "attn_k.bias", (kv,)
        yield "v_bias", "attn_v.bias", (kv,)
    if geometry.qk_norm:
        yield "q_norm", "attn_q_norm.weight", (geometry.head_size,)
        yield "k_norm", "attn_k_norm.weight", (geometry.head_size,)


def _check_plan(file: GgufFile, plan: list[Plan]) -> None:
    """Every planned tensor is there in its shape, and no other tensor is."""
    for _, stored, shape in plan:
        entry = file.tensors.get(stored)
        found = "nothing" if entry is None else f"shape {entry.shape}"
        if entry is None or entry.shape != shape:
            raise CheckpointError(
                file=file.name, field=f"tensor {stored}", found=found, expected=f"shape {shape}"
            )
    known = {stored for _, stored, _ in plan} | {_FREQUENCIES}
    for stored in file.tensors:
        if stored not in known:
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
