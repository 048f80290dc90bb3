"""Native models of the tiny checkpoints; each library is compiled once per test session."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.native.build import Precision, Variant, build_library
from ignition.native.pack import pack
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from tests.ignition.driver import Driver, catalog_of
from tests.ignition.tiny import CONTEXT, TinyModel, build

POOL = PoolGeometry(row_count=8, page_count=120, page_size_tokens=16, context_length_tokens=CONTEXT)

_DIRECTORY = tempfile.TemporaryDirectory(prefix="native-tests-")


@functools.cache
def tiny(family: str) -> TinyModel:
    return build(family)


@functools.cache
def _library(
    sizes: tuple[tuple[str, object], ...],
    pool: PoolGeometry,
    precision: Precision,
    variant: Variant,
) -> Path:
    number = len(list(Path(_DIRECTORY.name).iterdir()))
    geometry = ModelGeometry(**dict(sizes))  # type: ignore[arg-type]
    path = Path(_DIRECTORY.name) / f"{precision}-{variant}-{number}.so"
    return build_library(geometry, pool, precision, path, variant=variant).path


def library_for(
    geometry: ModelGeometry,
    precision: Precision,
    variant: Variant = "avx2",
    pool: PoolGeometry = POOL,
) -> Path:
    """Families of the same sizes share a library: names and rotary settings are not compiled in."""
    sizes = {name: getattr(geometry, name) for name in geometry.__slots__}
    sizes |= {"family": "any", "rope_theta": 1.0, "rope_scaling": None, "tied_embeddings": True}
    sizes |= {"attention_bias": False, "qk_norm": False, "context_length_tokens": 1}
    return _library(
        tuple(sorted(sizes.items(), key=lambda item: item[0])), pool, precision, variant
    )


def native_driver(
    family: str = "llama",
    precision: Precision = "int8",
    variant: Variant = "avx2",
    threads: int = 1,
) -> Driver:
    checkpoint = tiny(family).checkpoint
    dtype = np.float32 if precision == "fp32" else np.float16
    model = NativeModel(
        geometry=checkpoint.geometry,
        pool=POOL,
        catalog=catalog_of(),
        arrays=_packed(family, precision),
        library=library_for(checkpoint.geometry, precision, variant),
        state=ServingState.allocate(checkpoint.geometry, POOL, dtype),
        threads=threads,
    )
    return Driver(model)


@functools.cache
def _packed(family: str, precision: Precision) -> dict[str, np.ndarray]:
    return pack(tiny(family).checkpoint, precision)
