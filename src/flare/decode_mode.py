"""Which decode mode a package is served in: what was asked for, and what it has programs for."""

from __future__ import annotations

from collections.abc import Iterable

from flare.drafts import draft_source, names_model
from flare.errors import FlareError
from flare.loaded import Decoding
from flare.options import SpeculationMode
from flare.request import SOURCES, PackageRequest, check_sharing_sources
from helios.engine.manifest import DraftEntry, Manifest
from helios.scheduler import (
    COMPLETION_TOKENS,
    DecodeMode,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    SpeculationConfig,
)
from ignition.package_manifest import sha256_of
from ignition.purposes import SOURCE_WORDS
from ignition.sources import summarize_source


def served_mode(manifest: Manifest, request: PackageRequest, mode: SpeculationMode) -> Decoding:
    """Return how a package's decoders generate, and from which proposals.

    Raises FlareError for a package that lacks what was asked for, and OSError for a head that
    cannot be read.
    """
    check_draft(manifest, request)
    sources = served_sources(manifest, request, mode)
    decoding = Decoding(decode_mode(manifest, request, mode, sources), sources)
    check_sharing(manifest, request, decoding)
    check_survival(manifest, request)
    return decoding


def served_sources(
    manifest: Manifest, request: PackageRequest, mode: SpeculationMode
) -> tuple[str, ...]:
    """Return the sources of proposals that a package is served with, in the order of options.

    Where nobody asks for speculation they are those that the package has programs for. Raises
    FlareError for a package that lacks what was asked for.
    """
    present = {graph.source for graph in manifest.graphs}
    found = tuple(source for source in SOURCES if source in present)
    wanted = request.sources
    if not wanted and (request.is_speculation_asked or not found):
        if mode is SpeculationMode.FIXED:
            raise FlareError("--speculation-mode fixed needs --speculation copy or learned")
        return ()
    if not request.is_speculation_asked and (found or mode is SpeculationMode.ADAPTIVE):
        wanted = found
    for source in wanted:
        if source not in found:
            word = SOURCE_WORDS[ProposalSource[source.upper()]]
            raise FlareError(
                f"--speculation: the package has no programs for {word} proposals; "
                f"prepare it again with `flare prepare --speculation {source}`"
            )
    return wanted


def decode_mode(
    manifest: Manifest,
    request: PackageRequest,
    mode: SpeculationMode,
    sources: tuple[str, ...],
) -> SpeculationConfig:
    """Return how the package's decoders generate with proposals of the sources.

    Raises FlareError for a package that lacks what was asked for.
    """
    tokens = request.asked_draft_tokens
    if not sources:
        if tokens is not None:
            raise FlareError(
                "--draft-tokens: the package has no programs for proposals; prepare it again with "
                "`flare prepare --speculation copy` or `learned`"
            )
        return SpeculationConfig()
    if mode is SpeculationMode.ADAPTIVE:
        return SpeculationConfig(mode=DecodeMode.ADAPTIVE)
    if len(sources) > 1:
        raise FlareError("--speculation-mode fixed needs one source: --speculation copy or learned")
    widths = sorted({g.token_capacity for g in manifest.graphs if g.source == sources[0]})
    width = widths[-1] if tokens is None else tokens + 1
    if width not in widths:
        drafts = ", ".join(str(each - 1) for each in widths)
        raise FlareError(
            f"--draft-tokens: the package has programs for {drafts} proposals, none for {width - 1}"
        )
    return SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=width)


def check_mixed(
    served: Iterable[GraphDescriptor], request: PackageRequest, decoding: SpeculationConfig
) -> None:
    """Raise FlareError where no mixed program is left of those that were asked for."""
    if not request.mixed_prefill or any(graph.kind is GraphKind.MIXED for graph in served):
        return
    if decoding.mode is DecodeMode.FIXED:
        raise FlareError(
            f"--mixed-prefill: the package has no mixed programs of {decoding.fixed_width - 1} "
            "proposals; leave out --speculation-mode fixed, or prepare it again with `flare "
            f"prepare --mixed-prefill`, fewer --draft-tokens (at most {COMPLETION_TOKENS - 1}) or "
            "a larger --speculative-token-capacity"
        )
    raise FlareError(
        "--mixed-prefill: the package has no mixed programs of this mode; prepare it again "
        "with `flare prepare --mixed-prefill` and the same --speculation"
    )


def check_sharing(manifest: Manifest, request: PackageRequest, decoding: Decoding) -> None:
    """Raise FlareError for a package without the rounds of shared rows that were asked for."""
    who = request.row_sharing
    if who == "off":
        return
    check_sharing_sources(who, decoding.sources)
    if who == "device" and decoding.speculation.mode is DecodeMode.FIXED:
        raise FlareError("--row-sharing device needs --speculation-mode adaptive")
    shared = [
        graph
        for graph in manifest.graphs
        if graph.packed_capacity and graph.source in decoding.sources
    ]
    if not any(who == "host" or graph.allocation == "device" for graph in shared):
        raise FlareError(
            "--row-sharing: the package has no rounds whose requests share target rows dealt by "
            f"the {who}; prepare it again with `flare prepare --row-sharing {who}`, for so many "
            "requests at once that their widest rounds pass --speculative-token-capacity"
            + " or, with learned proposals, for two or more"
            * (who == "device")
        )


def check_survival(manifest: Manifest, request: PackageRequest) -> None:
    """Raise FlareError for a package whose rounds do not tell what they were asked to."""
    if request.survival and not any(graph.reports_survival for graph in manifest.graphs):
        raise FlareError(
            "--survival: the package's rounds do not tell the chance of prefixes; prepare it again "
            "with `flare prepare --survival`"
        )


def check_draft(manifest: Manifest, request: PackageRequest) -> None:
    """Raise FlareError for a package with another head than the one that was named, or OSError."""
    if request.draft is None:
        return
    held = None if manifest.draft is None else manifest.draft.sha256
    is_model = names_model(request.draft)
    if is_model:
        named = summarize_source(draft_source(request.draft)).sha256
    else:
        named = sha256_of(request.draft)
    if held != named:
        other = "no draft" if manifest.draft is None else f"the draft {_title(manifest.draft)}"
        kind = "model" if is_model else "file"
        raise FlareError(
            f"--draft: the package has {other}, the {kind} {request.draft.name} is {named[:12]}; "
            "prepare it again with `flare prepare --draft`"
        )


def _title(draft: DraftEntry) -> str:
    kind = "head" if draft.model is None else f"model {draft.model.name}"
    return f"{kind} {draft.sha256[:12]}"
