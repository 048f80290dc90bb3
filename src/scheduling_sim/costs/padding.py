"""Padding: executed over useful rows, and the capacities that pad least.

Loads are weights by size: how often a step serves so many requests, or runs a chunk of so many
tokens. A size runs in the smallest capacity that holds it; a size above all of them runs in full
largest capacities first, as a prompt is cut into chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence


def even_load(largest: int) -> dict[int, float]:
    """Return every size up to `largest` equally often."""
    return dict.fromkeys(range(1, largest + 1), 1.0)


def load_of(sizes: Iterable[int]) -> dict[int, float]:
    """Return how often each size occurs, smallest first."""
    counts: dict[int, float] = {}
    for size in sizes:
        counts[size] = counts.get(size, 0.0) + 1.0
    return dict(sorted(counts.items()))


def padding(capacities: Sequence[int], load: Mapping[int, float]) -> float:
    """Return executed rows per useful row, at least 1; 1 for an empty load.

    `capacities` ascend. Raises ValueError for an empty sequence.
    """
    if not capacities:
        raise ValueError("padding needs at least one capacity")
    largest = capacities[-1]
    useful = executed = 0.0
    for size, weight in load.items():
        whole, rest = divmod(size, largest)
        rows = whole * largest
        if rest:
            rows += capacities[bisect_left(capacities, rest)]
        useful += weight * size
        executed += weight * rows
    return executed / useful if useful else 1.0


def best_capacities(
    load: Mapping[int, float], count: int, candidates: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return at most `count` capacities that execute the fewest rows for sizes up to the largest.

    Exact, by dynamic programming over the candidates (every size of the load without them): the
    best choice ending at one candidate extends the best choice ending at a smaller one. The
    largest candidate is always taken. Sizes above it count as their rest in it.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    sizes = sorted(candidates if candidates is not None else load)
    if not sizes:
        raise ValueError("there is neither a load nor a candidate to choose from")
    weights = _weights(load, sizes)
    # executed[i] after r rounds: rows for sizes up to sizes[i] with r capacities, sizes[i] the last
    executed = [sizes[i] * sum(weights[: i + 1]) for i in range(len(sizes))]
    previous: list[list[int]] = []
    for _ in range(min(count, len(sizes)) - 1):
        following, chosen = [], []
        for i in range(len(sizes)):
            best, before = executed[i], -1
            above = 0.0
            for j in range(i - 1, -1, -1):
                above += weights[j + 1]
                rows = executed[j] + sizes[i] * above
                if rows < best:
                    best, before = rows, j
            following.append(best)
            chosen.append(before)
        previous.append(chosen)
        executed = following
    return _trace(sizes, previous)


def _weights(load: Mapping[int, float], sizes: Sequence[int]) -> list[float]:
    """Return the weight that falls to each candidate when all of them are capacities."""
    weights = [0.0] * len(sizes)
    for size, weight in load.items():
        rest = size % sizes[-1] or sizes[-1]
        weights[bisect_left(sizes, rest)] += weight
    return weights


def _trace(sizes: Sequence[int], previous: Sequence[Sequence[int]]) -> tuple[int, ...]:
    at = len(sizes) - 1
    taken = [sizes[at]]
    for chosen in reversed(previous):
        before = chosen[at]
        if before < 0:
            # No further capacity helps these sizes: fewer do the same.
            continue
        at = before
        taken.append(sizes[at])
    return tuple(reversed(taken))
