"""What the engine process calls to open a package; it imports neither the server nor the CLI."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from helios.engine.ports import DetokenizerFactory, PreparedModel
from helios.runtime.grammars import GrammarCompiler
from helios.runtime.text import open_detokenizers
from ignition.measure import calibrated_seeds
from ignition.package import LoadLimits, open_package
from ignition.package_manifest import read_manifest


def open_model(directory: Path, threads: int, limits: LoadLimits) -> PreparedModel:
    """Open what a server loads of a package and measure its short programs as they run here and
    now. Raises PackageError."""
    package = open_package(directory, limits=limits, threads=threads)
    return dataclasses.replace(package, cost_seeds_ns=calibrated_seeds(package))


def open_package_detokenizers(directory: Path) -> DetokenizerFactory:
    """Open the text side of a package. Raises PackageError or TextError."""
    return open_detokenizers(directory, read_manifest(directory).tokenizer)


def open_package_grammars(directory: Path) -> GrammarCompiler:
    """Open what constrained output needs of a package. Raises PackageError or TextError."""
    return GrammarCompiler.open(directory, read_manifest(directory).tokenizer)
