"""Verified acceptance: how likely the first d proposals of a row are all accepted, by source.

One observation per completed round and depth. Stored means are each depth's own history; readers
see their running minimum, because a longer prefix cannot survive more often than a shorter one.
See docs/design/scheduling-utility.md section 7.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.errors import InvalidRequestError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LEARNED: Final = 0
"""Source index of proposals that a draft model produces."""
COPY: Final = 1
"""Source index of proposals that the host supplies as a copied prefix."""
SOURCES: Final = 2

START_WEIGHT: Final = 2.0
WEIGHT_CAP: Final = 128.0
HALF_LIFE_TOKENS: Final = 128.0
_BONUS: Final = math.log(20.0) / 2.0


def prior_means(depth: int) -> Floats:
    """Return the mean of every depth before anything was observed: 0.5**d, float64 [depth]."""
    return 0.5 ** np.arange(1, depth + 1, dtype=np.float64)


def aged(weights: Floats, counts: Integers, generated: Integers) -> Floats:
    """Return weights [n, depth] decayed over the tokens generated since each depth's last value.

    `counts` [n, depth] are output counts at the last observation, `generated` [n] those of now.
    """
    return weights * np.exp2((counts - generated[:, None]) / HALF_LIFE_TOKENS)


def grown(weights: Floats) -> Floats:
    """Return the weights after one more observation."""
    return np.minimum(weights + 1.0, WEIGHT_CAP)


class SavedEstimates(NamedTuple):
    """One row's estimates, taken out at preemption and put back at resume; arrays are copies."""

    means: Floats
    weights: Floats
    counts: Integers


class Lanes(NamedTuple):
    """The generating lanes of one completed round: distinct rows, one entry per lane."""

    rows: Integers
    offered: Integers
    """Target rows that each lane was given, the pending token's included."""
    ceilings: Integers
    """The most it could have been given, frozen at commit."""
    produced: Integers
    """Tokens that it committed, 1 to `offered`."""
    terminated: Flags
    """Its last token was an end token."""
    generated: Integers
    """Output count after the round."""


class Outcome(NamedTuple):
    """What a round shows of each lane and depth."""

    seen: Flags
    """Offered and not censored, bool [n, depth]."""
    accepted: Floats
    """One where the prefix was accepted, else zero, [n, depth]."""


class AcceptanceTable:
    """Prefix acceptance of every row, matrices [rows, source, depth]; index d - 1 is depth d."""

    __slots__ = ("_counts", "_depths", "_means", "_start", "_weights")

    def __init__(self, rows: int, depth: int) -> None:
        """Build a table of untrained rows; `depth` is the catalog's largest proposal depth."""
        shape = (rows, SOURCES, depth)
        self._depths: Integers = np.arange(1, depth + 1, dtype=np.int64)
        self._means: Floats = np.empty(shape)
        self._weights: Floats = np.empty(shape)
        self._counts: Integers = np.empty(shape, dtype=np.int64)
        self._start = SavedEstimates(
            np.tile(prior_means(depth), (SOURCES, 1)),
            np.full((SOURCES, depth), START_WEIGHT),
            np.zeros((SOURCES, depth), dtype=np.int64),
        )
        for row in range(rows):
            self.reset(row)

    @property
    def depth(self) -> int:
        """The deepest proposal that the table knows."""
        return len(self._depths)

    def seed(self, source: int, survivals: Sequence[float], weight: float) -> None:
        """Let every row that is reset from now on start at an earlier process's estimates.

        Depths beyond `survivals` keep the prior, or the last survival where that is less. Raises
        InvalidRequestError for survivals that are no nonincreasing probabilities, or a weight
        outside 2 to 128.
        """
        count = len(survivals)
        if not 1 <= count <= self.depth:
            raise InvalidRequestError(f"survivals: 1 to {self.depth} depths, not {count}")
        # Written so that a NaN, which compares false with everything, is refused too.
        if not all(above >= below for above, below in itertools.pairwise((1.0, *survivals, 0.0))):
            raise InvalidRequestError(f"survivals must fall from 1 to 0, not {survivals!r}")
        if not START_WEIGHT <= weight <= WEIGHT_CAP:
            raise InvalidRequestError(f"weight must be 2 to 128, not {weight!r}")
        self._start.means[source, :count] = survivals
        self._start.weights[source, :count] = weight

    def reset(self, row: int) -> None:
        """Give a row to a request without history."""
        self.put(row, self._start)

    def take(self, row: int) -> SavedEstimates:
        """Return a copy of a row's estimates, both sources."""
        return SavedEstimates(
            self._means[row].copy(), self._weights[row].copy(), self._counts[row].copy()
        )

    def put(self, row: int, saved: SavedEstimates) -> None:
        """Give a row to a request that brings its estimates back."""
        self._means[row] = saved.means
        self._weights[row] = saved.weights
        self._counts[row] = saved.counts

    def survivals(self, rows: Integers, source: int) -> Floats:
        """Return the survival estimate of every prefix, float64 [n, depth], nonincreasing."""
        return np.minimum.accumulate(self._means[rows, source], axis=1)

    def weights(self, rows: Integers, source: int, generated: Integers) -> Floats:
        """Return the aged weights [n, depth] of rows that have `generated` [n] output tokens."""
        return aged(self._weights[rows, source], self._counts[rows, source], generated)

    def optimistic(self, rows: Integers, source: int, generated: Integers) -> Floats:
        """Return the bounded optimistic survivals [n, depth], for acceptance learning alone.

        min(1, mean + sqrt(ln 20 / (2 * aged weight))), nonincreasing over depth.
        """
        weights = self.weights(rows, source, generated)
        # The quotient overflows to infinity when a weight has aged away; the bound is 1 then.
        with np.errstate(divide="ignore", over="ignore"):
            raised = self.survivals(rows, source) + np.sqrt(_BONUS / weights)
        return np.minimum.accumulate(np.minimum(raised, 1.0), axis=1)

    def outcome(self, lanes: Lanes) -> Outcome:
        """Return which depths a round observes, and what it saw of them.

        A lane of `offered` rows that committed m tokens shows depths below m accepted and the other
        offered ones not; an end token hides what would have followed it. A lane of one row shows
        nothing.
        """
        reach = np.where(lanes.terminated, lanes.produced, lanes.offered)
        accepted = (self._depths < lanes.produced[:, None]).astype(np.float64)
        return Outcome(self._depths < reach[:, None], accepted)

    def observe(
        self, source: int, lanes: Lanes, outcome: Outcome, survival: Floats | None = None
    ) -> None:
        """Learn one completed round from `outcome(lanes)`.

        `survival` [n, depths] replaces the binary outcome of its depths by the program's own
        probabilities; what is censored stays so.
        """
        values = outcome.accepted
        if survival is not None:
            width = survival.shape[1]
            values = np.concatenate((survival, values[:, width:]), axis=1)
        rows, generated = lanes.rows, lanes.generated
        means = self._means[rows, source]
        stored, counts = self._weights[rows, source], self._counts[rows, source]
        weights = grown(aged(stored, counts, generated))
        seen = outcome.seen
        self._means[rows, source] = np.where(seen, means + (values - means) / weights, means)
        self._weights[rows, source] = np.where(seen, weights, stored)
        self._counts[rows, source] = np.where(seen, generated[:, None], counts)
