"""Blocks of programs that serve decoders: ordinary decode, rounds, and mixed graphs.

    sorted lane values decide      decode, rectangular rounds, mixed, and any cohort that fits P
    knapsack.py decides            fixed selection where P constrains
    rounds.Frontier decides        adaptive selection where P constrains

The last two are evaluated only for entries whose upper bound can still win.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from helios.scheduler.blocks import Candidate, rank_key, rate_of, rates_of
from helios.scheduler.config import DecodeMode
from helios.scheduler.geometry import Flags, Generating, Integers
from helios.scheduler.knapsack import FixedLanes
from helios.scheduler.prompts import PromptTable, best_prompts, lane_of
from helios.scheduler.rounds import (
    SLACK,
    Cohort,
    Frontier,
    Pricing,
    cohort_bounds,
    lanes_of,
    program_yields,
    tops_of_all,
)
from helios.scheduler.scene import Scene, held_entirely
from helios.scheduler.streams import (
    Floats,
    lane_table,
    ranked,
    running_sums,
)
from helios.scheduler.utility import Lane


class Generation:
    """One entry per program: its best cohort of decoders, beside its best prompt if it has one."""

    __slots__ = (
        "_columns",
        "_found",
        "_frontiers",
        "_lanes",
        "_programs",
        "_prompts",
        "_rising",
        "_rows",
        "_scene",
        "determinate",
        "graph",
        "is_known",
        "is_settled",
        "known_ms",
        "rate",
        "served",
        "settled",
    )

    def __init__(
        self, scene: Scene, programs: Generating, prompts: PromptTable | None = None
    ) -> None:
        """Evaluate `programs` with decoders alone, or, given `prompts`, beside a prompt row."""
        self._scene, self._programs, self._prompts = scene, programs, prompts
        self._found: dict[int, list[Cohort]] = {}
        """Cohorts of the entries that sorted values could not settle, once evaluated."""
        self._frontiers: dict[int, Frontier] = {}
        self._rising: dict[int, Floats] = {}
        """Marginals by lane class, the smallest first, once asked for."""
        self.graph: Integers = programs.graph
        self.known_ms: Floats = scene.durations_ms[programs.graph]
        self.determinate: Flags = self.known_ms > 0.0
        self.is_known = np.count_nonzero(self.determinate) == len(self.determinate)
        room = programs.batch if prompts is None else programs.batch - 1
        self._lanes: Integers = np.minimum(room, len(scene.streams.requests))
        self.is_settled = not (programs.has_ragged or scene.is_inexact)
        self.settled: Flags = programs.all_programs
        if not self.is_settled:
            self.settled = programs.all_programs.copy()
            if scene.is_inexact:
                self.settled = ~scene.inexact[programs.lane_class]
            self._fit()
        value = self._cohort_values()
        # A copy, because settling an entry changes who it serves but not how many it could.
        self.served: Integers = self._lanes.copy()
        if prompts is None:
            self.rate: Floats = rates_of(value, self.known_ms, scene.waiting)
            if not self.is_settled:
                self._tighten(self.rate)
                # Not even one whole lane fits P: such a program serves nobody now.
                self.rate[self._lanes == 0] = -np.inf
            return
        self._columns: Integers = np.searchsorted(prompts.capacities, programs.prompt)
        everyone: Flags = np.ones(prompts.extents.shape, dtype=bool)
        self._rows: Integers = best_prompts(prompts, everyone)[self._columns]
        self.served = self._lanes + 1
        value += prompts.service[self._rows, self._columns]
        self.rate = rates_of(value, self.known_ms, scene.waiting)
        self.rate[self._rows < 0] = -np.inf

    def _cohort_values(self) -> Floats:
        """Return the value of every program's best cohort of whole lanes."""
        scene, programs, lanes = self._scene, self._programs, self._lanes
        table, shares = scene.table, scene.streams.shares
        if shares is None:
            sums: Floats = table.sums[programs.lane_class, lanes]
            return sums + lanes * scene.slope * self.known_ms
        # Streams gain at their own slopes, so how they rank depends on the program's duration.
        gains = (scene.slope * self.known_ms)[:, None] * shares
        values = table.values[programs.lane_class] + gains
        order = ranked(values, table.lengths[programs.lane_class], scene.streams.used)
        sums = running_sums(np.take_along_axis(values, order, axis=1))
        best: Floats = np.take_along_axis(sums, lanes[:, None], axis=1)[:, 0]
        return best

    def _fit(self) -> None:
        """Bound the lanes of programs that P constrains; whoever fits P is settled.

        Where programs rank streams differently, the longest lanes must fit.
        """
        programs, table = self._programs, self._scene.table
        ragged, classes, packed = programs.ragged, programs.ragged_class, programs.ragged_packed
        if not programs.has_ragged:
            return
        lanes = self._lanes[ragged]
        if self._is_fixed():
            # No cohort has more whole lanes than the shortest ones that fill P.
            fitting = (table.fewest[classes] <= packed[:, None]).sum(axis=1) - 1
            lanes = self._lanes[ragged] = np.minimum(lanes, fitting)
        rows = table.rows[classes, lanes]
        if self._scene.streams.shares is not None:
            rows = table.fewest[classes, -1] - table.fewest[classes, -1 - lanes]
        self.settled[ragged] &= rows <= packed

    def _tighten(self, rate: Floats) -> None:
        """Lower the bounds of adaptive programs that could beat the best settled score so far.

        k lanes have at most the k largest pending values and the P - k largest marginals.
        """
        scene, programs = self._scene, self._programs
        if self._is_fixed() or scene.streams.shares is not None:
            return
        if scene.estimates is not None and scene.estimates.optimistic:
            # Probes are not ordered by their score; who searches them asks for what can matter.
            return
        known = self.settled if self.is_known else self.settled & self.determinate
        masked = np.where(known, rate, -np.inf)
        floor = float(masked[masked.argmax()])
        if floor == -np.inf:
            return
        floor -= SLACK * abs(floor)
        loose = (rate >= floor) > known
        if not self.is_known:
            loose &= self.determinate
        if scene.is_inexact:
            loose &= ~scene.inexact[programs.lane_class]
        entries = loose.nonzero()[0]
        if not len(entries):
            return
        # One sort for all programs rules most of them out; a few are left to their own classes.
        rate[entries] = np.minimum(rate[entries], self._caps(entries))
        left = [e for e in entries[rate[entries] >= floor].tolist() if self._cap(e, rate) >= floor]
        if left:
            entries = np.array(left, dtype=np.int64)
            rate[entries] = self._bounds(entries)

    def tighten(self, entries: Integers) -> None:
        """Lower the bounds of those of some determinate entries that serve decoders alone.

        It is for the search of a probe: the choice needs no bound but those it has lowered itself.
        """
        scene = self._scene
        if self.is_settled or self._prompts is not None or scene.streams.shares is not None:
            return
        fixed = self.settled[entries] | scene.inexact[self._programs.lane_class[entries]]
        entries = entries[~fixed]
        if len(entries):
            self.rate[entries] = self._bounds(entries)

    def _caps(self, entries: Integers) -> Floats:
        """Return bounds of the score of entries by that of their largest cohort; else infinite.

        Marginals of any depth and of the better variant count. Then value is concave in the number
        of lanes: if the last lane's pending row is worth more than one more marginal, as it nearly
        always is, no smaller cohort has more than the largest.
        """
        scene, table, lanes = self._scene, self._scene.table, self._lanes[entries]
        known_ms = self.known_ms[entries]
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
        duration_ms, pending = float(self.known_ms[entry]), float(table.sums[0, lanes])
        credit = scene.slope * duration_ms
        last = pending - float(table.sums[0, lanes - 1]) + credit
        if not start or last >= rising[start - 1]:
            value = pending + float(rising[start:].sum()) + credit * lanes
            rate[entry] = min(float(rate[entry]), rate_of(value, duration_ms, scene.waiting))
        return float(rate[entry])

    def _bounds(self, entries: Integers) -> Floats:
        """Return upper bounds of the score of some entries over all cohorts."""
        scene, known_ms, lanes = self._scene, self.known_ms[entries], self._lanes[entries]
        streams, programs, credit = scene.streams, self._programs, scene.slope * known_ms
        values = cohort_bounds(streams, scene.table, programs, entries, lanes=lanes, credit=credit)
        return rates_of(values, known_ms, scene.waiting)

    def _is_fixed(self) -> bool:
        return self._scene.view.shapes.speculation.mode is DecodeMode.FIXED

    # Cohorts --------------------------------------------------------------------------------------

    def settle(self, entry: int) -> None:
        """Replace an entry's upper bound by the score of its best cohort."""
        pricing = self._pricing(entry)
        cohorts = self._found[entry] = self._cohorts(entry, pricing)
        cohort = max(cohorts, key=lambda each: len(each.members))
        classes = pricing.class_of(cohort.lengths)
        value = float(pricing.table.values[classes, cohort.members].sum())
        value += float(self._bonus(entry)[cohort.members].sum())
        duration_ms = float(self.known_ms[entry])
        served = len(cohort.members)
        if self._prompts is not None:
            value += float(self._prompts.service[self._rows[entry], self._columns[entry]])
            served += 1
        self.rate[entry] = rate_of(value, duration_ms, self._scene.waiting)
        self.served[entry] = served
        self.settled[entry] = True

    def best(self, entry: int) -> Candidate:
        """Return the entry's best cohort as a candidate."""
        pricing = self._pricing(entry)
        prompt = None if self._prompts is None else self._prompt_lane(entry, self._rows[entry])
        found = [
            self._candidate(entry, pricing, cohort, prompt)
            for cohort in self._found.get(entry) or self._cohorts(entry, pricing)
        ]
        return found[0] if len(found) == 1 else min(found, key=rank_key)

    def best_above(self, entry: int, least_rate: float) -> Candidate | None:
        """Return `best` of an entry without a prompt; None where it may not reach a score."""
        if self.settled[entry] or self._prompts is not None:
            return self.best(entry)
        pricing, duration_ms = self._pricing(entry), float(self.known_ms[entry])
        least = (least_rate + 0.5 * duration_ms * self._scene.waiting) * duration_ms
        least -= SLACK * abs(least)
        found = [
            self._candidate(entry, pricing, cohort, None)
            for cohort in self._cohorts(entry, pricing, least=least)
            if cohort.is_prefix or cohort.value >= least
        ]
        return found[0] if len(found) == 1 else min(found, key=rank_key, default=None)

    def _pricing(self, entry: int) -> Pricing:
        return pricing_of(self._scene, self._programs, entry)

    def _cohorts(
        self, entry: int, pricing: Pricing, *, every: bool = False, least: float = -np.inf
    ) -> list[Cohort]:
        """Return the best cohorts, more than one on a tie, or all that are compared.

        Where no cohort is worth `least`, it may be some cohort that is worth less.
        """
        table, lane_class = pricing.table, pricing.lane_class
        lanes, packed = int(self._lanes[entry]), int(self._programs.packed[entry])
        order = self._ranking(entry, pricing)
        lengths = table.lengths[lane_class, order[:lanes]]
        if lengths.sum() <= packed:
            return [Cohort(order[:lanes], lengths, is_prefix=True)]
        if self._is_fixed():
            return self._packed(entry, pricing)
        frontier = self._frontiers.get(lane_class)
        if frontier is None or table is not self._scene.table:
            frontier = Frontier(self._scene.streams, pricing)
            if table is self._scene.table:
                self._frontiers[lane_class] = frontier
        return frontier.cohorts(lanes, packed, self._bonus(entry), every=every, least=least)

    def _ranking(self, entry: int, pricing: Pricing) -> Integers:
        """Return the streams by their value in one program, the best first."""
        table, lane_class = pricing.table, pricing.lane_class
        order: Integers = table.order[lane_class]
        if self._scene.streams.shares is not None:
            values = (table.values[lane_class] + self._bonus(entry))[None, :]
            lengths = table.lengths[lane_class][None, :]
            order = ranked(values, lengths, self._scene.streams.used)[0]
        return order

    def _bonus(self, entry: int) -> Floats:
        """Return the age credit that the program's duration adds to every stream."""
        shares, count = self._scene.streams.shares, len(self._scene.streams.requests)
        credit = self._scene.slope * float(self.known_ms[entry])
        return np.full(count, credit) if shares is None else credit * shares

    def _packed(
        self,
        entry: int,
        pricing: Pricing,
        above: int = 0,
        forced: Sequence[int] = (),
        beyond: int = -1,
    ) -> list[Cohort]:
        """Return the best cohort of whole lanes with all of `forced`.

        It has more than `above` rows and more than `beyond` lanes.
        """
        table, lane_class, programs = pricing.table, pricing.lane_class, self._programs
        lengths = table.lengths[lane_class]
        free = np.delete(np.arange(len(lengths)), forced)
        used = [self._scene.streams.requests[lane].last_used for lane in free.tolist()]
        values = table.values[lane_class] + self._bonus(entry)
        packing = FixedLanes(values[free], lengths[free], used)
        room = int(programs.batch[entry]) - (self._prompts is not None) - len(forced)
        taken = int(lengths[list(forced)].sum())
        rows = int(programs.packed[entry]) - taken
        members = packing.best(room, rows, above - taken, beyond - len(forced))
        if members is None:
            return []
        chosen = np.concatenate([np.array(forced, dtype=np.int64), free[members]])
        return [Cohort(chosen, lengths[chosen])]

    def rivals(self, entry: int) -> list[Candidate]:
        """Return the cohorts among which is the entry's best undominated one, if there is any.

        A cohort escapes a smaller shape by a longer lane, more rows, more lanes or a longer prompt
        chunk, so the best cohorts beyond each smaller capacity are enough.
        """
        geometry = self._scene.view.shapes.geometry
        smaller = geometry.smaller[int(self._programs.graph[entry])]
        pricing = self._pricing(entry)
        cohorts = self._cohorts(entry, pricing, every=True)
        if len(smaller) and (self._is_fixed() or len(cohorts) == 1):
            ragged = geometry.packed[smaller] < geometry.batch[smaller] * geometry.width[smaller]
            aboves = [0, *np.unique(geometry.packed[smaller][ragged]).tolist()]
            widths = np.unique(geometry.width[smaller]).tolist()
            batches = np.unique(geometry.batch[smaller]) - (self._prompts is not None)
            longer = [[lane] for lane in self._longer(entry, pricing, widths)]
            # A cohort may have to escape one smaller shape by its rows and another by its lanes.
            for above, forced, beyond in product(aboves, [[], *longer], [-1, *batches.tolist()]):
                # Whole lanes that all fit P leave nobody out, so no cohort has more lanes.
                if above or forced or not cohorts[0].is_prefix:
                    cohorts += self._packed(entry, pricing, above, forced, beyond)
        prompts: Sequence[Lane | None] = [None]
        if self._prompts is not None:
            prompts = self._longer_prompts(entry, np.unique(geometry.prompt[smaller]).tolist())
        return [
            self._candidate(entry, pricing, cohort, prompt)
            for cohort in cohorts
            for prompt in prompts
        ]

    def hopeless(self) -> Flags | None:
        """Tell which entries have no undominated cohort at all; None where no shape nests."""
        programs, prompts = self._programs, self._prompts
        geometry = self._scene.view.shapes.geometry
        nested = geometry.generating_nested if prompts is None else geometry.mixed_nested
        if not len(nested.place):
            return None
        holds = held_entirely(self._scene, programs, nested, self._lanes, prompts)
        flags = np.zeros(len(programs.graph), dtype=bool)
        flags[nested.place[holds]] = True
        return flags

    def _longer(self, entry: int, pricing: Pricing, widths: Sequence[int]) -> list[int]:
        """Return the best lane of every length above one of the widths."""
        lengths = pricing.table.lengths[pricing.lane_class]
        found: dict[int, int] = {}
        for lane in self._ranking(entry, pricing).tolist():
            length = int(lengths[lane])
            if length not in found and any(length > width for width in widths):
                found[length] = lane
        return list(found.values())

    def _longer_prompts(self, entry: int, capacities: Sequence[int]) -> list[Lane]:
        """Return the best prompt, and the best that goes beyond each smaller prompt capacity."""
        assert self._prompts is not None
        table, column = self._prompts, int(self._columns[entry])
        rows = [int(self._rows[entry])]
        for place in np.searchsorted(table.capacities, capacities).tolist():
            beyond = table.extents > table.extents[:, [place]]
            rows.append(int(best_prompts(table, beyond)[column]))
        return [self._prompt_lane(entry, row) for row in dict.fromkeys(rows) if row >= 0]

    # Candidates -----------------------------------------------------------------------------------

    def _prompt_lane(self, entry: int, row: int) -> Lane:
        assert self._prompts is not None
        return lane_of(self._prompts, int(row), int(self._columns[entry]))

    def _candidate(
        self, entry: int, pricing: Pricing, cohort: Cohort, prompt: Lane | None
    ) -> Candidate:
        scene, programs = self._scene, self._programs
        duration_ms = float(self.known_ms[entry])
        lanes = lanes_of(scene.streams, pricing, cohort)
        served, total = len(lanes), 0.0
        for lane in lanes:
            total -= lane.negative_value
        slope = scene.slope
        if scene.streams.shares is not None and served:
            slope *= float(scene.streams.shares[cohort.members].sum()) / served
        total += served * slope * duration_ms
        used = int(cohort.lengths.sum())
        capacity = int(programs.packed[entry])
        if programs.prompt[entry]:
            width = int(programs.width[entry])
            capacity = int(programs.prompt[entry]) + (int(programs.batch[entry]) - 1) * width
        if prompt is not None:
            total += prompt.service
            used += prompt.prompt_tokens
            served += 1
            lanes = [prompt, *lanes]
        elif cohort.is_prefix and served < len(scene.streams.requests):
            others = self._ranking(entry, pricing)[served:]
            lengths = pricing.table.lengths[pricing.lane_class, others]
            lanes += lanes_of(scene.streams, pricing, Cohort(others, lengths, is_prefix=True))
        return Candidate(
            duration_ms > 0.0,
            -rate_of(total, duration_ms, scene.waiting),
            duration_ms,
            -served,
            int(programs.graph[entry]),
            duration_ms,
            lanes,
            slope,
            capacity - used,
            None,
            0.0,
            None,
            -1 if prompt is None else 0,
            bool(programs.prompt[entry]),
        )


def pricing_of(scene: Scene, programs: Generating, place: int) -> Pricing:
    """Return how one of `programs` prices lanes, with own yields where classes bound them."""
    lane_class, variant = int(programs.lane_class[place]), int(programs.variant[place])
    if not scene.inexact[lane_class] or scene.estimates is None:
        first = programs.first_class[variant]
        return Pricing(scene.table, first, lane_class, scene.orders[variant])
    width = int(programs.width[place])
    graph, alpha = int(programs.graph[place]), scene.view.policy.adaptive_verification_alpha
    source, _ = programs.variants[variant]
    found = program_yields(scene.view.decoders, source, graph, width, scene.estimates)
    yields = found.placed(scene.streams.place, alpha)
    return Pricing(lane_table(scene.streams, [yields]), 0, width - 1, yields.order)
