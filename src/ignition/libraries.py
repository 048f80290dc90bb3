"""Compiles the library of one model into a package that is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.native.build import build_library
from ignition.package_manifest import sha256_of
from ignition.package_writer import CompiledLibrary


def compiled_library(
    directory: Path, stem: str, geometry: ModelGeometry, pool: PoolGeometry, precision: str
) -> CompiledLibrary:
    """Compile for a geometry; the file is called by the stem and a hash of its content.

    Raises NativeBuildError.
    """
    built = build_library(geometry, pool, kernel_precision(precision), directory / f"{stem}.so")
    named = directory / f"{stem}-{sha256_of(built.path)[:12]}.so"
    built.path.rename(named)
    return CompiledLibrary(name=named.name, cpu_features=built.features, compiler=built.compiler)


def kernel_precision(precision: str) -> Literal["int8", "fp32"]:
    """Return a plan's precision as the kernels name it."""
    return "fp32" if precision == "fp32" else "int8"
