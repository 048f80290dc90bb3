"""The best program of a decision among decoders alone, without pricing every program exactly.

Bounds that hold in floating point rule out nearly all programs: a bound is the exact formula on
values that are no smaller, and rounding is monotone. What is left is scored by the very operations
of generation.py, in their order, so that scores, ties and candidates are the same bit for bit.
Where this cannot decide it says so, and the general path compares everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from helios.scheduler.blocks import Candidate, rank_key, rate_of
from helios.scheduler.bounds import tops_of_all
from helios.scheduler.config import DecodeMode
from helios.scheduler.dominance import is_dominated
from helios.scheduler.geometry import Contest, Flags, Generating, Integers
from helios.scheduler.lanes import DeferredLanes
from helios.scheduler.rounds import lanes_in_order
from helios.scheduler.streams import Floats, LaneTable, Streams, lane_values, ranked, running_sums
from helios.scheduler.utility import Lane, View, Yields
from helios.scheduler.waiting import Waiting

ROOM = 1.0 + 1e-12
"""What a bound of a sum of up to 64 values and credits is multiplied by: another order of adding
them moves it by less than 1e-13 of itself."""


class _Row(NamedTuple):
    """The lanes of one class; arrays [n]."""

    tokens: Floats
    values: Floats
    lengths: Integers | None
    """None where every lane has the width of the class."""
    order: Integers
    """Streams by value, the best first."""


class Verdict(NamedTuple):
    """What is known of the programs that serve decoders alone."""

    winner: Candidate | None
    """The first by rank of those that bounds price exactly; None where all stay below the floor."""
    best: float
    """The score of the winner, or the floor where there is none."""
    left: Integers
    """Places in the contest of programs that may have this score or more, whose cohort or yields
    have to be found first."""


NONE_LEFT: Integers = np.zeros(0, dtype=np.int64)
MOST_ALONE = 4
"""Most programs that are bounded one by one; more are bounded together by whoever prices them."""


class Screening:
    """The programs that serve decoders alone, by bounds; every measured one has a duration."""

    __slots__ = (
        "_contest",
        "_credit",
        "_free",
        "_inexact",
        "_is_open",
        "_known_ms",
        "_lengths",
        "_programs",
        "_rows",
        "_scores",
        "_slope",
        "_streams",
        "_sums",
        "_table",
        "_time_costs",
        "_tokens",
        "_tops",
        "_values",
        "_view",
        "_waiting",
    )

    def __init__(
        self,
        view: View,
        streams: Streams,
        yields: Sequence[Yields],
        *,
        slope: float,
        waiting: Waiting,
        table: LaneTable | None = None,
    ) -> None:
        """Take `table` where the lanes of all classes have been priced and ranked already."""
        geometry = view.shapes.geometry
        self._view, self._streams, self._slope, self._waiting = view, streams, slope, waiting
        self._contest: Contest = geometry.contest(len(streams.requests))
        self._programs: Generating = self._contest.programs
        self._known_ms: Floats = view.durations.take(self._programs.graph)
        self._table = table
        if table is None:
            self._tokens, self._lengths, self._values = lane_values(streams, yields)
            falling = np.sort(self._values, axis=1)[:, ::-1]
            self._sums: Floats = running_sums(falling)
            """Values of the best 0, 1, ... n lanes of every class [classes, n + 1]."""
        else:
            self._tokens, self._lengths, self._values = table.tokens, table.lengths, table.values
            self._sums = table.sums
        self._inexact: Flags | None = None
        self._is_open: Flags = self._contest.is_tight
        self._free: Integers = self._contest.free
        """Programs that sums of classes price: P does not constrain them, and their yields are
        those of the class."""
        if not all(each.is_exact for each in yields):
            self._inexact = np.repeat([not each.is_exact for each in yields], self._programs.widths)
            self._is_open = self._is_open | self._inexact.take(self._programs.lane_class)
            self._free = (~self._is_open).nonzero()[0]
        self._rows: dict[int, _Row] = {}
        """Lane classes that were ranked."""
        self._tops: dict[int, Floats] = {}
        """Sums of the 0, 1, ... largest marginals, by lane class."""
        # The products of the exact score, in its order.
        self._credit: Floats = self._contest.lanes * slope * self._known_ms
        self._time_costs: Floats = waiting.costs(self._known_ms)
        self._scores: Floats = self._scored()
        """Exact scores of the free programs, and bounds of those of all others."""

    def _scored(self) -> Floats:
        """Return the scores with whole lanes: no program gives a cohort more than that."""
        programs, counts = self._programs, self._contest.counts
        scores: Floats = self._sums[programs.lane_class, counts]
        scores += self._credit
        if len(self._free) < len(scores):
            np.multiply(scores, ROOM, out=scores, where=self._is_open)
        scores /= self._known_ms
        scores -= self._time_costs
        return scores

    def verdict(self, floor: float) -> Verdict | None:
        """Return the first candidate by rank that reaches the score `floor`, and who else may.

        None where only the general path can tell.
        """
        scores, free, best = self._scores, self._free, floor
        if len(free):
            own = scores.take(free)
            best = max(best, float(own[own.argmax()]))
        elif floor == -np.inf:
            return None
        left = NONE_LEFT
        if len(free) < len(scores):
            left = (self._is_open & (scores >= best)).nonzero()[0]
        if len(left):
            left = self._unbeaten(left, best)
        winner = self._leader(free[own == best], best) if len(free) else None
        if winner is not None and is_dominated(self._view.shapes.geometry, winner):
            return None
        return Verdict(winner, best, left)

    def _leader(self, places: Integers, best: float) -> Candidate | None:
        """Return the first by rank of the programs with this very score; None without any."""
        contest, tied = self._contest, places.tolist()
        if not tied:
            return None
        if len(tied) > 1:
            keys = [(float(self._known_ms[i]), -float(contest.lanes[i])) for i in tied]
            least = min(keys)
            tied = [place for place, key in zip(tied, keys, strict=True) if key == least]
        if len(tied) > 1 and int(contest.counts[tied].min()) == len(self._streams.requests):
            # Everybody is served by all of them: what is left of the rank is padding and catalog.
            tied = [min(tied, key=lambda place: (self._padding(place), self._graph(place)))]
        found = [self._candidate(place, best) for place in tied]
        return found[0] if len(found) == 1 else min(found, key=rank_key)

    @property
    def inexact(self) -> Flags | None:
        """Lane classes whose yields are mere bounds; None without any."""
        return self._inexact

    @property
    def tokens(self) -> Floats:
        """Expected tokens of every lane in every class [classes, n]."""
        return self._tokens

    def candidate(self, place: int) -> Candidate:
        """Return the best cohort of a program of the contest that P does not constrain."""
        return self._candidate(place, float(self._scores[place]))

    def _graph(self, place: int) -> int:
        return int(self._programs.graph[place])

    def _padding(self, place: int) -> int:
        """Return the rows and prompt positions without work of a program without a prompt."""
        programs, served = self._programs, int(self._contest.counts[place])
        width, lane_class = int(programs.width[place]), int(programs.lane_class[place])
        used, lengths = width * served, self._row(lane_class).lengths
        if lengths is not None:
            used = int(lengths.take(self._row(lane_class).order[:served]).sum())
        if programs.prompt[place]:
            return int(programs.prompt[place]) + (int(programs.batch[place]) - 1) * width - used
        return int(programs.packed[place]) - used

    def _row(self, lane_class: int) -> _Row:
        found = self._rows.get(lane_class)
        if found is None:
            values = self._values[lane_class]
            lengths = None if self._lengths is None else self._lengths[lane_class]
            if self._table is not None:
                order: Integers = self._table.order[lane_class]
            elif lengths is None:
                order = (-values).argsort(kind="stable")
            else:
                order = ranked(values[None, :], lengths[None, :], self._streams.used)[0]
            found = self._rows[lane_class] = _Row(self._tokens[lane_class], values, lengths, order)
        return found

    def _unbeaten(self, places: Integers, best: float) -> Integers:
        """Return which programs that are no free ones may reach the best score.

        k lanes have at most the k largest pending values and the P - k largest marginals. That is
        concave in k, so where the last lane's pending row is worth more than one more marginal, no
        smaller cohort has more than the largest.
        """
        is_tight = self._contest.is_tight.take(places)
        if not is_tight.all():
            # Whole lanes fit, but the class only bounds what this program expects of them.
            tight = places[is_tight]
            tight = self._unbeaten(tight, best) if len(tight) else tight
            return np.sort(np.concatenate([places[~is_tight], tight]))
        programs, lanes = self._programs, self._contest.counts.take(places)
        tops = tops_of_all(self._tokens, self._streams.token, programs)
        spare = np.minimum(programs.packed.take(places) - lanes, len(tops) - 2)
        known_ms, sums = self._known_ms.take(places), self._sums[0]
        extra, pending = tops.take(spare), sums.take(lanes)
        bounds = pending + extra
        bounds += self._credit.take(places)
        bounds *= ROOM
        bounds /= known_ms
        bounds -= self._time_costs.take(places)
        last = pending - sums.take(lanes - 1) + self._slope * known_ms
        is_open = (bounds >= best) | (last < tops.take(spare + 1) - extra)
        left: Integers = places[is_open]
        if 0 < len(left) <= MOST_ALONE:
            alone = [place for place in left.tolist() if not self._is_beaten(place, best)]
            left = np.array(alone, dtype=np.int64)
        return left

    def _is_beaten(self, place: int, best: float) -> bool:
        """Tell the same of one program, by the marginals of its own class and every size."""
        programs, lanes = self._programs, int(self._contest.counts[place])
        lane_class, packed = int(programs.lane_class[place]), int(programs.packed[place])
        tops = self._tops.get(lane_class)
        if tops is None:
            first = programs.first_class[int(programs.variant[place])]
            gains = self._tokens[first + 1 : lane_class + 1] - self._tokens[first:lane_class]
            rising = (gains * self._streams.token).ravel()
            rising.sort()
            tops = self._tops[lane_class] = np.zeros(len(rising) + 1)
            np.add.accumulate(rising[::-1], out=tops[1:])
        sizes = self._contest.sizes[:lanes]
        bounds = tops.take(packed - sizes, mode="clip")
        bounds += self._sums[0, 1 : lanes + 1]
        np.minimum(bounds, self._sums[lane_class, 1 : lanes + 1], out=bounds)
        duration_ms = float(self._known_ms[place])
        bounds += self._slope * duration_ms * sizes
        value = float(bounds[bounds.argmax()]) * ROOM
        return rate_of(value, duration_ms, self._waiting) < best

    def _candidate(self, place: int, score: float) -> Candidate:
        """Return the candidate of a program that P does not constrain."""
        programs, streams = self._programs, self._streams
        lane_class, served = int(programs.lane_class[place]), int(self._contest.lanes[place])
        row, width = self._row(lane_class), int(programs.width[place])
        chosen = row.order[:served]
        members, lengths = chosen.tolist(), row.lengths
        requests = streams.requests
        lanes = DeferredLanes(
            [requests[member] for member in members],
            [width] * served if lengths is None else lengths.take(chosen).tolist(),
            row.tokens.take(chosen).tolist(),
            partial(_lanes_of, streams, row, width),
        )
        duration_ms = float(self._known_ms[place])
        return Candidate(
            True,
            -score,
            duration_ms,
            -served,
            self._graph(place),
            duration_ms,
            lanes,
            self._slope,
            self._padding(place),
            None,
            0.0,
            None,
            -1,
            bool(programs.prompt[place]),
        )


def can_screen(view: View, streams: Streams) -> bool:
    """Tell whether bounds of lane classes can decide: durations are known, and classes mean the
    same for all streams."""
    if not streams.requests or streams.shares is not None:
        return False
    programs = view.shapes.geometry.contest(len(streams.requests)).programs
    if programs.has_ragged and view.shapes.speculation.mode is DecodeMode.FIXED:
        return False
    least = view.durations.take(programs.graph)
    return bool(least[least.argmin()] > 0.0)


def _lanes_of(streams: Streams, row: _Row, width: int) -> Sequence[Lane]:
    order = row.order
    lengths = [width] * len(order) if row.lengths is None else row.lengths[order].tolist()
    return lanes_in_order(streams, order, row.tokens[order], row.values[order], lengths)
