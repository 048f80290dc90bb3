"""Two fixed graphs in a row: which rows each of them serves, chosen jointly and exactly.

The first graph prepares newly ready rows, and may retire terminal ones; the following graph serves
rows that were ready before and at least one that the first made ready. With both durations fixed
every row is worth a fixed amount, so for each number k of newly ready rows in the following graph
the best choice is a prefix of each sorted group:

    first graph      [ k newly ready | terminal ............ | spare: more newly ready ]
    following graph  [ k newly ready | already ready ................ ]

and the best k is found by trying them all. What a following graph is worth with k newly ready
decoders does not depend on the first graph, so it is computed once per following graph; the pairs
of a decision are then evaluated together as arrays [first graphs, following graphs].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Following(NamedTuple):
    """Following graphs, each in one role of its prompt row: absent, ready before, or enabled."""

    value: Floats
    """Best value with exactly k newly ready decoders [graphs, k + 1]; -inf where k is no choice."""
    streams: Counts
    """Decoders then served, the newly ready ones included [graphs, k + 1]."""
    enabled: Counts
    """Rows of the first graph that the prompt takes [graphs]: 1 when that graph enables it."""


class First(NamedTuple):
    """First graphs of one kind, and what their rows gain in front of each following graph."""

    rows: Counts
    """Rows for newly ready and for retired requests [first graphs]."""
    terminal: Floats
    """Prefix sums of the values of terminal rows; one zero where the kind cannot retire."""
    stream_gain: Floats
    """What each decoder served gains by the length: c * sigma * L [first graphs, following]."""
    terminal_gain: Floats
    """What each retired row gains: c_t * sigma_t * T + the saved waiting; the same shape."""


class Split(NamedTuple):
    """The best choice of every pair [first graphs, following graphs]."""

    value: Floats
    """-inf where the pair cannot be run."""
    newly: Counts
    """k, the newly ready decoders that the following graph serves; the smallest of equal ones."""


def prefix_sums(values: Floats) -> Floats:
    """Return the sums of the largest 0, 1, ... n values of each row; shape [..., n + 1]."""
    ordered = -np.sort(-values, axis=-1)
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(ordered, axis=-1, out=sums[..., 1:])
    return sums


def following_values(
    rows: Counts, fewest: Counts, constant: Floats, newly: Floats, ready: Floats
) -> tuple[Floats, Counts]:
    """Return `value` and `streams` of graphs whose rows alone limit their cohort.

    `rows` [graphs] are those left for decoders, `constant` [graphs] the value of the prompt.
    `newly` and `ready` are prefix sums of lane values [graphs, n + 1]: a lane's expected tokens
    depend on the width of the graph.
    """
    count = np.arange(newly.shape[1])
    spare = rows[:, None] - count
    beside = np.minimum(np.maximum(spare, 0), ready.shape[1] - 1)
    value = constant[:, None] + newly + np.take_along_axis(ready, beside, axis=1)
    legal = (count >= fewest[:, None]) & (spare >= 0)
    return np.where(legal, value, -np.inf), count + beside


def best_split(first: First, following: Following) -> Split:
    """Return for every pair the best number of newly ready decoders.

    Exact: it equals the best of all cohorts that `following` admits.
    """
    value = np.full(first.stream_gain.shape, -np.inf)
    newly = np.zeros(value.shape, dtype=np.int64)
    free = first.rows[:, None] - following.enabled
    most = min(int(first.rows.max(initial=0)), following.value.shape[1] - 1)
    for count in range(most + 1):
        worth = values_at(first, following, count)
        better = (free >= count) & (worth > value)
        value = np.where(better, worth, value)
        newly = np.where(better, count, newly)
    return Split(value, newly)


def values_at(first: First, following: Following, count: int) -> Floats:
    """Return the value of every pair with `count` newly ready decoders."""
    retired = retired_at(first, following, count)
    return (
        following.value[:, count]
        + following.streams[:, count] * first.stream_gain
        + first.terminal[retired]
        + retired * first.terminal_gain
    )


def retired_at(first: First, following: Following, count: int) -> Counts:
    """Return the terminal rows that fill what `count` newly ready decoders leave of the first."""
    spare = first.rows[:, None] - following.enabled - count
    retired: Counts = np.minimum(np.maximum(spare, 0), len(first.terminal) - 1)
    return retired


def saved_waiting(terminal_age: float, first_ms: Floats, whole_ms: Floats) -> Floats:
    """Return what a row retired at T no longer costs until L: c_t * (L**2 - T**2) / 2.

    The common waiting cost L/2 * c_t of every candidate charges it for the whole sequence.
    """
    return 0.5 * terminal_age * (whole_ms * whole_ms - first_ms * first_ms)
