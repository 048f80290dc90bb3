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

MEAN: Final = 0
WEIGHT: Final = 1
COUNT: Final = 2
"""Planes of a cell: mean, weight and output count at the last observation of every depth."""

START_WEIGHT: Final = 2.0
POPULATION_CAP: Final = 64.0
"""Most observations that the population's mean counts: then one moves it by a sixty-fourth, as it
moves a forecast's prior."""
WEIGHT_CAP: Final = 128.0
HALF_LIFE_TOKENS: Final = 128.0
_DECAY: Final[Floats] = np.exp2(np.arange(1025, dtype=np.float64) / -HALF_LIFE_TOKENS)
"""What a weight is multiplied by after 0, 1, ... tokens, up to where the largest one counts less
than a weight that was never observed."""
_BONUS: Final = math.log(20.0) / 2.0


def prior_means(depth: int) -> Floats:
    """Return the mean of every depth before anything was observed: 0.5**d, float64 [depth]."""
    return 0.5 ** np.arange(1, depth + 1, dtype=np.float64)


def aged(cells: Floats, generated: Integers) -> Floats:
    """Return the weights of cells [planes, n, depth] at output counts `generated` [n].

    A weight halves with every 128 tokens generated since its depth's last observation.
    """
    halvings = cells[COUNT] - generated[:, None]
    halvings /= HALF_LIFE_TOKENS
    weights: Floats = np.exp2(halvings, out=halvings)
    weights *= cells[WEIGHT]
    return weights


def deepest(lengths: Integers) -> int:
    """Return the largest depth that lanes of these target rows can show; n is at least 1."""
    # The place of an extreme is found in a quarter of the time that a reduction takes.
    return int(lengths[lengths.argmax()]) - 1


def outweighs_start(cells: Floats, generated: Integers) -> Flags:
    """Tell, bool [n, depth], where `aged` is above the weight of a depth without observation."""
    ages = (generated[:, None] - cells[COUNT]).astype(np.int64)
    if ages.min(initial=0) < 0:
        return aged(cells, generated) > START_WEIGHT
    weights: Floats = _DECAY.take(ages, mode="clip")
    weights *= cells[WEIGHT]
    return weights > START_WEIGHT


def learn(cells: Floats, values: Floats, seen: Flags, generated: Integers, *, reach: int) -> None:
    """Average the seen values [n, depth] into cells [planes, n, depth], in place.

    w <- min(aged w + 1, 128), m <- m + (y - m)/w. What is not seen keeps its mean and its weight;
    nothing is seen beyond depth `reach`, which saves most of the work of shallow rounds.
    """
    if reach < seen.shape[1]:
        cells, values, seen = cells[:, :, :reach], values[:, :reach], seen[:, :reach]
    means, generated = cells[MEAN], generated.astype(np.float64)
    weights = aged(cells, generated)
    weights += 1.0
    np.minimum(weights, WEIGHT_CAP, out=weights)
    moved = values - means
    moved /= weights
    if np.count_nonzero(seen) == seen.size:
        means += moved
        cells[WEIGHT] = weights
        cells[COUNT] = generated[:, None]
        return
    np.add(means, moved, out=means, where=seen)
    np.copyto(cells[WEIGHT], weights, where=seen)
    np.copyto(cells[COUNT], generated[:, None], where=seen)


def mean_tokens(gains: Floats, limits: Sequence[int]) -> Floats:
    """Return the mean tokens of lanes of 1, 2, ... target rows, [depth + 1].

    `gains` [n, depth] are survivals, `limits` [n] the outputs that each lane has left.
    """
    count, depth = gains.shape
    if min(limits, default=0) <= depth:
        gains = np.where(np.arange(1, depth + 1) < np.array(limits)[:, None], gains, 0.0)
    tokens, beyond = [1.0], 0.0
    for total in np.add.reduce(gains, axis=0).tolist():
        beyond += total / count
        tokens.append(1.0 + beyond)
    return np.array(tokens)


class Lanes(NamedTuple):
    """The generating lanes of one completed round: distinct rows, one entry per lane."""

    rows: Integers
    offered: Integers
    """Target rows that each lane was given, the pending token's included."""
    ceilings: Integers
    """The most it could have been given, frozen at commit."""
    produced: Integers
    """Tokens that it committed, 1 to `offered`."""
    terminated: Flags | None
    """Its last token was an end token; None where no lane's was."""
    generated: Integers
    """Output count after the round."""


class Outcome(NamedTuple):
    """What a round shows of each lane and depth."""

    seen: Flags
    """Offered and not censored, bool [n, depth]."""
    accepted: Floats
    """One where the prefix was accepted, else zero, [n, depth]."""


class AcceptanceTable:
    """Prefix acceptance of every row: cells [source, plane, rows, depth]; d - 1 is depth d.

    One array, so that a read or an update of many rows is one gather or scatter.
    """

    __slots__ = ("_below", "_is_taught", "_known", "_ones", "_planes", "_start", "_trust", "depth")

    def __init__(self, rows: int, depth: int, *, population_weight: float = 0.0) -> None:
        """Build a table of untrained rows; `depth` is the catalog's largest proposal depth.

        `population_weight` is the most that a row which is reset trusts what all rows have shown;
        at 2 or less it starts at the prior.
        """
        self.depth = depth
        self._below: Flags = np.tri(depth + 2, depth, -2, dtype=bool)
        """Which depths are below 0, 1, ... depth + 1, which is below everything."""
        self._ones: Floats = self._below.astype(np.float64)
        self._start: Floats = np.zeros((SOURCES, 3, depth))
        self._start[:, MEAN] = prior_means(depth)
        self._start[:, WEIGHT] = START_WEIGHT
        self._known: Floats = np.full((SOURCES, depth), START_WEIGHT)
        """Observations that the means of `_start` rest on, the prior among them."""
        trust = min(population_weight, WEIGHT_CAP)
        self._trust = [trust] * SOURCES
        """Most that a start weighs, by source."""
        self._is_taught = [trust > START_WEIGHT] * SOURCES
        """What is observed moves `_start`, by source: not where the host has said what it is."""
        self._planes: Floats = np.repeat(self._start[:, :, None], rows, axis=2)

    @property
    def _cells(self) -> Floats:
        """The same cells by row: [rows, source, plane, depth]."""
        return self._planes.transpose(2, 0, 1, 3)

    def seed(
        self, source: int, survivals: Sequence[float], weight: float, *, is_taught: bool = False
    ) -> None:
        """Let every row that is reset from now on start at an earlier process's estimates.

        Depths beyond `survivals` keep the prior, or the last survival where that is less. With
        `is_taught` completed rounds move them from there, and no start weighs more than `weight`.
        Raises InvalidRequestError for survivals that are no nonincreasing probabilities, or a
        weight outside 2 to 128.
        """
        count = len(survivals)
        if not 1 <= count <= self.depth:
            raise InvalidRequestError(f"survivals: 1 to {self.depth} depths, not {count}")
        # Written so that a NaN, which compares false with everything, is refused too.
        if not all(above >= below for above, below in itertools.pairwise((1.0, *survivals, 0.0))):
            raise InvalidRequestError(f"survivals must fall from 1 to 0, not {survivals!r}")
        if not START_WEIGHT <= weight <= WEIGHT_CAP:
            raise InvalidRequestError(f"weight must be 2 to 128, not {weight!r}")
        self._start[source, MEAN, :count] = survivals
        self._start[source, WEIGHT, :count] = weight
        self._is_taught[source] = is_taught
        if is_taught:
            self._known[source, :count] = weight
            self._trust[source] = weight

    def reset(self, row: int) -> None:
        """Give a row to a request without history: it starts where the population stands."""
        self._cells[row] = self._start

    def take(self, row: int) -> Floats:
        """Return a copy of a row's cells, both sources, for a request that leaves it."""
        cells: Floats = self._cells[row].copy()
        return cells

    def put(self, row: int, cells: Floats) -> None:
        """Give a row to a request that brings its cells back."""
        self._cells[row] = cells

    def survivals(self, rows: Integers, source: int) -> Floats:
        """Return the survival estimate of every prefix, float64 [n, depth], nonincreasing."""
        return np.minimum.accumulate(self._planes[source, MEAN].take(rows, axis=0), axis=1)

    def informed(self, rows: Integers, source: int, generated: Integers) -> tuple[Floats, Flags]:
        """Return `survivals`, and which of them rest on what was observed, bool [n, depth].

        Those have an aged weight above that of a depth without observation; what others observed
        does not count, unless the host seeded it.
        """
        cells = self._planes[source].take(rows, axis=1)
        informed = outweighs_start(cells, generated)
        if self._is_taught[source]:
            informed &= cells[COUNT] > 0.0
        return np.minimum.accumulate(cells[MEAN], axis=1), informed

    def weights(self, rows: Integers, source: int, generated: Integers) -> Floats:
        """Return the aged weights [n, depth] of rows that have `generated` [n] output tokens."""
        return aged(self._planes[source].take(rows, axis=1), generated)

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
        reach = lanes.offered
        if lanes.terminated is not None:
            reach = np.where(lanes.terminated, lanes.produced, reach)
        return Outcome(
            self._below.take(reach, axis=0, mode="clip"),
            self._ones.take(lanes.produced, axis=0, mode="clip"),
        )

    def observe(
        self, source: int, lanes: Lanes, outcome: Outcome, survival: Floats | None = None
    ) -> Floats:
        """Learn one completed round from `outcome(lanes)`; return the `survivals` before it.

        `survival` [n, depth] replaces the binary outcome of evaluated depths by the program's own
        probabilities; what is censored stays so.
        """
        seen = outcome.seen
        values = outcome.accepted if survival is None else np.where(seen, survival, 0.0)
        cells = self._planes[source].take(lanes.rows, axis=1)
        before: Floats = np.minimum.accumulate(cells[MEAN], axis=1)
        learn(cells, values, seen, lanes.generated, reach=deepest(lanes.offered))
        self._planes[source][:, lanes.rows] = cells
        if self._is_taught[source]:
            self._teach_population(source, np.where(seen, values, 0.0), seen)
        return before

    def _teach_population(self, source: int, values: Floats, seen: Flags) -> None:
        """Average what a round showed into the means that later requests start from.

        k values of mean y at a depth: m <- m + (y - m)*k/(w + k), w <- min(w + k, 64). The lanes of
        a round count alike, whatever their rows. `values` are zero where nothing was seen.
        """
        counts, known = np.add.reduce(seen, axis=0), self._known[source]
        means, weights = self._start[source, MEAN], self._start[source, WEIGHT]
        known += counts
        means += (np.add.reduce(values, axis=0) - counts * means) / known
        # Rounding alone takes an average of probabilities out of their range.
        np.clip(means, 0.0, 1.0, out=means)
        np.minimum(known, POPULATION_CAP, out=known)
        np.minimum(known, self._trust[source], out=weights)
