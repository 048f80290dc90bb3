"""What a server loads of a package: what was asked for, of what the package has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from flare.decode_mode import check_mixed, served_mode
from flare.drafts import find_draft, planned_with
from flare.errors import FlareError
from flare.loaded import Decoding, Loading
from flare.models import find_model
from flare.options import Backend, PackageOptions, Speculation, SpeculationMode
from flare.packages import default_directory, existing, is_package, prepare
from flare.reduction import reduced, refusal
from flare.request import SOURCES, PackageRequest, check_effect, package_request, request_of
from helios.engine.manifest import Manifest
from helios.scheduler import Catalog, GraphDescriptor, GraphKind, ProposalSource
from ignition.package_manifest import catalog_of, read_manifest
from ignition.programs.buffers import is_dealt, is_ragged

_GENERATING: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


def loading_of(text: str, options: PackageOptions, mode: SpeculationMode) -> Loading:
    """Find or prepare what a command line names, and choose what to load of it.

    Options decide what is prepared of a model; a package can only be reduced. Raises FlareError,
    CapacityError, and what finding, reading and preparing raise.
    """
    directory = Path(text)
    if is_package(directory):
        manifest = read_manifest(directory)
        request = load_request(options, manifest)
        is_adaptive = mode is SpeculationMode.ADAPTIVE
        manifest = reduced(manifest, request, is_adaptive=is_adaptive)
    else:
        request = package_request(options)
        directory, manifest = _prepared(text, request)
    return _loading(directory, manifest, request, mode)


def load_request(options: PackageOptions, manifest: Manifest) -> PackageRequest:
    """Return what a command line asks of a package. Raises FlareError for another kind of package.

    Where proposals come from is the package's own choice, unless somebody says otherwise.
    """
    backend, precision = options.backend, options.precision
    if backend not in (Backend.AUTO, manifest.backend):
        raise refusal(manifest, "--backend", backend.value, f"{manifest.backend} programs")
    if precision is not None and precision != manifest.precision:
        has = f"weights in {manifest.precision}"
        raise refusal(manifest, "--precision", precision.value, has)
    asked = options.speculation or (None if options.draft is None else Speculation.LEARNED)
    if asked is not None:
        sources = asked.sources
        check_effect(options, sources)
    else:
        present = {graph.source for graph in manifest.graphs}
        sources = tuple(source for source in SOURCES if source in present)
    if options.survival is False and any(graph.reports_survival for graph in manifest.graphs):
        raise FlareError(
            "--no-survival: the package's rounds tell the chance of prefixes; prepare it again "
            "with `flare prepare --no-survival`"
        )
    return request_of(options, manifest.backend, manifest.precision, sources)


def _prepared(text: str, request: PackageRequest) -> tuple[Path, Manifest]:
    """Return the package of a model, preparing it when it is missing."""
    source, summary = find_model(text)
    found_draft = find_draft(request, source, summary)
    plan = planned_with(request, summary, found_draft)
    directory = default_directory(summary, plan, found_draft)
    return directory, existing(directory) or prepare(source, plan, request, directory, found_draft)


def _loading(
    directory: Path, manifest: Manifest, request: PackageRequest, mode: SpeculationMode
) -> Loading:
    decoding = served_mode(manifest, request, mode)
    descriptors = catalog_of(manifest.graphs).graphs
    graphs = [graph for graph in descriptors if _is_served(graph, request, decoding)]
    check_mixed(graphs, request, decoding.speculation)
    served = [graph.name for graph in graphs]
    threads = request.options.threads or manifest.machine.threads
    return Loading(
        directory=directory,
        manifest=msgspec.structs.replace(
            manifest,
            graphs=tuple(graph for graph in manifest.graphs if graph.name in served),
            machine=msgspec.structs.replace(manifest.machine, threads=threads),
        ),
        decoding=decoding,
    )


def _is_served(graph: GraphDescriptor, request: PackageRequest, decoding: Decoding) -> bool:
    """Programs that the decode mode never runs are left out, and others unless asked for."""
    if graph.kind not in _GENERATING:
        return True
    is_wanted = (
        (request.mixed_prefill or graph.kind is not GraphKind.MIXED)
        and (request.row_sharing != "off" or not is_ragged(graph))
        and (request.row_sharing == "device" or not is_dealt(graph))
    )
    if not is_wanted or not Catalog.generates(graph, decoding.speculation):
        return False
    is_proposing = graph.source is not ProposalSource.NONE
    return not is_proposing or graph.source.name.lower() in decoding.sources
