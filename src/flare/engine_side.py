"""What the engine process calls to open a package; it imports neither the server nor the CLI."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from helios.engine.ports import DetokenizerFactory, PreparedModel
from helios.runtime.grammars import GrammarCompiler
from helios.runtime.text import open_detokenizers
from helios.scheduler import Catalog, GraphDescriptor, GraphKind, ProposalSource, SpeculationConfig
from ignition.measure import calibrated_seeds
from ignition.package import LoadLimits, open_package
from ignition.package_manifest import catalog_of, read_manifest
from ignition.programs.buffers import is_dealt, is_ragged

_GENERATING: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


def open_model(
    directory: Path,
    threads: int | None,
    speculation: SpeculationConfig,
    *,
    sources: tuple[str, ...] | None = None,
    mixed_prefill: bool = False,
    row_sharing: str = "off",
) -> PreparedModel:
    """Open a package and measure its short programs as they run here and now.

    Programs that the decode mode never runs are left out, those with proposals of other `sources`
    (None: all), and mixed and ragged ones unless asked for. Raises PackageError.
    """
    graphs = tuple(
        graph.name
        for graph in catalog_of(read_manifest(directory).graphs).graphs
        if _is_served(graph, speculation, sources)
        and (mixed_prefill or graph.kind is not GraphKind.MIXED)
        and (row_sharing != "off" or not is_ragged(graph))
        and (row_sharing == "device" or not is_dealt(graph))
    )
    package = open_package(directory, limits=LoadLimits(graphs=graphs), threads=threads)
    return dataclasses.replace(package, cost_seeds_ns=calibrated_seeds(package))


def _is_served(
    graph: GraphDescriptor, speculation: SpeculationConfig, sources: tuple[str, ...] | None
) -> bool:
    if graph.kind not in _GENERATING:
        return True
    if not Catalog.generates(graph, speculation):
        return False
    is_proposing = graph.source is not ProposalSource.NONE
    return not is_proposing or sources is None or graph.source.name.lower() in sources


def open_package_detokenizers(directory: Path) -> DetokenizerFactory:
    """Open the text side of a package. Raises PackageError or TextError."""
    return open_detokenizers(directory, read_manifest(directory).tokenizer)


def open_package_grammars(directory: Path) -> GrammarCompiler:
    """Open what constrained output needs of a package. Raises PackageError or TextError."""
    return GrammarCompiler.open(directory, read_manifest(directory).tokenizer)
