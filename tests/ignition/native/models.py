"""Native models of the tiny checkpoints; each library is compiled once for all test runs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path

import numpy as np
import pytest

from helios.scheduler import Catalog
from ignition.checkpoint import BlockQuantized, Checkpoint
from ignition.draft.file import DraftHead
from ignition.draft.pair import DraftModel
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.native import build as compiling
from ignition.native.build import Precision, Variant
from ignition.native.pack import MATRICES, pack
from ignition.native.pack_draft import pack_draft
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from tests.ignition.driver import Driver, catalog_of
from tests.ignition.tiny import CONTEXT, VOCABULARY, TinyModel, build

POOL = PoolGeometry(row_count=8, page_count=120, page_size_tokens=16, context_length_tokens=CONTEXT)

BEST = compiling.choose_variant(compiling.machine_features())
"""The variant that `flare prepare` takes on this machine."""
HAS_VNNI = BEST == "vnni"
NEEDS_VNNI = pytest.mark.skipif(not HAS_VNNI, reason="the processor has no AVX-512 VNNI")
VNNI = pytest.param("vnni", marks=NEEDS_VNNI)

_DIRECTORY = Path(__file__).parents[3] / ".test-libraries"
"""Named by everything that goes into them, so that workers and later runs may share them."""


@functools.cache
def tiny(family: str) -> TinyModel:
    return build(family)


@functools.cache
def checkpoint_for(family: str) -> Checkpoint:
    """A tiny checkpoint; `FAMILY:q4_1` and `FAMILY:q4_0` have projections in those blocks,
    `FAMILY:mixed` some of them, and in `FAMILY:ties` every four neighbouring tokens have the same
    logit.
    """
    family, _, blocks = family.partition(":")
    checkpoint = tiny(family).checkpoint
    if not blocks:
        return checkpoint
    if blocks == "ties":
        head = np.repeat(checkpoint.float32("head")[::4], 4, axis=0)[:VOCABULARY]
        return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, "head": head})
    chosen = ("q", "gate", "o") if blocks == "mixed" else MATRICES
    parts = tuple(f".{part}" for part in chosen)
    tensors = {
        name: quantize_q4(tensor, has_minimum=blocks != "q4_0") if name.endswith(parts) else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    return dataclasses.replace(checkpoint, tensors=tensors)


def quantize_q4(weights: np.ndarray, *, has_minimum: bool) -> BlockQuantized:
    """Quantise [N, K] floats to 4-bit blocks of 32, as the GGUF formats q4_1 and q4_0 do."""
    rows, columns = weights.shape
    blocks = weights.reshape(rows, columns // 32, 32)
    if has_minimum:
        minimums = blocks.min(axis=-1).astype(np.float16).astype(np.float32)
        scales = ((blocks.max(axis=-1) - minimums) / 15).astype(np.float16).astype(np.float32)
    else:
        scales = (np.abs(blocks).max(axis=-1) / 8).astype(np.float16).astype(np.float32)
        minimums = -8 * scales
    codes = np.rint((blocks - minimums[..., None]) / scales[..., None]).clip(0, 15)
    codes = codes.astype(np.uint8).reshape(rows, columns)
    return BlockQuantized(codes=codes, scales=scales, minimums=minimums)


@functools.cache
def _library(
    sizes: tuple[tuple[str, object], ...],
    pool: PoolGeometry,
    precision: Precision,
    variant: Variant,
) -> Path:
    geometry = ModelGeometry(**dict(sizes))  # type: ignore[arg-type]
    inputs = [compiling._version_of(compiling.find_compiler())]
    inputs += compiling.compile_options(geometry, pool, precision, variant)
    inputs += [file.read_text() for file in sorted(compiling._SOURCE_DIRECTORY.glob("*.[ch]"))]
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    path = _DIRECTORY / f"{digest[:32]}.so"
    if not path.exists():
        _DIRECTORY.mkdir(exist_ok=True)
        compiling.build_library(geometry, pool, precision, path, variant=variant)
    return path


def library_for(
    geometry: ModelGeometry,
    precision: Precision,
    variant: Variant = BEST,
    pool: PoolGeometry = POOL,
) -> Path:
    """Families of the same sizes share a library: names and rotary settings are not compiled in."""
    sizes = {name: getattr(geometry, name) for name in geometry.__slots__}
    sizes |= {"family": "any", "rope_theta": 1.0, "rope_scaling": None, "tied_embeddings": True}
    sizes |= {"attention_bias": False, "qk_norm": False, "context_length_tokens": 1}
    return _library(
        tuple(sorted(sizes.items(), key=lambda item: item[0])), pool, precision, variant
    )


def native_model(
    checkpoint: Checkpoint,
    catalog: Catalog,
    precision: Precision,
    *,
    head: DraftHead | None = None,
    pair: DraftModel | None = None,
    threads: int,
) -> NativeModel:
    """A model whose programs keep the context of a head or of a draft model, if one is given."""
    arrays = pack(checkpoint, precision)
    if head is not None:
        arrays |= pack_draft(checkpoint, head, precision)
    dtype = np.float32 if precision == "fp32" else np.float16
    layers = int(head is not None)
    return NativeModel(
        geometry=checkpoint.geometry,
        pool=POOL,
        catalog=catalog,
        arrays=arrays,
        library=library_for(checkpoint.geometry, precision),
        state=ServingState.allocate(checkpoint.geometry, POOL, dtype, draft_layers=layers),
        threads=threads,
        pair=pair,
    )


def native_driver(
    family: str = "llama",
    precision: Precision = "int8",
    variant: Variant = BEST,
    threads: int = 1,
    catalog: Catalog | None = None,
) -> Driver:
    checkpoint = checkpoint_for(family)
    dtype = np.float32 if precision == "fp32" else np.float16
    model = NativeModel(
        geometry=checkpoint.geometry,
        pool=POOL,
        catalog=catalog or catalog_of(),
        arrays=_packed(family, precision),
        library=library_for(checkpoint.geometry, precision, variant),
        state=ServingState.allocate(checkpoint.geometry, POOL, dtype),
        threads=threads,
    )
    return Driver(model)


@functools.cache
def _packed(family: str, precision: Precision) -> dict[str, np.ndarray]:
    return pack(checkpoint_for(family), precision)
