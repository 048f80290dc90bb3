"""Confidence forecasts: what a program's own confidence says of a row's coming proposals.

A forecast averages the joint prefix probabilities of completed rounds; it never sees acceptance. A
depth without observation of its own reads the population prior of the program that asks.
See docs/design/scheduling-utility.md section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from helios.scheduler.acceptance import (
    LEARNED,
    MEAN,
    START_WEIGHT,
    WEIGHT,
    AcceptanceTable,
    Flags,
    Floats,
    Integers,
    Lanes,
    aged,
    deepest,
    learn,
    prior_means,
)

PRIOR_STEP: Final = 1.0 / 64.0
OWN: Final = 3
"""Plane of a forecast's cell: one once the request has observed the depth itself."""


class SavedForecasts(NamedTuple):
    """One row's forecasts, taken out at preemption and put back at resume; arrays are copies."""

    cells: Floats
    starts: Floats


class ForecastTable:
    """Forecasts of every row, and a population prior of every program.

    A row's own means are shared by all programs, because they speak of the same proposals. What it
    started from is the prior that each program had when the request came; later rounds of others
    move the prior of newcomers alone, so a depth that a request never observed keeps its mean.
    """

    __slots__ = (
        "_agrees",
        "_decay",
        "_depths",
        "_highest",
        "_index",
        "_planes",
        "_priors",
        "_starts",
        "version",
    )

    def __init__(self, rows: int, depth: int, programs: Sequence[int]) -> None:
        """Build it for the graph indices that report confidence."""
        self._index = {program: index for index, program in enumerate(programs)}
        self.version = 0
        """Rises with every change, so that what was read of a version need not be read again."""
        self._depths: Integers = np.arange(1, depth + 1, dtype=np.int64)
        self._planes: Floats = np.zeros((4, rows, depth))
        self._planes[WEIGHT] = START_WEIGHT
        self._priors: Floats = np.tile(prior_means(depth), (len(programs), 1))
        self._starts: Floats = np.tile(self._priors, (rows, 1, 1))
        self._highest: Floats = self._starts.max(axis=1, initial=0.0)
        self._agrees: Flags = np.ones((rows, depth), dtype=bool)
        self._decay: Floats = (1.0 - PRIOR_STEP) ** np.arange(rows + 1, dtype=np.float64)

    @property
    def _cells(self) -> Floats:
        """The cells by row: [rows, plane, depth]."""
        return self._planes.transpose(1, 0, 2)

    def reset(self, row: int) -> None:
        """Give a row to a request without history: it starts from the priors of now."""
        self._cells[row] = 0.0
        self._cells[row, WEIGHT] = START_WEIGHT
        self._start(row, self._priors)

    def take(self, row: int) -> SavedForecasts:
        """Return a copy of a row's forecasts."""
        return SavedForecasts(self._cells[row].copy(), self._starts[row].copy())

    def put(self, row: int, saved: SavedForecasts) -> None:
        """Give a row to a request that brings its forecasts back."""
        self._cells[row] = saved.cells
        self._start(row, saved.starts)

    def _start(self, row: int, starts: Floats) -> None:
        # What all programs have in common is asked for by every decision, and changes only here.
        self.version += 1
        self._starts[row] = starts
        self._highest[row] = starts.max(axis=0, initial=0.0)
        self._agrees[row] = self._highest[row] == starts.min(axis=0, initial=1.0)

    def prior(self, program: int) -> Floats:
        """Return a copy of one program's population prior [depth], as stored."""
        prior: Floats = self._priors[self._index[program]]
        return prior.copy()

    def means(self, rows: Integers, program: int) -> Floats:
        """Return the forecast survivals [n, depth] of rows under one program, nonincreasing."""
        cells = self._planes.take(rows, axis=1)
        starts = self._starts[rows, self._index[program]]
        return np.minimum.accumulate(np.where(cells[OWN], cells[MEAN], starts), axis=1)

    def highest_means(self, rows: Integers) -> tuple[Floats, bool]:
        """Return the largest `means` that any program has, and whether all have the same."""
        cells = self._planes.take(rows, axis=1)
        own = cells[OWN] != 0.0
        agree = np.count_nonzero(own | self._agrees.take(rows, axis=0)) == own.size
        means = np.where(own, cells[MEAN], self._highest.take(rows, axis=0))
        return np.minimum.accumulate(means, axis=1), agree

    def weights(self, rows: Integers, generated: Integers) -> Floats:
        """Return the aged weights [n, depth] of rows that have `generated` [n] output tokens."""
        return aged(self._planes.take(rows, axis=1), generated)

    def observe(self, program: int, lanes: Lanes, values: Floats) -> Floats:
        """Learn the joint prefix probabilities [n, depth] of one completed round.

        It returns the `means` before it.

        A lane of ceiling c teaches depths 1 to c - 1, whatever the device offered it; deeper values
        are not looked at and deeper forecasts keep their means.
        """
        rows, generated, index = lanes.rows, lanes.generated, self._index[program]
        seen = self._depths < lanes.ceilings[:, None]
        if seen.any():
            self.version += 1
        values = np.where(seen, values, 0.0)
        cells = self._planes.take(rows, axis=1)
        means, own = cells[MEAN], cells[OWN]
        # A depth that stays unseen is not marked as own, so its mean is never read.
        np.copyto(means, self._starts[rows, index], where=own == 0.0)
        before: Floats = np.minimum.accumulate(means, axis=1)
        learn(cells, values, seen, generated, reach=deepest(lanes.ceilings))
        np.copyto(own, 1.0, where=seen)
        self._planes[:, rows] = cells
        self._move_prior(self._priors[index], values, seen)
        return before

    def _move_prior(self, prior: Floats, values: Floats, seen: Flags) -> None:
        """Move the prior toward every seen value in lane order, all lanes in one expression.

        `values` are zero where nothing was seen.
        p <- p + (y - p)/64 for y_1..y_k is p*a^k + sum of y_j*a^(k-j)/64, with a = 63/64.
        """
        count = len(seen)
        if (seen[0] == seen).all():
            # Every lane saw the same depths: the j-th of k has the same share of each of them.
            moved = np.where(seen[0], prior * self._decay[count], prior)
            shares = self._decay[count - 1 :: -1, None] if count > 1 else self._decay[:1, None]
        else:
            order = np.cumsum(seen, axis=0)
            last = order[-1]
            moved = prior * self._decay[last]
            shares = self._decay[last - order]
        moved += (shares * values).sum(axis=0) * PRIOR_STEP
        # The shares add up to one only up to rounding.
        np.minimum(moved, 1.0, out=prior)


def priced_survivals(
    acceptance: AcceptanceTable,
    forecast: Floats,
    rows: Integers,
    generated: Integers,
    *,
    source: int = LEARNED,
) -> Floats:
    """Return what prices a predicted prefix of device-allocated rows, [n, depth], nonincreasing.

    Verified acceptance once its aged weight exceeds the start weight, the `forecast` means [n,
    depth] of the program before.
    """
    survivals, informed = acceptance.informed(rows, source, generated)
    return priced_from(informed, survivals, forecast)


def priced_from(informed: Flags, survivals: Floats, forecast: Floats) -> Floats:
    """Return `priced_survivals` of what was read already; see `AcceptanceTable.informed`."""
    return np.minimum.accumulate(np.where(informed, survivals, forecast), axis=1)
