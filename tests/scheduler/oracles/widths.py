"""Which rounds that serve everybody may replace a winner, straight from the sentence of 9.14."""

from __future__ import annotations

from collections.abc import Sequence

from helios.scheduler import GraphDescriptor, GraphKind


def holds_everybody(graph: GraphDescriptor, streams: int, duration_ms: float) -> bool:
    """Whether a program is a measured round with rows for every stream's whole lane."""
    width = min(graph.token_capacity, graph.proposal_depth + 1)
    return (
        graph.kind is GraphKind.SPECULATIVE
        and duration_ms > 0.0
        and graph.batch_capacity >= streams
        and graph.rows >= streams * width
    )


def replacements(
    rounds: Sequence[tuple[float, float]], winner: tuple[float, float], share: float
) -> list[int]:
    """Return who runs instead of the winner, the first choice first.

    A round is its duration in ms and its service per ms.
    """
    best = max([rate for _, rate in [winner, *rounds]])
    found = []
    for place, (duration_ms, rate) in enumerate(rounds):
        is_needed = winner[1] < share * best
        if rate >= share * best and (is_needed or duration_ms < winner[0]):
            found.append((duration_ms, place))
    return [place for _, place in sorted(found)]
