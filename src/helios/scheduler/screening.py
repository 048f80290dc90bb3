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

from helios.scheduler.allocation import device_lengths
from helios.scheduler.blocks import Candidate, rank_key, rate_of
from helios.scheduler.bounds import tops_of_all
from helios.scheduler.config import DecodeMode
from helios.scheduler.dominance import is_dominated
from helios.scheduler.geometry import Contest, Flags, Generating, Integers
from helios.scheduler.lanes import DeferredLanes
from helios.scheduler.rounds import SLACK, lanes_by_value, lanes_in_order
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


class Shared(NamedTuple):
    """A program whose target rows everybody shares; arrays [n]."""

    score: float
    lengths: Integers
    """Target rows that the value expects of each."""
    ceilings: Integers
    """Most output tokens of each."""
    tokens: Floats
    values: Floats


class Verdict(NamedTuple):
    """What is known of the programs that serve decoders alone."""

    winner: Candidate | None
    """The first by rank of those that bounds price exactly; None where all stay below the floor."""
    best: float
    """The score by which the winner is compared, or the floor where there is none."""
    left: Integers
    """Places in the contest of programs that may have this score or more, whose cohort or yields
    have to be found first."""


NONE_LEFT: Integers = np.zeros(0, dtype=np.int64)
MOST_ALONE = 4
"""Most programs that are bounded one by one; more are bounded together by whoever prices them."""


MOST_SHARED = 32
"""Most programs whose allocation is computed here; more are left to whoever prices them."""


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
        "_orders",
        "_programs",
        "_rows",
        "_scores",
        "_shared",
        "_sizes",
        "_slope",
        "_slots",
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
        self._orders = [each.order for each in yields]
        """What orders the admissions of each variant's device; None where the host allocates."""
        self._shared: dict[int, Shared] = {}
        """Programs whose rows everybody shares, by place, once scored."""
        self._rows: dict[int, _Row] = {}
        """Lane classes that were ranked."""
        self._tops: dict[int, Floats] = {}
        """Sums of the 0, 1, ... largest marginals, by lane class."""
        self._sizes: dict[int, Floats] = {}
        """What `_bounds_by_size` has found, by place."""
        self._slots: Integers | None = None
        """Physical rows of the streams, once asked for."""
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
            best = max(best, float(scores[free[scores.take(free).argmax()]]))
        elif floor == -np.inf:
            return None
        left = NONE_LEFT
        if len(free) < len(scores):
            left = (self._is_open & (scores >= best)).nonzero()[0]
        if len(left):
            left = self._unbeaten(left, best)
        if len(left):
            best, left = self._settled(left, best)
        winner = self._leader(best, free[scores.take(free) == best].tolist())
        if winner is not None and is_dominated(self._view.shapes.geometry, winner):
            return None
        return Verdict(winner, best, left)

    def _settled(self, left: Integers, best: float) -> tuple[float, Integers]:
        """Return the best score and who else may have it, once whoever can be is scored exactly."""
        if len(left) > MOST_SHARED:
            return best, left
        still = []
        # The most promising first: what it scores rules most of the others out.
        for place in left[(-self._scores[left]).argsort()].tolist():
            if self._shared and self._is_beaten(place, best):
                continue
            shared = self._share(place)
            if shared is None:
                still.append(place)
                continue
            self._shared[place] = shared
            best = max(best, shared.score)
        still.sort()
        return best, np.array(still, dtype=np.int64)

    def _leader(self, best: float, free: list[int]) -> Candidate | None:
        """Return the first by rank of the programs with this very score; None without any.

        `free` are the free ones among them.
        """
        tied = free + [place for place, each in self._shared.items() if each.score == best]
        if not tied:
            return None
        if len(tied) > 1:
            keys = [(float(self._known_ms[i]), -float(self._contest.lanes[i])) for i in tied]
            least = min(keys)
            tied = [place for place, key in zip(tied, keys, strict=True) if key == least]
        if len(tied) > 1 and self._are_ample(tied):
            # Everybody is served by all of them: what is left of the rank is padding and catalog.
            tied = [min(tied, key=lambda place: (self._padding(place), self._graph(place)))]
        found = [self._candidate(place, best) for place in tied]
        return found[0] if len(found) == 1 else min(found, key=rank_key)

    def _are_ample(self, places: list[int]) -> bool:
        """Tell whether all of them serve everybody with whole lanes."""
        everyone = len(self._streams.requests)
        is_shared = any(map(self._shared.__contains__, places))
        return not is_shared and int(self._contest.counts[places].min()) == everyone

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
        bounds = self._bounds_by_size(place)
        value = float(bounds[bounds.argmax()]) * ROOM
        return rate_of(value, float(self._known_ms[place]), self._waiting) < best

    def _bounds_by_size(self, place: int) -> Floats:
        """Return bounds of the value of the cohorts of 1, 2, ... lanes in a program; read only."""
        found = self._sizes.get(place)
        if found is not None:
            return found
        programs, lanes = self._programs, int(self._contest.counts[place])
        lane_class, packed = int(programs.lane_class[place]), int(programs.packed[place])
        tops = self._tops.get(lane_class)
        if tops is None:
            rising = self._marginals(place).ravel()
            rising.sort()
            tops = self._tops[lane_class] = np.zeros(len(rising) + 1)
            np.add.accumulate(rising[::-1], out=tops[1:])
        sizes = self._contest.sizes[:lanes]
        bounds = tops.take(packed - sizes, mode="clip")
        bounds += self._sums[0, 1 : lanes + 1]
        np.minimum(bounds, self._sums[lane_class, 1 : lanes + 1], out=bounds)
        bounds += self._slope * float(self._known_ms[place]) * sizes
        self._sizes[place] = bounds
        return bounds

    def _marginals(self, place: int) -> Floats:
        """Return the priced gains of every further row of a program's lanes [width - 1, n]."""
        lane_class = int(self._programs.lane_class[place])
        first = self._programs.first_class[int(self._programs.variant[place])]
        gains = self._tokens[first + 1 : lane_class + 1] - self._tokens[first:lane_class]
        gains *= self._streams.token
        return gains

    def _share(self, place: int) -> Shared | None:
        """Score a program whose rows everybody shares; None unless that is its best cohort.

        It is where the bounds of all smaller ones stay below it by more than rounding.
        """
        programs, streams, count = self._programs, self._streams, len(self._streams.requests)
        lane_class, packed = int(programs.lane_class[place]), int(programs.packed[place])
        if not self._contest.counts[place] == count <= packed:
            return None
        if self._inexact is not None and self._inexact[lane_class]:
            return None
        ceilings = np.full(count, programs.width[place])
        if self._lengths is not None:
            ceilings = self._lengths[lane_class]
            if int(ceilings.sum()) <= packed:
                return None
        marginals, order = self._marginals(place), self._orders[int(programs.variant[place])]
        claims = marginals.T if order is None else order[:, : len(marginals)]
        if self._slots is None:
            self._slots = np.array([request.row for request in streams.requests], dtype=np.int64)
        lengths = device_lengths(claims, ceilings, self._slots, packed)
        classes = lane_class - len(marginals) + lengths - 1
        values, duration_ms = self._values[classes, np.arange(count)], float(self._known_ms[place])
        value = float(values.sum()) + float(np.full(count, self._slope * duration_ms).sum())
        smaller = self._bounds_by_size(place)[:-1]
        if len(smaller) and smaller.max() * ROOM >= value - 2.0 * SLACK * max(abs(value), 1.0):
            return None
        score = rate_of(value, duration_ms, self._waiting)
        ceilings = lengths if order is None else ceilings
        return Shared(score, lengths, ceilings, self._tokens[classes, np.arange(count)], values)

    def _candidate_of(self, place: int, shared: Shared) -> Candidate:
        """Return the candidate of a program whose rows everybody shares."""
        programs, streams, count = self._programs, self._streams, len(self._streams.requests)
        _, lengths, ceilings, tokens, values = shared
        lanes = lanes_by_value(streams, np.arange(count), tokens, values, ceilings.tolist())
        duration_ms, total = float(self._known_ms[place]), 0.0
        for lane in lanes:
            total -= lane.negative_value
        total += count * self._slope * duration_ms
        capacity = int(programs.packed[place])
        if programs.prompt[place]:
            width = int(programs.width[place])
            capacity = int(programs.prompt[place]) + (int(programs.batch[place]) - 1) * width
        return Candidate(
            True,
            -rate_of(total, duration_ms, self._waiting),
            duration_ms,
            -count,
            self._graph(place),
            duration_ms,
            lanes,
            self._slope,
            capacity - int(lengths.sum()),
            None,
            0.0,
            -1,
            bool(programs.prompt[place]),
        )

    def _candidate(self, place: int, score: float) -> Candidate:
        """Return the candidate of a program that was scored exactly."""
        if place in self._shared:
            return self._candidate_of(place, self._shared[place])
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
