"""Cost seeds of a platform: what its package would have measured before the first request.

The server starts its scheduler with the durations that the package lists (`ignition.measure`), so a
simulated one does too. A program with one cost entry is measured as there: a prompt's chunk a
quarter into the longest context, 2,048 tokens at most, generating lanes behind a short one. An
entry of a context interval is measured in the middle of its interval.
"""

from __future__ import annotations

import itertools
from typing import Final

from helios.scheduler import GraphDescriptor, GraphKind, cost_entry_names
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.platform import Platform

SHORT_CONTEXT_TOKENS: Final = 256
"""Context of generating lanes that are measured once for all contexts."""
DEEPEST_TOKENS: Final = 2048
"""Most tokens before a chunk that is measured once for all contexts."""
_PROMPT_KINDS: Final = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
_GENERATING_KINDS: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


def measured_seeds(platform: Platform) -> dict[str, int]:
    """Return the duration in ns of every cost entry of a platform's catalog, by entry name."""
    longest = platform.resources.context_length_tokens
    seeds = {}
    for graph in platform.catalog.graphs:
        deepest = max(0, longest - max(graph.token_capacity, graph.prefill_capacity))
        for name, cached in _entries(graph, longest):
            lanes = _lanes(graph, min(cached, deepest), platform.resources.row_count)
            seeds[name] = platform.costs.step_ns(graph, lanes)
    return seeds


def _entries(graph: GraphDescriptor, longest: int) -> list[tuple[str, int]]:
    """Return the name of every cost entry and the context at which it is measured."""
    bounds = graph.context_intervals
    if not bounds:
        is_prompt = graph.kind in _PROMPT_KINDS
        return [
            (graph.name, min(longest // 4, DEEPEST_TOKENS) if is_prompt else SHORT_CONTEXT_TOKENS)
        ]
    edges = (0, *bounds, max(longest, bounds[-1]))
    middles = [(low + high) // 2 for low, high in itertools.pairwise(edges)]
    return list(zip(cost_entry_names(graph), middles, strict=True))


def _lanes(graph: GraphDescriptor, cached: int, rows: int) -> list[LaneWork]:
    """Return full lanes behind `cached` tokens."""
    count = min(graph.batch_capacity, rows)
    if graph.kind in _PROMPT_KINDS:
        return [LaneWork(graph.token_capacity, cached, is_prompt=True)]
    if graph.kind not in _GENERATING_KINDS:
        is_image = graph.kind is GraphKind.VISION
        new = graph.token_capacity if is_image else 0
        return [LaneWork(new, cached, is_image, samples=False)] * count
    width = min(graph.token_capacity, graph.rows // graph.batch_capacity)
    streams = [LaneWork(width, cached, is_prompt=False)] * count
    if graph.kind is GraphKind.MIXED:
        return [*streams[1:], LaneWork(graph.prefill_capacity, cached, is_prompt=True)]
    return streams
