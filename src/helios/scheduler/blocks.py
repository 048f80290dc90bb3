"""Candidates, and blocks of them: one entry per graph, its score in arrays, its cohort on demand.

Most entries of a decision are never looked at again, so a block keeps numbers and materialises the
lanes of an entry when it may win, or when someone asks for an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from helios.scheduler.geometry import Flags, Integers
from helios.scheduler.lanes import Lanes, LaterLanes
from helios.scheduler.streams import Floats
from helios.scheduler.utility import Lane
from helios.scheduler.waiting import Waiting


class Terms(NamedTuple):
    """What the value of a candidate with prerequisites consists of; the fields add up to it."""

    service: float = 0.0
    delivery: float = 0.0
    age: float = 0.0
    terminal: float = 0.0
    saved_waiting: float = 0.0
    """Waiting that rows retired by the first graph no longer cost until the sequence ends."""
    continuation: float = 0.0
    """Contributions of requests that need several stages more."""


class DeferredTerms:
    """Terms that are made when somebody asks for them, as nobody does for most candidates."""

    __slots__ = ("_make", "_terms")

    def __init__(self, make: Callable[[], Terms]) -> None:
        """Take what makes them, which must depend on nothing that changes later."""
        self._make = make
        self._terms: Terms | None = None

    @property
    def value(self) -> Terms:
        """The terms."""
        if self._terms is None:
            self._terms = self._make()
        return self._terms

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, DeferredTerms) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.value)


class Candidate(NamedTuple):
    """A shape with its cohort. The first four fields are the leading part of its rank."""

    determinate: bool
    negative_rate: float
    known_ms: float
    negative_served: int
    graph_index: int
    duration_ms: float
    lanes: Lanes
    """The sorted lanes that the cohort is a prefix of."""
    age_slope: float
    """Age credit that each served stream gains per ms of the graph's duration."""
    padding: int
    following_index: int | None
    following_ms: float
    prefill_row: int = -1
    """Place of a mixed graph's prompt row in the cohort; -1 for none."""
    is_mixed: bool = False
    following_lanes: LaterLanes | None = None
    """Everyone whom the following graph is expected to serve, its prompt row first."""
    parts: DeferredTerms | None = None
    """Given where the first graph is a prerequisite; other candidates follow from their lanes."""

    @property
    def terms(self) -> Terms | None:
        """What its value consists of, where that does not follow from its lanes."""
        return None if self.parts is None else self.parts.value

    @property
    def served(self) -> int:
        """Requests that the submitted graph advances."""
        return -self.negative_served

    @property
    def cohort(self) -> Sequence[Lane]:
        """The lanes of the submitted graph."""
        return self.lanes[: -self.negative_served]

    @property
    def streams(self) -> int:
        """Lanes that gain the age slope: all but a mixed graph's prompt row."""
        return self.served - (self.prefill_row >= 0)


RankKey = tuple[tuple[bool, float, float, int], tuple[int, ...], int, int, int, tuple[int, ...]]


def rank_key(candidate: Candidate) -> RankKey:
    """Return the place of a candidate in the policy's total order (smaller is better)."""
    following = candidate.following_index
    used = sorted((lane.last_used, lane.arrival) for lane in candidate.cohort)
    return (
        candidate[:4],
        tuple([last_used for last_used, _ in used]),
        candidate.padding,
        candidate.graph_index,
        -1 if following is None else following,
        tuple([arrival for _, arrival in used]),
    )


def rate_of(value: float, duration_ms: float, waiting: Waiting) -> float:
    """Return value per time less the waiting cost; the plain value while indeterminate."""
    if duration_ms <= 0.0:
        return value
    return value / duration_ms - waiting.cost(duration_ms)


def rates_of(values: Floats, durations_ms: Floats, waiting: Waiting) -> Floats:
    """Return `rate_of` of arrays."""
    if len(durations_ms) and durations_ms[durations_ms.argmin()] > 0.0:
        return values / durations_ms - waiting.costs(durations_ms)
    known = durations_ms > 0.0
    rates = np.divide(values, durations_ms, out=values.copy(), where=known)
    return np.where(known, rates - waiting.costs(durations_ms), rates)


class Block(Protocol):
    """Entries of one family: arrays [entries] of float64, int64 and bool."""

    @property
    def graph(self) -> Integers:
        """Graph index of the submitted graph."""

    @property
    def rate(self) -> Floats:
        """Score of the entry's best cohort, or an upper bound where `settled` is false."""

    @property
    def known_ms(self) -> Floats:
        """Known time; zero while nothing of it is measured."""

    @property
    def determinate(self) -> Flags:
        """Every duration that the entry depends on is measured."""

    @property
    def served(self) -> Integers:
        """Requests that the entry advances, at most where `settled` is false."""

    @property
    def settled(self) -> Flags:
        """Rate and served are those of the best cohort."""

    @property
    def is_settled(self) -> bool:
        """All entries are settled from the start."""

    @property
    def is_known(self) -> bool:
        """All entries are determinate."""

    def settle(self, entry: int, floor: float) -> None:
        """Replace the upper bound of an entry by the score of its best cohort, in place.

        Where no cohort reaches the score `floor`, it may be left open with a bound below it.
        """

    def best(self, entry: int) -> Candidate:
        """Return the entry's best cohort as a candidate."""

    def rivals(self, entry: int) -> list[Candidate]:
        """Return the cohorts among which is the entry's best undominated one, if there is any."""

    def hopeless(self) -> Flags | None:
        """Tell which entries have no undominated cohort at all; None where that is not known."""


class Listed:
    """A block of candidates that exist already."""

    __slots__ = (
        "candidates",
        "determinate",
        "graph",
        "is_known",
        "is_settled",
        "known_ms",
        "rate",
        "served",
        "settled",
    )

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self.graph: Integers = np.array([c.graph_index for c in candidates], dtype=np.int64)
        self.rate: Floats = np.array([-c.negative_rate for c in candidates])
        self.known_ms: Floats = np.array([c.known_ms for c in candidates])
        self.determinate: Flags = np.array([c.determinate for c in candidates], dtype=bool)
        self.served: Integers = np.array([c.served for c in candidates], dtype=np.int64)
        self.settled: Flags = np.ones(len(candidates), dtype=bool)
        self.is_settled = True
        self.is_known = all(c.determinate for c in candidates)

    def settle(self, entry: int, floor: float) -> None:
        """Do nothing: every entry is settled."""

    def best(self, entry: int) -> Candidate:
        """Return the candidate."""
        return self.candidates[entry]

    def rivals(self, entry: int) -> list[Candidate]:
        """Return the candidate alone: its maker has compared the alternatives."""
        return [self.candidates[entry]]

    def hopeless(self) -> Flags | None:
        """Return None: there is one candidate per entry, and it is at hand."""
        return None
