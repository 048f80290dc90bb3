"""A block of pairs: every shape of one prerequisite in front of every following graph.

An entry is one first shape with one following graph in one role of its prompt row. Entries whose
cohort is limited by rows alone are exact (sequence.py). Where a following round's P target rows do
not hold every lane, the entry has an upper bound until it may win, and then the best of bounded
choices: fixed selection keeps whole lanes, adaptive selection compares the prefixes of three
orderings priced by their causal allocation, for every number of newly ready decoders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from helios.scheduler.blocks import (
    Candidate,
    DeferredTerms,
    Terms,
    rank_key,
    rate_of,
    rates_of,
)
from helios.scheduler.geometry import Flags, Integers
from helios.scheduler.lanes import LaterLanes
from helios.scheduler.packing import Packing
from helios.scheduler.requests import Request
from helios.scheduler.roles import Roles
from helios.scheduler.rounds import Cohort, lanes_of
from helios.scheduler.scene import Scene
from helios.scheduler.sequence import (
    First,
    Following,
    best_split,
    following_values,
    prefix_sums,
    retired_at,
    saved_waiting,
    values_at,
)
from helios.scheduler.streams import Floats
from helios.scheduler.utility import Lane, Units


class Stage(NamedTuple):
    """The useful first shapes of one prerequisite, and the requests that they could advance."""

    graphs: Integers
    rows: Integers
    idle: Mapping[Request, int]
    """Physical positions that stay without work beside a request: features no image fills."""
    blocked: Sequence[Request]
    """Everyone whose next stage this is, less recently used first, then by admission."""
    terminals: Sequence[Lane]
    """Rows that the graphs could retire, the most valuable first."""
    terminal_slope: float
    """Age credit of a retired row per ms of the first graph: c_t * sigma_t."""


class Choice(NamedTuple):
    """One joint cohort of an entry."""

    value: float
    newly: int
    """Newly ready decoders in the following graph."""
    cohort: Cohort
    """Decoders of the following graph, as places in the scene's streams."""


class Pairs:
    """One entry per first shape and role of a following graph, in that order."""

    __slots__ = (
        "_is_newly",
        "_packing",
        "_parts",
        "_roles",
        "_scene",
        "_stage",
        "_starts_ms",
        "_units",
        "_whole_ms",
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
        self, scene: Scene, units: Units, stage: Stage, roles: Roles, is_newly: Flags
    ) -> None:
        """Evaluate all pairs; `is_newly` [streams] marks the decoders that the stage makes ready.

        The scene's other streams are ready before it.
        """
        self._scene, self._units, self._stage, self._roles = scene, units, stage, roles
        self._is_newly = is_newly
        first_ms = scene.durations_ms[stage.graphs][:, None]
        following_ms = scene.durations_ms[roles.graph]
        known: Flags = (first_ms > 0.0) & (following_ms > 0.0)
        # Without both durations a pair is compared by its value at the start: T = L = 0.
        self._whole_ms: Floats = np.where(known, first_ms + following_ms, 0.0)
        self._starts_ms: Floats = np.where(known, first_ms, 0.0)
        self._packing = Packing(scene, roles, is_newly)
        self._parts = self._evaluated()
        value = np.concatenate([best_split(*part).value for part in self._parts])
        self.graph: Integers = np.repeat(stage.graphs, len(roles.graph))
        self.rate: Floats = rates_of(value.ravel(), self._whole_ms.ravel(), scene.waiting)
        self.known_ms: Floats = (first_ms + following_ms).ravel()
        self.determinate: Flags = known.ravel()
        advanced = np.minimum(stage.rows, len(stage.blocked) + len(stage.terminals))
        self.served: Integers = np.repeat(advanced, len(roles.graph))
        self.settled: Flags = np.tile(self._packing.settled, len(stage.graphs))
        self.is_settled = bool(self.settled.all())
        self.is_known = bool(self.determinate.all())

    def _evaluated(self) -> list[tuple[First, Following]]:
        """Return both sides of the choice: for all first shapes together, or one by one.

        Streams of one slope rank alike whatever the length of the sequence. Streams that share
        their tenant's coefficients do not, so each first shape then ranks them for itself.
        """
        whole_ms, slope = self._whole_ms, self._scene.slope
        shares = self._scene.streams.shares
        if shares is None:
            return [(self._first(slice(None), slope * whole_ms), self._following(None))]
        parts = []
        for place in range(len(self._stage.graphs)):
            gains = (slope * whole_ms[place])[:, None] * shares
            none = np.zeros((1, whole_ms.shape[1]))
            first = self._first(slice(place, place + 1), none)
            parts.append((first, self._following(gains)))
        return parts

    def _first(self, places: slice, stream_gain: Floats) -> First:
        stage, units = self._stage, self._units
        whole_ms, starts_ms = self._whole_ms[places], self._starts_ms[places]
        return First(
            stage.rows[places],
            prefix_sums(np.array([-lane.negative_value for lane in stage.terminals])),
            stream_gain,
            stage.terminal_slope * starts_ms
            + saved_waiting(units.terminal_age, starts_ms, whole_ms),
        )

    def _following(self, extra: Floats | None) -> Following:
        """Value every following graph; where P rows may not hold all lanes, an upper bound.

        `extra` [roles, streams] is what each lane is worth beyond its value.
        """
        roles, values = self._roles, self._scene.table.values
        if extra is None and not self._packing.has_newly:
            # The table has ranked the very lanes that are ready.
            ready = self._scene.table.sums[self._packing.lane_class]
            newly = np.zeros((len(ready), 1))
        elif extra is None:
            newly, ready = (
                prefix_sums(values[:, group])[self._packing.lane_class]
                for group in (self._is_newly, ~self._is_newly)
            )
        else:
            worth = values[self._packing.lane_class] + extra
            newly, ready = (prefix_sums(worth[:, g]) for g in (self._is_newly, ~self._is_newly))
        value, streams = following_values(roles.rows, roles.fewest, roles.constant, newly, ready)
        return Following(self._packing.bounded(extra, value, streams), streams, roles.enabled)

    def _part(self, first: int) -> tuple[First, Following, int]:
        """Return both sides of the choice for one first shape, and its place in them."""
        if len(self._parts) == 1:
            return (*self._parts[0], first)
        return (*self._parts[first], 0)

    def _bonus(self, first: int, role: int) -> Floats:
        """Return the age credit that the length of a sequence adds to every stream."""
        credit = self._scene.slope * float(self._whole_ms[first, role])
        shares, count = self._scene.streams.shares, len(self._is_newly)
        return np.full(count, credit) if shares is None else credit * shares

    # Cohorts --------------------------------------------------------------------------------------

    def settle(self, entry: int, floor: float) -> None:
        """Replace an entry's upper bound by the score of its best cohorts, whatever the floor."""
        del floor
        best = self.best(entry)
        self.rate[entry], self.served[entry] = -best.negative_rate, best.served
        self.settled[entry] = True

    def best(self, entry: int) -> Candidate:
        """Return the entry's best cohorts as a candidate."""
        choices = self._choices(entry)
        top = max(choice.value for choice in choices)
        row = self._roles.best_row(entry % len(self._roles.graph))
        found = [self._candidate(entry, choice, row) for choice in choices if choice.value == top]
        return found[0] if len(found) == 1 else min(found, key=rank_key)

    def rivals(self, entry: int) -> list[Candidate]:
        """Return the best cohorts of every split, beside every prompt that could escape a shape."""
        rows: Sequence[int | None] = self._roles.prompt_rows(entry % len(self._roles.graph))
        return [
            self._candidate(entry, choice, row)
            for choice in self._choices(entry)
            for row in rows or [None]
        ]

    def hopeless(self) -> Flags | None:
        """Tell which pairs have no undominated choice: the following shape is always redundant."""
        flags = self._roles.redundant(self._scene)
        return None if flags is None else np.tile(flags, len(self._stage.graphs))

    def _choices(self, entry: int) -> list[Choice]:
        """Return the best choices for every number of newly ready decoders that the pair admits."""
        first, role = divmod(entry, len(self._roles.graph))
        side, following, place = self._part(first)
        free = int(side.rows[place] - following.enabled[role])
        bonus = self._bonus(first, role)
        found = []
        for count in range(min(free, following.value.shape[1] - 1) + 1):
            if following.value[role, count] == -np.inf:
                continue
            value = float(values_at(side, following, count)[place, role])
            for cohort in self._packing.cohorts(role, count, bonus):
                newly = int(self._is_newly[cohort.members].sum())
                if not self._packing.settled[role]:
                    value = self._packed_value(first, role, newly, cohort)
                found.append(Choice(value, newly, cohort))
        return found

    def _packed_value(self, first: int, role: int, newly: int, cohort: Cohort) -> float:
        side, following, place = self._part(first)
        retired = int(retired_at(side, following, newly)[place, role])
        return (
            float(self._roles.constant[role])
            + cohort.value
            + float(side.terminal[retired])
            + retired * float(side.terminal_gain[place, role])
        )

    # Candidates -----------------------------------------------------------------------------------

    def _candidate(self, entry: int, choice: Choice, row: int | None) -> Candidate:
        first, role = divmod(entry, len(self._roles.graph))
        scene, stage = self._scene, self._stage
        prompt = None if row is None else self._roles.prompt_lane(role, row)
        value = choice.value
        if prompt is not None and prompt.service != self._roles.constant[role]:
            value += prompt.service - float(self._roles.constant[role])
        side, sides, place = self._part(first)
        retired = int(retired_at(side, sides, choice.newly)[place, role])
        rows = self._first_lanes(first, role, choice, prompt, retired)
        following = self._following_lanes(role, choice.cohort, prompt)
        whole_ms = float(self._whole_ms[first, role])
        graph, following_graph = int(stage.graphs[first]), int(self._roles.graph[role])
        capacity = int(stage.rows[first])
        return Candidate(
            bool(self.determinate[entry]),
            -rate_of(value, whole_ms, scene.waiting),
            float(self.known_ms[entry]),
            -len(rows),
            graph,
            float(scene.durations_ms[graph]),
            rows,
            0.0,
            capacity
            - len(rows)
            + sum(stage.idle.get(lane.request, 0) for lane in rows)
            + self._spare(role, choice.cohort, prompt),
            following_graph,
            float(scene.durations_ms[following_graph]),
            following_lanes=following,
            parts=DeferredTerms(
                partial(self._terms, first, role, following, choice.cohort, retired)
            ),
        )

    def _following_lanes(self, role: int, cohort: Cohort, prompt: Lane | None) -> LaterLanes:
        if not len(cohort.members):
            return LaterLanes((), prompt, list)
        pricing = self._packing.pricing(role)
        ceilings = cohort.lengths
        if pricing.by is not None:
            ceilings = pricing.table.lengths[pricing.lane_class, cohort.members]
        make = partial(lanes_of, self._scene.streams, pricing, cohort)
        return LaterLanes(ceilings.tolist(), prompt, make)

    def _first_lanes(
        self, first: int, role: int, choice: Choice, prompt: Lane | None, retired: int
    ) -> list[Lane]:
        """Return the lanes of the first graph: who takes part, who is retired, who fills it up."""
        stage = self._stage
        members = choice.cohort.members[self._is_newly[choice.cohort.members]].tolist()
        served = [self._scene.streams.requests[member] for member in members]
        if prompt is not None and self._roles.enabled[role]:
            served.append(prompt.request)
        lanes = [setup_lane(request) for request in served]
        side, _, place = self._part(first)
        gain = float(side.terminal_gain[place, role])
        worth = [lane for lane in stage.terminals[:retired] if gain > 0.0 or lane.negative_value]
        lanes += worth
        chosen = dict.fromkeys(served)
        others = [setup_lane(request) for request in stage.blocked if request not in chosen]
        if len(worth) < retired:
            # A retirement that is worth nothing only fills the graph, like anyone else in line.
            others += stage.terminals[len(worth) :]
            others.sort(key=lambda lane: (lane.last_used, lane.arrival))
        lanes += others[: int(stage.rows[first]) - len(lanes)]
        lanes.sort(key=lambda lane: lane.arrival)
        return lanes

    def _spare(self, role: int, cohort: Cohort, prompt: Lane | None) -> int:
        """Return the physical rows and prompt positions of the following graph without work."""
        programs, place = (
            self._scene.view.shapes.geometry.generating,
            int(self._roles.program[role]),
        )
        if place < 0:
            assert prompt is not None
            return prompt.padding
        capacity, used = int(programs.packed[place]), int(cohort.lengths.sum())
        if programs.prompt[place]:
            width = int(programs.width[place])
            capacity = int(programs.prompt[place]) + (int(programs.batch[place]) - 1) * width
        return capacity - used - (prompt.prompt_tokens if prompt is not None else 0)

    def _terms(
        self, first: int, role: int, following: LaterLanes, cohort: Cohort, retired: int
    ) -> Terms:
        stage, units = self._stage, self._units
        terminals = stage.terminals[:retired]
        whole_ms, starts_ms = self._whole_ms[first, role], self._starts_ms[first, role]
        gained = float(self._bonus(first, role)[cohort.members].sum())
        waited = sum(lane.age for lane in terminals) + retired * stage.terminal_slope * starts_ms
        return Terms(
            service=sum(lane.service for lane in following),
            delivery=sum(lane.delivery for lane in following),
            age=float(sum(lane.age for lane in following) + gained + waited),
            terminal=retired * units.terminal,
            saved_waiting=float(retired * saved_waiting(units.terminal_age, starts_ms, whole_ms)),
        )


def setup_lane(request: Request) -> Lane:
    """Return a lane that only prepares its request: no tokens, no value of its own."""
    return Lane(0.0, request.last_used, 0, request.arrival, request, 0.0, 0.0, 0.0, 0, 0)
