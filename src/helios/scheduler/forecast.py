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
    START_WEIGHT,
    AcceptanceTable,
    Flags,
    Floats,
    Integers,
    Lanes,
    aged,
    grown,
    prior_means,
)

PRIOR_STEP: Final = 1.0 / 64.0
_UNSEEN: Final = -1


class SavedForecasts(NamedTuple):
    """One row's forecasts, taken out at preemption and put back at resume; arrays are copies."""

    means: Floats
    weights: Floats
    counts: Integers
    starts: Floats


class ForecastTable:
    """Forecasts of every row, [rows, depth], and a population prior of every program.

    A row's own means are shared by all programs, because they speak of the same proposals. What it
    started from is the prior that each program had when the request came; later rounds of others
    move the prior of newcomers alone, so a depth that a request never observed keeps its mean.
    """

    __slots__ = (
        "_counts",
        "_decay",
        "_depths",
        "_index",
        "_means",
        "_priors",
        "_starts",
        "_weights",
    )

    def __init__(self, rows: int, depth: int, programs: Sequence[int]) -> None:
        """Build it for the graph indices that report confidence."""
        self._index = {program: index for index, program in enumerate(programs)}
        self._depths: Integers = np.arange(1, depth + 1, dtype=np.int64)
        self._means: Floats = np.zeros((rows, depth))
        self._weights: Floats = np.full((rows, depth), START_WEIGHT)
        self._counts: Integers = np.full((rows, depth), _UNSEEN, dtype=np.int64)
        self._priors: Floats = np.tile(prior_means(depth), (len(programs), 1))
        self._starts: Floats = np.tile(self._priors, (rows, 1, 1))
        self._decay: Floats = (1.0 - PRIOR_STEP) ** np.arange(rows + 1, dtype=np.float64)

    def reset(self, row: int) -> None:
        """Give a row to a request without history: it starts from the priors of now."""
        self._means[row] = 0.0
        self._weights[row] = START_WEIGHT
        self._counts[row] = _UNSEEN
        self._starts[row] = self._priors

    def take(self, row: int) -> SavedForecasts:
        """Return a copy of a row's forecasts."""
        return SavedForecasts(
            self._means[row].copy(),
            self._weights[row].copy(),
            self._counts[row].copy(),
            self._starts[row].copy(),
        )

    def put(self, row: int, saved: SavedForecasts) -> None:
        """Give a row to a request that brings its forecasts back."""
        self._means[row] = saved.means
        self._weights[row] = saved.weights
        self._counts[row] = saved.counts
        self._starts[row] = saved.starts

    def prior(self, program: int) -> Floats:
        """Return a copy of one program's population prior [depth], as stored."""
        prior: Floats = self._priors[self._index[program]]
        return prior.copy()

    def means(self, rows: Integers, program: int) -> Floats:
        """Return the forecast survivals [n, depth] of rows under one program, nonincreasing."""
        own = self._counts[rows] >= 0
        values = np.where(own, self._means[rows], self._starts[rows, self._index[program]])
        return np.minimum.accumulate(values, axis=1)

    def means_of_programs(self, rows: Integers, programs: Sequence[int]) -> Floats:
        """Return `means` of several programs at once, [programs, n, depth]."""
        own = self._counts[rows] >= 0
        places = np.array([self._index[program] for program in programs])
        values = np.where(own, self._means[rows], self._starts[rows, places[:, None]])
        return np.minimum.accumulate(values, axis=2)

    def weights(self, rows: Integers, generated: Integers) -> Floats:
        """Return the aged weights [n, depth]; a depth without observation has the start weight."""
        counts = self._counts[rows]
        since = np.where(counts >= 0, counts, generated[:, None])
        return aged(self._weights[rows], since, generated)

    def observe(self, program: int, lanes: Lanes, values: Floats) -> None:
        """Learn the joint prefix probabilities [n, depths] of one completed round.

        A lane of ceiling c teaches depths 1 to c - 1, whatever the device offered it; a deeper
        forecast keeps its mean.
        """
        rows, generated, width = lanes.rows, lanes.generated, values.shape[1]
        seen = self._depths[:width] < lanes.ceilings[:, None]
        counts = self._counts[rows, :width]
        index = self._index[program]
        means = np.where(counts >= 0, self._means[rows, :width], self._starts[rows, index, :width])
        weights = grown(self.weights(rows, generated)[:, :width])
        learned = means + (values - means) / weights
        self._means[rows, :width] = np.where(seen, learned, self._means[rows, :width])
        self._weights[rows, :width] = np.where(seen, weights, self._weights[rows, :width])
        self._counts[rows, :width] = np.where(seen, generated[:, None], counts)
        self._move_prior(self._priors[index, :width], values, seen)

    def _move_prior(self, prior: Floats, values: Floats, seen: Flags) -> None:
        """Move the prior toward every lane's value in lane order, all lanes in one expression.

        p <- p + (y - p)/64 for y_1..y_k is p*a^k + sum of y_j*a^(k-j)/64, with a = 63/64.
        """
        order = np.cumsum(seen, axis=0)
        last = order[-1]
        shares = np.where(seen, self._decay[last - order] * PRIOR_STEP, 0.0)
        moved = prior * self._decay[last] + (shares * values).sum(axis=0)
        # The shares add up to one only up to rounding.
        prior[:] = np.clip(moved, 0.0, 1.0)


def priced_survivals(
    acceptance: AcceptanceTable,
    forecast: Floats,
    rows: Integers,
    generated: Integers,
) -> Floats:
    """Return what prices a predicted prefix of device-allocated rows, [n, depth], nonincreasing.

    Verified acceptance once its aged weight exceeds the start weight, the `forecast` means [n,
    depth] of the program before.
    """
    known = acceptance.weights(rows, LEARNED, generated) > START_WEIGHT
    values = np.where(known, acceptance.survivals(rows, LEARNED), forecast)
    return np.minimum.accumulate(values, axis=1)
