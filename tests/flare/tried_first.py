"""Packages whose servers try the programs that a test is about before all others.

Which program a scheduler chooses depends on durations, and those on what else the machine does. A
start measures ordinary programs alone; rounds and mixed programs keep the costs of the package, and
where those are next to nothing, each is chosen the first time that it may run. What it costs is
observed from then on, so a test may rely on its having run, and not on how often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from flare.command_line import run_command
from helios.engine.manifest import GraphEntry
from ignition.package_manifest import read_manifest
from ignition.package_writer import write_manifest

Choice = Callable[[GraphEntry], bool]
PROMPTS_FIRST = ("--scheduler-prefill-balance", "1000")
"""Requests that come together generate together. The tiny model ends an answer before fairness lets
the next one begin, so that programs of many rows would have nobody to serve."""


def proposes(graph: GraphEntry) -> bool:
    """Whether a program takes or makes proposals, mixed ones among them."""
    return graph.proposal_depth > 0


def is_mixed(graph: GraphEntry) -> bool:
    return graph.kind == "mixed"


def proposes_or_mixes(graph: GraphEntry) -> bool:
    return proposes(graph) or is_mixed(graph)


def prepare_tried_first(
    model: Path, options: Sequence[str], package: Path, chosen: Choice = proposes_or_mixes
) -> Path:
    """Prepare a package whose chosen programs are tried first; return its directory."""
    assert run_command(["prepare", str(model), *options, "--output", str(package)]) == 0
    return tried_first(package, chosen)


def tried_first(package: Path, chosen: Choice) -> Path:
    """Make the chosen programs of a package cost one nanosecond until they have run."""
    manifest = read_manifest(package)
    names = [graph.name for graph in manifest.graphs if chosen(graph)]
    assert names, "the package has none of the programs that were to be tried first"
    costs = {**manifest.costs_ns, **dict.fromkeys(names, 1)}
    write_manifest(package, msgspec.structs.replace(manifest, costs_ns=costs))
    return package
