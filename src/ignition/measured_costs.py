"""What a few replays of every program say of its duration, when some of them were disturbed.

Whatever else runs on a machine only ever adds to a replay, for longer than one replay takes. So a
program's few replays lie apart, between those of all others, and the shortest of them counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from helios.scheduler import GraphDescriptor, GraphKind

_PROMPTS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)


def swept(
    graphs: Sequence[GraphDescriptor],
    replays: Sequence[int],
    shortest_ns: Callable[[GraphDescriptor, int], int],
) -> dict[str, int]:
    """Return graph name -> shortest nanoseconds of several sweeps over all programs.

    `shortest_ns` runs a program so many times in a row; `replays` has how often in each sweep.
    Every other sweep goes backwards, so that no two programs are always measured side by side.
    """
    costs: dict[str, int] = {}
    for number, count in enumerate(replays):
        for graph in graphs if number % 2 == 0 else reversed(graphs):
            cost_ns = shortest_ns(graph, count)
            costs[graph.name] = min(costs.get(graph.name, cost_ns), cost_ns)
    return costs


def at_most_larger(
    graphs: Sequence[GraphDescriptor], costs_ns: Mapping[str, int]
) -> dict[str, int]:
    """Return the costs, each at most that of every measured program that does the same and more.

    A program's work is a part of that of one with more lanes, more rows or deeper proposals, so a
    longer duration was disturbed in all its replays, and the larger one's is the better bound.
    (Kernels may make a few rows as slow as the next full block, never much slower.) The correction
    only shortens: what is estimated too long may never be run, what is too short runs and is
    corrected at once.
    """
    measured = [graph for graph in graphs if graph.name in costs_ns]
    return {
        graph.name: min(
            [costs_ns[other.name] for other in measured if _does_more(other, graph)],
            default=costs_ns[graph.name],
        )
        for graph in measured
    }


def _does_more(large: GraphDescriptor, small: GraphDescriptor) -> bool:
    """Tell whether the work of one program contains that of another; each contains its own."""
    if large.kind is not small.kind:
        return False
    is_single = small.token_capacity == 1 and not small.proposal_depth
    is_alike = is_single or small.kind in _PROMPTS
    same = (large.source, large.allocation) == (small.source, small.allocation)
    return (is_alike or same) and all(
        own >= other for own, other in zip(_extents(large), _extents(small), strict=True)
    )


def _extents(graph: GraphDescriptor) -> tuple[int, ...]:
    return (
        graph.batch_capacity,
        graph.token_capacity,
        graph.proposal_depth,
        graph.rows,
        graph.prefill_capacity,
    )
