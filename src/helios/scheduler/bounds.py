"""Upper bounds of programs whose P target rows may not hold every lane of their best cohort.

k lanes have at most the k largest pending values and the P - k largest marginals: the priced gains
of one more target row of one stream. Bounds rule out nearly all programs before any cohort is
evaluated.
"""

from __future__ import annotations

import numpy as np

from helios.scheduler.blocks import rate_of, rates_of
from helios.scheduler.geometry import Flags, Generating, Integers
from helios.scheduler.rounds import SLACK
from helios.scheduler.scene import Scene
from helios.scheduler.streams import Floats, LaneTable, Streams, running_sums


def tops_by_width(streams: Streams, table: LaneTable, first: int, widest: int) -> Floats:
    """Return the sums of the 0, 1, ... largest marginals of lanes of 1, 2, ... `widest` rows.

    A marginal is the priced gain of one more target row of one stream; float64 [widest, sums].
    """
    tokens = table.tokens[first + 1 : first + widest] - table.tokens[first : first + widest - 1]
    shallow = np.tri(widest, widest - 1, -1, dtype=bool)[:, :, None]
    rising = np.where(shallow, tokens * streams.token, 0.0).reshape(widest, -1)
    rising.sort(axis=1)
    return running_sums(rising[:, ::-1])


def cohort_bounds(
    streams: Streams,
    table: LaneTable,
    programs: Generating,
    entries: Integers,
    *,
    lanes: Integers,
    credit: Floats,
) -> Floats:
    """Return upper bounds of the value of any cohort of some programs, float64 [entries].

    k lanes have at most the k largest pending values and the P - k largest marginals, and no more
    than k whole lanes. `lanes` are the most that each program serves, `credit` what each of them
    adds whatever its length.
    """
    most, classes = int(lanes.max()), programs.lane_class[entries]
    sizes = np.arange(1, most + 1)
    spare = np.maximum(programs.packed[entries][:, None] - sizes, 0)
    extra = np.empty(spare.shape)
    variants, widths = programs.variant[entries], programs.width[entries]
    read: list[tuple[Floats, Floats]] = []
    for variant in dict.fromkeys(variants.tolist()):
        first, widest = programs.first_class[variant], programs.widths[variant]
        tokens = table.tokens[first : first + widest]
        # Host and device have the same marginals where acceptance prices both.
        tops = next((tops for seen, tops in read if np.array_equal(seen, tokens)), None)
        if tops is None:
            tops = tops_by_width(streams, table, first, widest)
            read.append((tokens, tops))
        rows = np.flatnonzero(variants == variant)
        extra[rows] = tops[widths[rows, None] - 1, np.minimum(spare[rows], tops.shape[1] - 1)]
    values = table.sums[0, 1 : most + 1] + extra
    np.minimum(values, table.sums[classes, 1 : most + 1], out=values)
    values += credit[:, None] * sizes
    values[sizes > lanes[:, None]] = -np.inf
    best: Floats = values.max(axis=1)
    return best


def tops_of_all(tokens: Floats, token_values: Floats, programs: Generating) -> Floats:
    """Return the sums of the 0, 1, ... largest marginals, each of the better ragged variant.

    `tokens` [classes, n] are those of a lane table. The last two sums are equal: then nothing is
    left to add.
    """
    widest = max(programs.widths[v] for v in programs.ragged_variants)
    gains = np.zeros((widest - 1, tokens.shape[1]))
    for variant in programs.ragged_variants:
        first, last = programs.first_class[variant], programs.widths[variant] - 1
        own = gains[:last]
        np.maximum(
            own, tokens[first + 1 : first + last + 1] - tokens[first : first + last], out=own
        )
    gains *= token_values
    rising = gains.ravel()
    rising.sort()
    sums = np.zeros(len(rising) + 2)
    np.add.accumulate(rising[::-1], out=sums[1:-1])
    sums[-1] = sums[-2]
    return sums


class Bounds:
    """Bounds of the scores of programs that serve decoders alone, in one scene."""

    __slots__ = ("_known_ms", "_lanes", "_programs", "_rising", "_scene")

    def __init__(
        self, scene: Scene, programs: Generating, lanes: Integers, known_ms: Floats
    ) -> None:
        """Take the most lanes [programs] that each can hold, and durations (0: unmeasured)."""
        self._scene, self._programs = scene, programs
        self._lanes, self._known_ms = lanes, known_ms
        self._rising: dict[int, Floats] = {}
        """Marginals by lane class, the smallest first, once asked for."""

    def lower(self, rate: Floats, settled: Flags, least: float = -np.inf) -> None:
        """Lower the bounds in `rate` that could beat its best settled score and `least`, in place.

        Only determinate programs are compared: the others are worth their value, not a rate.
        """
        determinate = self._known_ms > 0.0
        known = settled & determinate
        masked = np.where(known, rate, -np.inf)
        floor = max(least, float(masked[masked.argmax()]))
        if floor == -np.inf:
            return
        floor -= SLACK * abs(floor)
        loose = ((rate >= floor) > known) & determinate
        entries = loose.nonzero()[0]
        if not len(entries):
            return
        # One sort for all programs rules most of them out; a few are left to their own classes.
        rate[entries] = np.minimum(rate[entries], self._caps(entries))
        left = [e for e in entries[rate[entries] >= floor].tolist() if self._cap(e, rate) >= floor]
        if left:
            entries = np.array(left, dtype=np.int64)
            rate[entries] = self.over_all_cohorts(entries)

    def _caps(self, entries: Integers) -> Floats:
        """Return bounds of the score of entries by that of their largest cohort; else infinite.

        Marginals of any depth and of the better variant count. Then value is concave in the number
        of lanes: if the last lane's pending row is worth more than one more marginal, as it nearly
        always is, no smaller cohort has more than the largest.
        """
        scene, table, lanes = self._scene, self._scene.table, self._lanes[entries]
        known_ms = self._known_ms[entries]
        tops = tops_of_all(table.tokens, scene.streams.token, self._programs)
        spare = np.minimum(self._programs.packed[entries] - lanes, len(tops) - 2)
        sums = table.sums[0]
        extra, pending = tops[spare], sums[lanes]
        credit = scene.slope * known_ms
        last = pending - sums[lanes - 1] + credit
        bounds = rates_of(pending + extra + credit * lanes, known_ms, scene.waiting)
        bounds[last < tops[spare + 1] - extra] = np.inf
        return bounds

    def _cap(self, entry: int, rate: Floats) -> float:
        """Lower an entry's bound as `_caps` does, by the marginals of its own class; return it."""
        scene, programs, lanes = self._scene, self._programs, int(self._lanes[entry])
        table, lane_class = scene.table, int(programs.lane_class[entry])
        rising = self._rising.get(lane_class)
        if rising is None:
            first = programs.first_class[int(programs.variant[entry])]
            gains = table.tokens[first + 1 : lane_class + 1] - table.tokens[first:lane_class]
            rising = self._rising[lane_class] = (gains * scene.streams.token).ravel()
            rising.sort()
        start = max(len(rising) - (int(programs.packed[entry]) - lanes), 0)
        duration_ms, pending = float(self._known_ms[entry]), float(table.sums[0, lanes])
        credit = scene.slope * duration_ms
        last = pending - float(table.sums[0, lanes - 1]) + credit
        if not start or last >= rising[start - 1]:
            value = pending + float(rising[start:].sum()) + credit * lanes
            rate[entry] = min(float(rate[entry]), rate_of(value, duration_ms, scene.waiting))
        return float(rate[entry])

    def over_all_cohorts(self, entries: Integers) -> Floats:
        """Return upper bounds of the score of some entries over all cohorts."""
        scene, known_ms, lanes = self._scene, self._known_ms[entries], self._lanes[entries]
        streams, programs, credit = scene.streams, self._programs, scene.slope * known_ms
        values = cohort_bounds(streams, scene.table, programs, entries, lanes=lanes, credit=credit)
        return rates_of(values, known_ms, scene.waiting)
