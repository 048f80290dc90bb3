"""Blocks of programs that serve decoders: ordinary decode, rounds, and mixed graphs.

    sorted lane values decide      decode, rectangular rounds, mixed, and any cohort that fits P
    knapsack.py decides            fixed selection where P constrains
    rounds.Frontier decides        adaptive selection where P constrains

The last two are evaluated only for entries whose upper bound can still win.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import product

import numpy as np

from helios.scheduler.blocks import Candidate, rank_key, rate_of, rates_of
from helios.scheduler.bounds import Bounds
from helios.scheduler.config import DecodeMode
from helios.scheduler.geometry import Flags, Generating, Integers
from helios.scheduler.knapsack import FixedLanes
from helios.scheduler.lanes import DeferredLanes, Lanes
from helios.scheduler.pricing import Pricings
from helios.scheduler.prompts import PromptTable, best_prompts, lane_of
from helios.scheduler.rounds import (
    SLACK,
    Cohort,
    Frontier,
    Pricing,
    lanes_of,
)
from helios.scheduler.scene import Scene, held_entirely
from helios.scheduler.streams import Floats, Streams, ranked, running_sums
from helios.scheduler.utility import Lane


class Generation:
    """One entry per program: its best cohort of decoders, beside its best prompt if it has one."""

    __slots__ = (
        "_bounds",
        "_columns",
        "_found",
        "_frontiers",
        "_lanes",
        "_pricings",
        "_programs",
        "_prompts",
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
        self,
        scene: Scene,
        programs: Generating,
        prompts: PromptTable | None = None,
        *,
        floor: float = -np.inf,
    ) -> None:
        """Evaluate `programs` with decoders alone, or, given `prompts`, beside a prompt row.

        Bounds are lowered as far as it takes to tell which programs may reach the score `floor`.
        """
        self._scene, self._programs, self._prompts = scene, programs, prompts
        self._pricings = Pricings(scene, programs)
        self._found: dict[int, list[Cohort]] = {}
        """Cohorts of the entries that sorted values could not settle, once evaluated."""
        self._frontiers: dict[int, Frontier] = {}
        """By lane class; by the complement of the entry where it has yields of its own."""
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
        self._bounds = Bounds(scene, programs, self._lanes, self.known_ms)
        value = self._cohort_values()
        # A copy, because settling an entry changes who it serves but not how many it could.
        self.served: Integers = self._lanes.copy()
        if prompts is None:
            self.rate: Floats = rates_of(value, self.known_ms, scene.waiting)
            if self._can_tighten() and not self._is_optimistic():
                self._bounds.lower(self.rate, self.settled, floor)
            if not self.is_settled:
                # Not even one whole lane fits P: such a program serves nobody now.
                self.rate[self._lanes == 0] = -np.inf
            return
        self._columns: Integers = scene.view.shapes.geometry.mixed_columns
        everyone: Flags = np.ones(prompts.extents.shape, dtype=bool)
        self._rows: Integers = best_prompts(prompts, everyone)[self._columns]
        self.served = self._lanes + 1
        value += prompts.service[self._rows, self._columns]
        self.rate = rates_of(value, self.known_ms, scene.waiting)
        self.rate[self._rows < 0] = -np.inf

    @property
    def scene(self) -> Scene:
        """What all blocks of the decision share."""
        return self._scene

    @property
    def programs(self) -> Generating:
        """The programs, one per entry."""
        return self._programs

    @property
    def prompts(self) -> PromptTable | None:
        """The prompts of which each entry carries one; None for decoders alone."""
        return self._prompts

    @property
    def lanes(self) -> Integers:
        """The decoders that each entry serves at most [entries]."""
        return self._lanes

    @property
    def has_shares(self) -> bool:
        """Streams gain at slopes of their own, so programs may rank them differently."""
        return self._scene.streams.shares is not None

    @property
    def found(self) -> Collection[int]:
        """The entries whose cohorts had to be searched."""
        return self._found

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

    def _can_tighten(self) -> bool:
        """Tell whether bounds by marginals hold: streams rank alike, and lanes may be shortened."""
        is_open = not self.is_settled and self._prompts is None
        return is_open and not self._is_fixed() and self._scene.streams.shares is None

    def _is_optimistic(self) -> bool:
        # Probes are not ordered by their score; who searches them asks for what can matter.
        estimates = self._scene.estimates
        return estimates is not None and estimates.optimistic

    def tighten(self, entries: Integers) -> None:
        """Lower the bounds of those of some determinate entries that serve decoders alone.

        It is for the search of a probe: the choice needs no bound but those it has lowered itself.
        """
        entries = entries[~self.settled[entries]]
        if self._can_tighten() and len(entries):
            self.rate[entries] = self._bounds.over_all_cohorts(entries)

    def _is_fixed(self) -> bool:
        return self._scene.view.shapes.speculation.mode is DecodeMode.FIXED

    def _is_bounded(self, entry: int) -> bool:
        """Tell whether an entry's cohorts are the prefixes of the three orderings alone."""
        return bool(self._programs.is_ragged[entry]) and not self._is_fixed()

    # Cohorts --------------------------------------------------------------------------------------

    def settle(self, entry: int, floor: float) -> None:
        """Replace an entry's upper bound by the score of its best cohort.

        Where no cohort reaches the score `floor`, the bound falls below it and the entry stays
        open. No cohort is given up that rounding could lift to the floor.
        """
        pricing = self._pricing(entry)
        below = floor - 2.0 * SLACK * abs(floor)
        least = -np.inf if self._is_fixed() or not below < floor else self._worth(entry, below)
        cohorts = self._cohorts(entry, pricing, least=least)
        cohort = max(cohorts, key=lambda each: len(each.members))
        if not cohort.is_prefix and cohort.value < least:
            self.rate[entry] = min(float(self.rate[entry]), below)
            return
        self._found[entry] = cohorts
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

    def _worth(self, entry: int, rate: float) -> float:
        """Return the least value of decoders that can give an entry a score, less rounding."""
        duration_ms = float(self.known_ms[entry])
        value = rate
        if duration_ms > 0.0:
            value = (rate + self._scene.waiting.cost(duration_ms)) * duration_ms
        slack = SLACK * abs(value)
        if self._prompts is not None:
            value -= float(self._prompts.service[self._rows[entry], self._columns[entry]])
        return value - slack

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
        pricing, least = self._pricing(entry), self._worth(entry, least_rate)
        found = [
            self._candidate(entry, pricing, cohort, None)
            for cohort in self._cohorts(entry, pricing, least=least)
            if cohort.is_prefix or cohort.value >= least
        ]
        return found[0] if len(found) == 1 else min(found, key=rank_key, default=None)

    def _pricing(self, entry: int) -> Pricing:
        return self._pricings.of(entry)

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
        if lengths.sum() <= packed and not (every and self._is_bounded(entry)):
            return [Cohort(order[:lanes], lengths, is_prefix=True)]
        if self._is_fixed():
            return self._packed(entry, pricing)
        # A program with yields of its own has a frontier of its own.
        key = lane_class if table is self._scene.table else ~entry
        frontier = self._frontiers.get(key)
        if frontier is None:
            frontier = self._frontiers[key] = Frontier(self._scene.streams, pricing)
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
        chunk, so the best cohorts beyond each smaller capacity are enough. Of a ragged program in
        adaptive mode only the prefixes of its orderings count, whether or not whole lanes fit.
        """
        geometry = self._scene.view.shapes.geometry
        smaller = geometry.smaller[int(self._programs.graph[entry])]
        pricing = self._pricing(entry)
        cohorts = self._cohorts(entry, pricing, every=True)
        if len(smaller) and not self._is_bounded(entry):
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
        """Tell which entries have no undominated cohort at all; None where no shape nests, and for
        a part of the programs."""
        programs, prompts = self._programs, self._prompts
        geometry = self._scene.view.shapes.geometry
        if prompts is None and len(programs.graph) < len(geometry.generating.graph):
            return None
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
        duration_ms, slope = float(self.known_ms[entry]), scene.slope
        served, total = len(cohort.members), 0.0
        lanes: Lanes
        if cohort.is_prefix and scene.streams.shares is None:
            # Sums of sorted values are added in the order of the lanes.
            total += float(pricing.table.sums[pricing.lane_class, served])
            lanes = self._deferred(pricing, cohort, prompt)
        else:
            lanes = lanes_of(scene.streams, pricing, cohort)
            for lane in lanes:
                total -= lane.negative_value
            if scene.streams.shares is not None and served:
                slope *= float(scene.streams.shares[cohort.members].sum()) / served
            if prompt is not None:
                lanes = [prompt, *lanes]
            elif cohort.is_prefix and served < len(scene.streams.requests):
                lanes += self._unserved(entry, pricing, served)
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
            -1 if prompt is None else 0,
            bool(programs.prompt[entry]),
        )

    def _unserved(self, entry: int, pricing: Pricing, served: int) -> list[Lane]:
        """Return the lanes behind the most valuable ones, in order."""
        others = self._ranking(entry, pricing)[served:]
        lengths = pricing.table.lengths[pricing.lane_class, others]
        return lanes_of(self._scene.streams, pricing, Cohort(others, lengths, is_prefix=True))

    def _deferred(self, pricing: Pricing, cohort: Cohort, prompt: Lane | None) -> DeferredLanes:
        """Return the lanes of the most valuable streams, without the tuples; all rank alike."""
        streams, table, lane_class = self._scene.streams, pricing.table, pricing.lane_class
        members, lengths = cohort.members, cohort.lengths
        requests = [streams.requests[member] for member in members.tolist()]
        ceilings: list[int] = lengths.tolist()
        tokens: list[float] = table.tokens[pricing.class_of(lengths), members].tolist()
        if prompt is not None:
            requests.insert(0, prompt.request)
            ceilings.insert(0, prompt.output_ceiling)
            tokens.insert(0, prompt.expected_tokens)
        order = members if prompt is not None else table.order[lane_class]
        make = partial(_lanes_in_order, streams, pricing, order, prompt)
        return DeferredLanes(requests, ceilings, tokens, make, prompt)


def _lanes_in_order(
    streams: Streams, pricing: Pricing, order: Integers, prompt: Lane | None
) -> Sequence[Lane]:
    lengths = pricing.table.lengths[pricing.lane_class, order]
    lanes = lanes_of(streams, pricing, Cohort(order, lengths, is_prefix=True))
    return lanes if prompt is None else [prompt, *lanes]
