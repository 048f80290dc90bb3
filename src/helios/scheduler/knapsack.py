"""The best cohort of whole lanes under both B requests and P target rows, exactly.

Lanes of one length differ in value alone, so a cohort takes the best ones of each length and is
described by one count per length. Counts of all lengths but the longest are tabulated; the longest
takes what still fits, because no lane has a negative value. Few lanes are shorter than their
round (a request limit shortens them), so the table is small where it matters.

Ties: more requests, less recently used requests (sorted commit numbers, compared in order), fewer
unused target rows, earlier admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from helios.scheduler.geometry import Integers
from helios.scheduler.streams import Floats

Tie = tuple[int, int]
"""Additive ranks of a cohort by last use and by admission; larger is better."""


class _Group(NamedTuple):
    """The lanes of one length, the best first."""

    length: int
    members: Integers
    sums: Floats
    """Values of the best 0, 1, ... lanes."""
    ties: Sequence[Tie]
    """Tie ranks of the best 0, 1, ... lanes."""


class FixedLanes:
    """Lanes of fixed lengths, ready to be packed under any B and P.

    `values` float64 [n] are nonnegative and `lengths` int64 [n] positive, both with the less
    recently used lanes first, and among them the earlier admitted; `last_used` [n] are their
    commit numbers.
    """

    __slots__ = ("_groups", "_tables")

    def __init__(self, values: Floats, lengths: Integers, last_used: Sequence[int]) -> None:
        ties = _tie_ranks(last_used)
        self._groups = [
            _group(int(length), values, np.flatnonzero(lengths == length), ties)
            for length in np.unique(lengths)
        ]
        self._tables: list[Floats] = [np.zeros((1, 1))]
        for group in self._groups[:-1]:
            self._tables.append(_extended(self._tables[-1], group))

    def best(self, requests: int, rows: int, above: int = 0, beyond: int = -1) -> Integers | None:
        """Return the members of the best cohort, in the order of the lanes; None without any.

        More than `beyond` and at most `requests` lanes, of together more than `above` and at most
        `rows` rows.
        """
        if not self._groups:
            is_legal = above < 0 <= rows and beyond < 0 <= requests
            return np.zeros(0, dtype=np.int64) if is_legal else None
        table = self._tables[-1][: requests + 1, : rows + 1]
        count = np.arange(table.shape[0])[:, None]
        spare = rows - np.arange(table.shape[1])[None, :]
        last = self._groups[-1]
        rest = np.minimum(np.minimum(requests - count, spare // last.length), len(last.members))
        total = table + last.sums[rest]
        enough = (rows - spare + rest * last.length > above) & (count + rest > beyond)
        total = np.where(enough, total, -np.inf)
        best = total == total.max()
        if not np.isfinite(total[best][0]):
            return None
        served = np.where(best, count + rest, -1)
        ends = np.argwhere(served == served.max())
        found = [self._traced(int(k), int(p), int(rest[k, p])) for k, p in ends]
        used = [int(p) + int(rest[k, p]) * last.length for k, p in ends]
        places = range(len(found))
        winner = max(places, key=lambda i: (found[i][0][0], used[i], found[i][0][1]))
        members = [self._groups[i].members[:c] for i, c in enumerate(found[winner][1])]
        return np.sort(np.concatenate(members))

    def _traced(self, lanes: int, rows: int, rest: int) -> tuple[Tie, list[int]]:
        """Return the best tie rank and the counts by length of one state of the last table."""
        memo: dict[tuple[int, int, int], tuple[Tie, list[int]]] = {(0, 0, 0): ((0, 0), [])}
        states = [(len(self._tables) - 1, lanes, rows)]
        while states:
            state = states[-1]
            before = self._before(state) if state not in memo else []
            missing = [previous for previous, _ in before if previous not in memo]
            if missing:
                states += missing
                continue
            states.pop()
            if before:
                ties = self._groups[state[0] - 1].ties
                options = [(memo[previous], taken) for previous, taken in before]
                (tie, counts), taken = max(options, key=lambda o: _sum(o[0][0], ties[o[1]]))
                memo[state] = _sum(tie, ties[taken]), [*counts, taken]
        tie, counts = memo[len(self._tables) - 1, lanes, rows]
        return _sum(tie, self._groups[-1].ties[rest]), [*counts, rest]

    def _before(self, state: tuple[int, int, int]) -> list[tuple[tuple[int, int, int], int]]:
        """Return the states that reach this one at its value, with the lanes taken on the way."""
        level, lanes, rows = state
        group, table = self._groups[level - 1], self._tables[level - 1]
        value = self._tables[level][lanes, rows]
        found = []
        for taken in range(min(lanes, len(group.members)) + 1):
            k, p = lanes - taken, rows - taken * group.length
            inside = k < table.shape[0] and 0 <= p < table.shape[1]
            if inside and table[k, p] + group.sums[taken] == value:
                found.append(((level - 1, k, p), taken))
        return found


def _sum(left: Tie, right: Tie) -> Tie:
    return left[0] + right[0], left[1] + right[1]


def _tie_ranks(last_used: Sequence[int]) -> list[Tie]:
    """Return additive tie ranks: sums compare as the sorted tuples of equally large cohorts do.

    Of two sorted tuples of equal length the first is smaller exactly when it has more entries of
    the smallest number whose multiplicities differ; a base above every multiplicity keeps numbers
    apart.
    """
    count = len(last_used)
    levels = sorted(dict.fromkeys(last_used))
    place = {number: len(levels) - i for i, number in enumerate(levels)}
    return [((count + 1) ** place[number], 1 << (count - i)) for i, number in enumerate(last_used)]


def _group(length: int, values: Floats, members: Integers, ties: Sequence[Tie]) -> _Group:
    ranked = members[np.argsort(-values[members], kind="stable")]
    sums = np.zeros(len(ranked) + 1)
    np.cumsum(values[ranked], out=sums[1:])
    running: list[Tie] = [(0, 0)]
    for member in ranked:
        running.append(_sum(running[-1], ties[member]))
    return _Group(length, ranked, sums, running)


def _extended(table: Floats, group: _Group) -> Floats:
    """Return the best values by exact (lanes, rows) once `group` may be taken from as well."""
    lanes, rows = table.shape
    size = len(group.members)
    wider = np.full((lanes + size, rows + size * group.length), -np.inf)
    for taken in range(size + 1):
        offset = taken * group.length
        window = wider[taken : taken + lanes, offset : offset + rows]
        np.maximum(window, table + group.sums[taken], out=window)
    return wider
