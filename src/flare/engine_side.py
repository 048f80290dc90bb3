"""What the engine process calls to open a package; it imports neither the server nor the CLI."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from helios.engine.ports import DetokenizerFactory, PreparedModel
from helios.runtime.grammars import GrammarCompiler
from helios.runtime.text import open_detokenizers
from helios.scheduler import Catalog, GraphKind, SpeculationConfig
from ignition.measure import calibrated_seeds
from ignition.package import LoadLimits, open_package
from ignition.package_manifest import catalog_of, read_manifest

_GENERATING: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


def open_model(
    directory: Path,
    threads: int | None,
    speculation: SpeculationConfig,
    *,
    mixed_prefill: bool = False,
) -> PreparedModel:
    """Open a package and measure its short programs as they run here and now.

    Programs that the decode mode never runs are left out, and mixed ones unless asked for. Raises
    PackageError.
    """
    graphs = tuple(
        graph.name
        for graph in catalog_of(read_manifest(directory).graphs).graphs
        if (graph.kind not in _GENERATING or Catalog.generates(graph, speculation))
        and (mixed_prefill or graph.kind is not GraphKind.MIXED)
    )
    package = open_package(directory, limits=LoadLimits(graphs=graphs), threads=threads)
    return dataclasses.replace(package, cost_seeds_ns=calibrated_seeds(package))


def open_package_detokenizers(directory: Path) -> DetokenizerFactory:
    """Open the text side of a package. Raises PackageError or TextError."""
    return open_detokenizers(directory, read_manifest(directory).tokenizer)


def open_package_grammars(directory: Path) -> GrammarCompiler:
    """Open what constrained output needs of a package. Raises PackageError or TextError."""
    return GrammarCompiler.open(directory, read_manifest(directory).tokenizer)
