"""What the sizes on a command line make of a prepared package: less of it, or a refusal.

A package can be served with fewer rows, pages, tokens of context and programs than it has. What it
was not prepared with is never added; then the message says what the package has and which
`flare prepare` would give more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from flare.errors import FlareError
from flare.request import PackageRequest
from helios.engine.manifest import GraphEntry, Manifest, PoolEntry
from ignition.capacity_errors import CapacityError
from ignition.capacity_pages import MemoryNeeds, memory_needs
from ignition.fetch import KNOWN_MODELS
from ignition.package_manifest import catalog_of, geometry_of, model_geometry, pool_of
from ignition.round_shapes import round_widths

_PROMPTS: Final = ("prefill", "scored-prefill")
_ROUND: Final = "speculative"
Keeps = Callable[[GraphEntry], bool]


def reduced(manifest: Manifest, request: PackageRequest, *, is_adaptive: bool) -> Manifest:
    """Return what is left of a package under the sizes that were asked for.

    Raises FlareError for more than the package has, and CapacityError for too little memory.
    """
    whole = manifest
    manifest = _with_rows(manifest, request)
    manifest = _with_prompts(manifest, request)
    manifest = _with_context(manifest, request)
    manifest = _with_row_capacity(manifest, request)
    if is_adaptive:
        # A fixed width names one program; that it is there is looked at where it is chosen.
        manifest = _with_depth(manifest, request)
    return _with_memory(whole, manifest, request)


def refusal(manifest: Manifest, option: str, value: object, has: str) -> FlareError:
    """Return the error for an option that asks a package for what it was not prepared with."""
    model = manifest.model.name
    name = model if model in KNOWN_MODELS else manifest.model.source
    return FlareError(
        f"{option} {value}: the package has {has}; prepare it again with "
        f"`flare prepare {name} {option} {value}`"
    )


def _with_rows(manifest: Manifest, request: PackageRequest) -> Manifest:
    """Fewer requests at a time need no programs that are wider than all of them."""
    pool, rows = manifest.pool, request.options.concurrency or manifest.pool.row_count
    if rows > pool.row_count:
        has = f"rows for {pool.row_count} requests"
        raise refusal(manifest, "--concurrency", rows, has)
    present = _sizes(graph.batch_capacity for graph in manifest.graphs if graph.kind == "terminal")
    kept = request.request_buckets
    if kept is None:
        widest = next((size for size in present if size >= rows), present[-1])
        kept = tuple(size for size in present if size <= widest)
    elif not set(kept) <= set(present):
        raise refusal(manifest, "--request-buckets", _listed(kept), f"only {_listed(present)}")
    elif kept[-1] < rows:
        raise CapacityError(
            "--request-buckets",
            f"the largest is {kept[-1]}, which leaves the {rows} rows of --concurrency without a "
            "program that holds them all",
        )
    manifest = _keeping(
        manifest, lambda graph: graph.kind in _PROMPTS or graph.batch_capacity in kept
    )
    return _with_pool(manifest, msgspec.structs.replace(pool, row_count=rows))


def _with_context(manifest: Manifest, request: PackageRequest) -> Manifest:
    """Shorter requests need no programs for chunks and rounds that are longer than any of them."""
    context, pool = request.context_length_tokens, manifest.pool
    if context is None:
        return manifest
    if context > pool.context_length_tokens:
        has = f"a context of {pool.context_length_tokens} tokens"
        raise refusal(manifest, "--context", context, has)
    least = {
        kind: min((g.token_capacity for g in manifest.graphs if g.kind == kind), default=0)
        for kind in _PROMPTS
    }
    manifest = _keeping(
        manifest,
        # The smallest prefill program of a kind stays: without it no prompt could be read.
        lambda graph: (
            max(graph.token_capacity, graph.prefill_capacity)
            <= max(context, least.get(graph.kind, 0))
        ),
    )
    return _with_pool(manifest, msgspec.structs.replace(pool, context_length_tokens=context))


def _with_prompts(manifest: Manifest, request: PackageRequest) -> Manifest:
    kept = request.prefill_capacities
    if kept is None:
        return manifest
    present = _sizes(graph.token_capacity for graph in manifest.graphs if graph.kind == "prefill")
    if not set(kept) <= set(present):
        raise refusal(manifest, "--prefill-capacities", _listed(kept), f"only {_listed(present)}")
    capacity_of: dict[str, Callable[[GraphEntry], int]] = {
        "prefill": lambda graph: graph.token_capacity,
        "mixed": lambda graph: graph.prefill_capacity,
    }
    return _keeping(
        manifest,
        lambda graph: graph.kind not in capacity_of or capacity_of[graph.kind](graph) in kept,
    )


def _with_row_capacity(manifest: Manifest, request: PackageRequest) -> Manifest:
    """Bound the target rows of one program; those of width one are always there."""
    asked = request.options.speculative_token_capacity
    if asked is None:
        return manifest
    option = "--speculative-token-capacity"
    rounds = [graph for graph in manifest.graphs if graph.proposal_depth]
    if not rounds:
        raise refusal(manifest, option, asked, "no programs for proposals")
    missing = next(_missing_rounds(manifest, request, asked), None)
    if missing is not None:
        most = max(_rows(graph) for graph in rounds)
        raise refusal(manifest, option, asked, f"rounds of at most {most} target rows ({missing})")
    return _keeping(manifest, lambda graph: not graph.proposal_depth or _rows(graph) <= asked)


def _missing_rounds(manifest: Manifest, request: PackageRequest, capacity: int) -> Iterator[str]:
    """Yield what rounds a capacity would allow and the package lacks, a few words each."""
    rounds = [graph for graph in manifest.graphs if graph.kind == _ROUND]
    shapes = [
        (graph.batch_capacity, graph.token_capacity, graph.source)
        for graph in rounds
        if not graph.packed_capacity
    ]
    shared = [
        (graph.batch_capacity, graph.source)
        for graph in rounds
        if graph.packed_capacity >= capacity
    ]
    buckets, deepest = _sizes(graph.batch_capacity for graph in rounds), _deepest(manifest)
    for bucket, source in itertools.product(buckets, request.sources):
        if source not in deepest:
            continue
        widths = round_widths(deepest[source])
        for width in widths:
            if bucket * width <= capacity and (bucket, width, source) not in shapes:
                yield f"none of {bucket} requests with {width} each"
        shares = request.row_sharing != "off" and bucket < capacity < bucket * widths[-1]
        if shares and (bucket, source) not in shared:
            yield f"none of {bucket} requests that share {capacity}"


def _with_depth(manifest: Manifest, request: PackageRequest) -> Manifest:
    asked, deepest = request.asked_draft_tokens, _deepest(manifest)
    if asked is None:
        return manifest
    for source in request.sources:
        if source in deepest and asked > deepest[source]:
            kind = "learned" if source == "learned" else "copied"
            has = f"programs for at most {deepest[source]} {kind} proposals"
            raise refusal(manifest, "--draft-tokens", asked, has)
    return _keeping(manifest, lambda graph: graph.proposal_depth <= asked)


def _deepest(manifest: Manifest) -> dict[str, int]:
    """Return the most proposals of a request in one round, by source."""
    found: dict[str, int] = {}
    for graph in manifest.graphs:
        if graph.kind == _ROUND and graph.proposal_depth:
            found[graph.source] = max(graph.proposal_depth, found.get(graph.source, 0))
    return found


def _with_memory(whole: Manifest, manifest: Manifest, request: PackageRequest) -> Manifest:
    """Fewer pages; programs, rows and weights take what they take."""
    budget, pages = request.memory_bytes, manifest.pool.page_count
    if budget is None:
        return manifest
    needs = _needs(whole)
    has = whole.pool.page_count
    if has < needs.wanted and needs.pages_in(budget) > has:
        raise refusal(
            whole, "--memory", request.options.memory, f"{has} pages of keys and values and no more"
        )
    pages = min(pages, _needs(manifest).pages_in(budget))
    return msgspec.structs.replace(
        manifest, pool=msgspec.structs.replace(manifest.pool, page_count=pages)
    )


def _needs(manifest: Manifest) -> MemoryNeeds:
    draft = manifest.draft
    model = None if draft is None else draft.model
    return memory_needs(
        geometry_of(manifest),
        pool_of(manifest.pool),
        catalog_of(manifest.graphs).graphs,
        backend=manifest.backend,
        precision=manifest.precision,
        head_tokens=0 if draft is None or model is not None else draft.token_count,
        draft=None if model is None else model_geometry(model, "draft.model"),
    )


def _with_pool(manifest: Manifest, pool: PoolEntry) -> Manifest:
    """Return the package with another pool, and no more pages than its rows can use."""
    pages_per_row = pool_of(pool).pages_per_row
    pages = min(pool.page_count, pool.row_count * pages_per_row)
    return msgspec.structs.replace(manifest, pool=msgspec.structs.replace(pool, page_count=pages))


def _keeping(manifest: Manifest, keeps: Keeps) -> Manifest:
    graphs = tuple(graph for graph in manifest.graphs if keeps(graph))
    return msgspec.structs.replace(manifest, graphs=graphs)


def _rows(graph: GraphEntry) -> int:
    return graph.packed_capacity or graph.batch_capacity * graph.token_capacity


def _sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(sizes)))


def _listed(sizes: Iterable[int]) -> str:
    return ",".join(map(str, sizes))
