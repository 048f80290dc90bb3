"""Decoders of following graphs whose P target rows may not hold every lane of the best cohort.

While they hold them, rows alone decide and the choice of sequence.py is exact. Otherwise:

* fixed selection keeps whole lanes: the best of at most k newly ready ones under P, and beside them
  the best of the ready ones under what is left of B and P, both exact by themselves;
* adaptive selection shortens lanes: for every k, the prefixes of three orderings of the ready
  lanes, each cohort priced by the causal allocation of its own P rows.

The number k is enumerated in both; which newly ready lanes take part is bounded, not exact, except
where all lanes of a fixed round have one length.
"""

from __future__ import annotations

import numpy as np

from helios.scheduler.config import DecodeMode
from helios.scheduler.geometry import Flags, Integers
from helios.scheduler.knapsack import FixedLanes
from helios.scheduler.pricing import Pricings
from helios.scheduler.roles import Roles
from helios.scheduler.rounds import Cohort, Frontier, Pricing
from helios.scheduler.scene import Scene
from helios.scheduler.sequence import prefix_sums
from helios.scheduler.streams import Floats, ranked, running_sums


class Packing:
    """The decoders' part of every role, split into newly ready and ready ones."""

    __slots__ = (
        "_newly",
        "_pricings",
        "_ready",
        "_roles",
        "_scene",
        "has_newly",
        "lane_class",
        "settled",
    )

    def __init__(self, scene: Scene, roles: Roles, is_newly: Flags) -> None:
        self._scene, self._roles = scene, roles
        programs = scene.view.shapes.geometry.generating
        self.lane_class: Integers = np.where(
            roles.program >= 0, programs.lane_class[roles.program], 0
        )
        self._pricings = Pricings(scene, programs)
        self._newly: Integers = np.flatnonzero(is_newly)
        self.has_newly = len(self._newly) > 0
        self._ready: Integers = np.flatnonzero(~is_newly)
        self.settled: Flags = ~(scene.inexact[self.lane_class] & (roles.program >= 0))
        """Roles whose following value is exact."""

    def bounded(self, extra: Floats | None, value: Floats, streams: Integers) -> Floats:
        """Return the following values with bounds where P may not hold all lanes.

        `extra` [roles, streams] is what each lane is worth beyond its value, None where that is the
        same for all; `value` and `streams` are those of sequence.py, which sees rows of requests
        alone.
        """
        roles, programs = self._roles, self._scene.view.shapes.geometry.generating
        ragged = np.flatnonzero((roles.program >= 0) & programs.is_ragged[roles.program])
        if not len(ragged):
            return value
        packed = programs.packed[roles.program[ragged]][:, None]
        newly = self._row_sums(ragged, extra, self._newly)
        ready = self._row_sums(ragged, extra, self._ready)
        beside = streams[ragged] - np.arange(newly.shape[1])
        used = newly + np.take_along_axis(ready, beside, axis=1)
        legal = value[ragged] > -np.inf
        self.settled[ragged] &= ((used <= packed) | ~legal).all(axis=1)
        if self._is_fixed():
            # No cohort of whole lanes has k newly ready ones that P does not hold by themselves.
            lengths = self._scene.table.lengths[self.lane_class[ragged]][:, self._newly]
            shortest = running_sums(np.sort(lengths, axis=1))
            value[ragged] = np.where(shortest <= packed, value[ragged], -np.inf)
            return value
        open_ = ragged[~self.settled[ragged]]
        if len(open_):
            value[open_] = np.minimum(value[open_], self._bounds(open_, extra, value.shape[1]))
        return value

    def _is_fixed(self) -> bool:
        return self._scene.view.shapes.speculation.mode is DecodeMode.FIXED

    def _row_sums(self, roles: Integers, extra: Floats | None, members: Integers) -> Integers:
        """Return the target rows of the best 0, 1, ... of `members` in some roles."""
        if extra is None and len(members) == len(self._scene.streams.requests):
            return self._scene.table.rows[self.lane_class[roles]]
        table, used = self._scene.table, self._scene.streams.used[members]
        if extra is None:
            lengths = table.lengths[:, members]
            order = ranked(table.values[:, members], lengths, used)
            sums = running_sums(np.take_along_axis(lengths, order, axis=1))
            return sums[self.lane_class[roles]]
        lengths = table.lengths[self.lane_class[roles]][:, members]
        worth = table.values[self.lane_class[roles]] + extra[roles]
        order = ranked(worth[:, members], lengths, used)
        return running_sums(np.take_along_axis(lengths, order, axis=1))

    def _bounds(self, roles: Integers, extra: Floats | None, counts: int) -> Floats:
        """Return upper bounds over all cohorts of adaptive roles [roles, k + 1].

        They take the best pending rows, and as many of anyone's best proposals as P has rows left.
        """
        programs = self._scene.view.shapes.geometry.generating
        place, table = self._roles.program[roles], self._scene.table
        first = np.array(programs.first_class)[programs.variant[place]]
        pending = table.values[first] if extra is None else table.values[first] + extra[roles]
        newly, ready = prefix_sums(pending[:, self._newly]), prefix_sums(pending[:, self._ready])
        tops, which = self._tops(first, self.lane_class[roles])
        lanes = np.minimum(self._roles.rows[roles], programs.packed[place])[:, None]
        spare, beside = programs.packed[place][:, None], np.arange(ready.shape[1])
        bounds = np.full((len(roles), counts), -np.inf)
        for count in range(min(counts, newly.shape[1])):
            left = np.minimum(np.maximum(spare - count - beside, 0), tops.shape[1] - 1)
            worth = np.where(beside <= lanes - count, ready + tops[which[:, None], left], -np.inf)
            bounds[:, count] = newly[:, count] + worth.max(axis=1)
        return bounds + self._roles.constant[roles][:, None]

    def _tops(self, first: Integers, lane_class: Integers) -> tuple[Floats, Integers]:
        """Return the sums of the 0, 1, ... best proposals by lane class, and each role's class."""
        values, count = self._scene.table.values, self._scene.table.values.shape[1]
        classes, which = np.unique(lane_class, return_inverse=True)
        starts = np.zeros(len(classes), dtype=np.int64)
        starts[which] = first
        widest = int((classes - starts).max())
        gains = np.zeros((len(classes), widest * count))
        for row, (start, stop) in enumerate(zip(starts.tolist(), classes.tolist(), strict=True)):
            gains[row, : (stop - start) * count] = np.diff(values[start : stop + 1], axis=0).ravel()
        return prefix_sums(gains), which

    # Cohorts --------------------------------------------------------------------------------------

    def cohorts(self, role: int, count: int, bonus: Floats) -> list[Cohort]:
        """Return the best cohorts with `count` newly ready decoders, more than one on a tie.

        Each lane is worth its value and its `bonus` [streams]. Whole lanes that P does not hold
        leave fewer newly ready ones.
        """
        if self._roles.program[role] < 0:
            return [_NOBODY]
        pricing, rows = self.pricing(role), int(self._roles.rows[role])
        worth = pricing.table.values[pricing.lane_class] + bonus
        if self.settled[role]:
            newly = self._best(pricing, worth, self._newly)[:count]
            ready = self._best(pricing, worth, self._ready)[: rows - count]
            return [_whole(pricing, np.concatenate([newly, ready]), bonus)]
        if self._is_fixed():
            newly = self._packed_lanes(pricing, worth, self._newly, count, self._packed(role))
            spare = self._packed(role) - int(pricing.table.lengths[pricing.lane_class, newly].sum())
            ready = self._packed_lanes(pricing, worth, self._ready, rows - len(newly), spare)
            return [_whole(pricing, np.concatenate([newly, ready]), bonus)]
        return self._shortened(pricing, role, count, bonus)

    def pricing(self, role: int) -> Pricing:
        """Return how the role's program prices lanes."""
        return self._pricings.of(int(self._roles.program[role]))

    def _packed(self, role: int) -> int:
        programs = self._scene.view.shapes.geometry.generating
        return int(programs.packed[self._roles.program[role]])

    def _best(self, pricing: Pricing, worth: Floats, group: Integers) -> Integers:
        """Return the streams of `group` by `worth` [streams], the best first."""
        lengths = pricing.table.lengths[pricing.lane_class, group]
        used = self._scene.streams.used[group]
        best: Integers = group[ranked(worth[None, group], lengths[None], used)[0]]
        return best

    def _packed_lanes(
        self, pricing: Pricing, worth: Floats, group: Integers, room: int, rows: int
    ) -> Integers:
        """Return the best at most `room` whole lanes of `group` that `rows` target rows hold."""
        if not room or not len(group):
            return _NOBODY.members
        lengths = pricing.table.lengths[pricing.lane_class, group]
        used = self._scene.streams.used[group].tolist()
        members = FixedLanes(worth[group], lengths, used).best(room, rows)
        return _NOBODY.members if members is None else group[members]

    def _shortened(self, pricing: Pricing, role: int, count: int, bonus: Floats) -> list[Cohort]:
        table, packed = pricing.table, self._packed(role)
        values = table.values[pricing.lane_class]
        most = min(int(self._roles.rows[role]), packed) - count
        members = []
        for worth in (
            values,
            table.values[pricing.first],
            values / table.lengths[pricing.lane_class],
        ):
            newly = self._best(pricing, worth, self._newly)[:count]
            ready = self._best(pricing, worth, self._ready)
            for beside in range(min(most, len(ready)) + 1):
                inside = np.zeros(len(values), dtype=bool)
                inside[newly] = inside[ready[:beside]] = True
                members.append(inside)
        candidates = np.unique(np.array(members), axis=0)
        return Frontier(self._scene.streams, pricing).best_priced(candidates, packed, bonus)


_NOBODY = Cohort(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _whole(pricing: Pricing, members: Integers, bonus: Floats) -> Cohort:
    """Return a cohort of whole lanes."""
    members = np.sort(members)
    values = pricing.table.values[pricing.lane_class, members] + bonus[members]
    return Cohort(members, pricing.table.lengths[pricing.lane_class, members], float(values.sum()))
