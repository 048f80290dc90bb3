"""Two fixed graphs in a row: which rows each of them serves, chosen jointly and exactly.

The first graph prepares newly ready rows, and may retire terminal ones; the following graph serves
rows that were ready before and at least one that the first made ready. With both durations fixed
every row is worth a fixed amount, so for each number k of newly ready rows in the following graph
the best choice is a prefix of each sorted group:

    first graph      [ k newly ready | terminal ............ | spare: more newly ready ]
    following graph  [ k newly ready | already ready ................ ]

and the best k is found by trying them all. One entry is one pair of graphs in one role of its
prompt row; all entries of a decision are evaluated together as arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]


class Sums(NamedTuple):
    """Prefix sums of row values, best row first: element n is the worth of the best n rows.

    `newly` and `ready` have one table per class of following graphs (shape [tables, rows + 1]),
    because a row's expected tokens depend on the width of the graph; `terminal` has one
    (shape [rows + 1]).
    """

    newly: Floats
    ready: Floats
    terminal: Floats


class Entries(NamedTuple):
    """Pairs of fixed graphs as arrays of one length.

    What a prompt takes is already subtracted: one enabled by the first graph occupies a row of
    both, one that was ready before a row of the following graph alone, and `constant` is its value.
    """

    first_rows: Counts
    """Rows of the first graph for newly ready decoders and terminal rows."""
    following_rows: Counts
    """Rows of the following graph for decoders."""
    fewest: Counts
    """Newly ready decoders that must be served: zero beside a newly ready prompt, else one or more.

    More than one where a smaller following graph holds every cohort of fewer (`fewest_newly`).
    """
    constant: Floats
    table: Counts
    """Which prefix sums of `Sums.newly` and `Sums.ready` the following graph reads."""
    decoder_gain: Floats
    """What each served decoder gains by the sequence's length: c * sigma * L."""
    terminal_gain: Floats
    """What each retired row gains: c_t * sigma_t * T + c_t * (L**2 - T**2) / 2."""


class Split(NamedTuple):
    """The best choice of every entry; `value` is -inf where the pair cannot be run."""

    value: Floats
    newly: Counts
    """k, the newly ready decoders that the following graph serves."""


def prefix_sums(values: Floats) -> Floats:
    """Return the sums of the largest 0, 1, ... n values of each row; shape [..., n + 1]."""
    ordered = -np.sort(-values, axis=-1)
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(ordered, axis=-1, out=sums[..., 1:])
    return sums


def fewest_newly(smaller_rows: Counts, ready: int, least: int) -> Counts:
    """Return the k from which a cohort no longer fits the next smaller following graph.

    `smaller_rows` is that graph's capacity, zero without one. A following graph that is filled
    serves min(B, ready + k) rows; while the smaller graph holds them all it does the same work, and
    timing must not make the larger one's padding preferable.
    """
    return np.maximum(least, smaller_rows - ready + 1)


def best_split(entries: Entries, sums: Sums) -> Split:
    """Return for every entry the best number of newly ready decoders; the smallest of equal ones.

    Exact: it equals the best of all cohorts with at least `fewest` newly ready decoders.
    """
    available = sums.newly.shape[-1] - 1
    most = np.minimum(np.minimum(entries.first_rows, entries.following_rows), available)
    value = np.full(len(most), -np.inf)
    newly = np.zeros(len(most), dtype=np.intp)
    if not len(most):
        return Split(value, newly)
    for count in range(int(entries.fewest.min()), int(most.max()) + 1):
        worth = value_at(entries, sums, np.intp(count))
        better = (count >= entries.fewest) & (count <= most) & (worth > value)
        value[better] = worth[better]
        newly[better] = count
    return Split(value, newly)


def value_at(entries: Entries, sums: Sums, newly: Counts | np.intp) -> Floats:
    """Return the value of every entry with `newly` newly ready decoders; only legal counts mean."""
    ready = ready_beside(entries, sums, newly)
    terminal = terminal_beside(entries, sums, newly)
    return (  # type: ignore[no-any-return]
        entries.constant
        + sums.newly[entries.table, newly]
        + sums.ready[entries.table, ready]
        + sums.terminal[terminal]
        + (newly + ready) * entries.decoder_gain
        + terminal * entries.terminal_gain
    )


def ready_beside(entries: Entries, sums: Sums, newly: Counts | np.intp) -> Counts:
    """Return the already ready decoders that fill the following graph."""
    return _within(entries.following_rows - newly, sums.ready.shape[-1] - 1)


def terminal_beside(entries: Entries, sums: Sums, newly: Counts | np.intp) -> Counts:
    """Return the terminal rows that fill the first graph; none where its kind cannot retire."""
    return _within(entries.first_rows - newly, sums.terminal.shape[-1] - 1)


def _within(spare: Counts, available: int) -> Counts:
    return np.minimum(np.maximum(spare, 0), available)


def saved_waiting(terminal_age: float, first_ms: Floats, whole_ms: Floats) -> Floats:
    """Return what a row retired at T no longer costs until L: c_t * (L**2 - T**2) / 2.

    The common waiting cost L/2 * c_t of every candidate charges it for the whole sequence.
    """
    return 0.5 * terminal_age * (whole_ms * whole_ms - first_ms * first_ms)


def sequence_rates(
    value: Floats, whole_ms: Floats, known: NDArray[np.bool_], waiting: float
) -> Floats:
    """Return value/L - L/2 * `waiting`; the plain value where a duration is indeterminate.

    `waiting` is the sum of the age coefficients of all active decoders and terminal rows.
    """
    length = np.where(known, whole_ms, 1.0)
    return np.where(known, value / length - 0.5 * length * waiting, value)
