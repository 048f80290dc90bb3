"""Rounds: expected yields of every variant, and the cohorts of programs that P rows constrain.

A program whose rows do not constrain individual prefixes is decided by sorted lane values alone.
Where P constrains, fixed selection keeps whole lanes (knapsack.py), and adaptive selection compares
the prefixes of three orderings, each priced by the causal allocation of its own P rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from helios.scheduler.acceptance import COPY, LEARNED
from helios.scheduler.allocation import frontier_order, lengths_of_cohorts
from helios.scheduler.catalog import ProposalSource, RowAllocation
from helios.scheduler.forecast import priced_from
from helios.scheduler.geometry import Flags, Generating, Integers
from helios.scheduler.requests import Request
from helios.scheduler.roster import Roster, roster_of
from helios.scheduler.streams import Floats, LaneTable, Streams, lane_limits, ranked
from helios.scheduler.utility import Estimates, Lane, Yields

SLACK = 1e-9
"""Relative room for rounding when an upper bound is compared with a score."""


def yields_of(
    requests: Sequence[Request],
    programs: Generating,
    estimates: Estimates | None,
    roster: Roster | None = None,
) -> list[Yields]:
    """Return the expected yields of every variant of the generating programs.

    Gains are survivals as they are; selection raises them to its exponent. `roster` is that of the
    requests, if there is one.
    """
    if estimates is None or programs.classes == 1 or not requests:
        limits = np.ones(len(requests), dtype=np.int64)
        return [Yields(np.zeros((len(requests), width - 1)), limits) for width in programs.widths]
    reader = Reader(requests, estimates, roster)
    found = []
    for index, (source, allocation) in enumerate(programs.variants):
        width = programs.widths[index]
        if allocation is RowAllocation.DEVICE:
            found.append(reader.device(source, width, programs.graph[programs.variant == index]))
        else:
            found.append(reader.host(source, width))
    return found


def optimistic_yields(
    found: Sequence[Yields],
    requests: Sequence[Request],
    programs: Generating,
    estimates: Estimates,
) -> list[Yields]:
    """Return `yields_of` with optimistic estimates, given those with the same ones as they are.

    Optimism changes no limit and no order of admission.
    """
    if programs.classes == 1 or not requests:
        return [*found]
    rows = _integers([request.row for request in requests])
    generated = _integers([request.output_count for request in requests])
    read: dict[ProposalSource, Floats] = {}
    raised = []
    for (source, _), width, yields in zip(programs.variants, programs.widths, found, strict=True):
        if source not in read:
            read[source] = estimates.acceptance.optimistic(rows, _index_of(source), generated)
        raised.append(yields._replace(gains=read[source][:, : width - 1]))
    return raised


class Reader:
    """Reads the estimates of a decision's streams, each once."""

    __slots__ = (
        "_estimates",
        "_generated",
        "_informed",
        "_limits",
        "_read",
        "_requests",
        "_roster",
        "_rows",
    )

    def __init__(
        self, requests: Sequence[Request], estimates: Estimates, roster: Roster | None = None
    ) -> None:
        """Read those of `requests`; `roster` is theirs, if there is one."""
        roster = roster or roster_of(requests)
        self._requests, self._estimates = requests, estimates
        self._limits = lane_limits(requests, is_capped=roster.is_capped)
        self._rows = roster.rows
        self._generated = _integers([request.output_count for request in requests])
        self._roster = roster
        self._read: dict[ProposalSource, Floats] = {}
        """Survivals of each source that was asked for: variants share them."""
        self._informed: dict[ProposalSource, Flags] = {}
        """Which of them rest on observation; not read where they are optimistic."""

    def host(self, source: ProposalSource, width: int) -> Yields:
        """Return yields of programs whose rows the host allocates."""
        return Yields(self._survivals(source)[:, : width - 1], self._limits_of(source))

    def _limits_of(self, source: ProposalSource) -> Integers:
        """Return the rows that each request allows; copies are no more than the host supplied."""
        if source is not ProposalSource.COPY:
            learned = self._roster.learned_limits
            return self._limits if learned is None else np.minimum(self._limits, learned)
        copies = _integers([1 + request.copies for request in self._requests])
        return np.minimum(self._limits, copies)

    def device(self, source: ProposalSource, width: int, graphs: Integers) -> Yields:
        """Return yields that bound all `graphs`; exact when their forecasts agree.

        Programs have population priors of their own, which speak for rows without any forecast.
        """
        if len(graphs) == 1:
            return self.of_program(source, int(graphs[0]), width)
        means, is_exact = self._highest_means()
        return self._allocated(source, width, means, is_exact=is_exact)

    def of_program(self, source: ProposalSource, graph_index: int, width: int) -> Yields:
        """Return the exact yields of one program whose rows a device allocates."""
        means = self._estimates.forecast.means(self._rows, graph_index)
        return self._allocated(source, width, means, is_exact=True)

    def _allocated(
        self, source: ProposalSource, width: int, means: Floats, *, is_exact: bool
    ) -> Yields:
        priced = self._survivals(source)
        if not self._estimates.optimistic:
            priced = priced_from(self._informed[source], priced, means)
        order = means[:, : width - 1]
        return Yields(priced[:, : width - 1], self._limits_of(source), order, is_exact)

    def _highest_means(self) -> tuple[Floats, bool]:
        """Return what the forecasts have in common; most completions leave them as they are."""
        forecast, read = self._estimates.forecast, self._roster.forecasts
        found = read.get(forecast.version)
        if found is None:
            read.clear()
            found = read[forecast.version] = forecast.highest_means(self._rows)
        return found

    def _survivals(self, source: ProposalSource) -> Floats:
        found = self._read.get(source)
        if found is None:
            index = _index_of(source)
            acceptance = self._estimates.acceptance
            if self._estimates.optimistic:
                found = acceptance.optimistic(self._rows, index, self._generated)
            else:
                found, informed = acceptance.informed(self._rows, index, self._generated)
                self._informed[source] = informed
            self._read[source] = found
        return found


def _index_of(source: ProposalSource) -> int:
    return COPY if source is ProposalSource.COPY else LEARNED


def _integers(values: list[int]) -> Integers:
    return np.fromiter(values, np.int64, len(values))


class Pricing(NamedTuple):
    """One lane class of a table, and the classes of the same variant from width 1 to it."""

    table: LaneTable
    first: int
    lane_class: int
    by: Floats | None
    """What orders the device's admissions; None where the host's priced marginals do."""

    def class_of(self, lengths: Integers) -> Integers:
        """Return the class in which lanes of these lengths stand."""
        return self.first + lengths - 1


class Cohort(NamedTuple):
    """Streams of one program with the target rows of each."""

    members: Integers
    """Indices of streams, ascending."""
    lengths: Integers
    """Target rows that the value expects of each member."""
    value: float = 0.0
    """Sum of lane values and of the bonus of each lane; zero where nobody compares it."""
    is_prefix: bool = False
    """The most valuable lanes, in their order."""


_NEW_LANE = partial(tuple.__new__, Lane)
"""Makes a lane of all its fields; the generated constructors take several times as long."""


def lanes_of(streams: Streams, pricing: Pricing, cohort: Cohort) -> list[Lane]:
    """Return the lanes of a cohort, the most valuable first."""
    table, members = pricing.table, cohort.members
    classes = pricing.class_of(cohort.lengths)
    # A device is given ceilings: how it shares its rows is only expected here.
    ceilings = cohort.lengths if pricing.by is None else table.lengths[pricing.lane_class, members]
    make = lanes_in_order if cohort.is_prefix else lanes_by_value
    return make(
        streams,
        members,
        table.tokens[classes, members],
        table.values[classes, members],
        ceilings.tolist(),
    )


def lanes_in_order(
    streams: Streams, members: Integers, tokens: Floats, values: Floats, ceilings: Sequence[int]
) -> list[Lane]:
    """Return the lanes of some streams, in the order in which everything is given."""
    chosen = members.tolist()
    nothing = [0] * len(chosen)
    return list(
        map(
            _NEW_LANE,
            zip(
                (-values).tolist(),
                streams.used[members].tolist(),
                nothing,
                streams.arrival[members].tolist(),
                [streams.requests[member] for member in chosen],
                (tokens * streams.token[members]).tolist(),
                streams.delivery[members].tolist(),
                streams.age[members].tolist(),
                nothing,
                ceilings,
                tokens.tolist(),
                strict=True,
            ),
        )
    )


def lanes_by_value(
    streams: Streams, members: Integers, tokens: Floats, values: Floats, ceilings: Sequence[int]
) -> list[Lane]:
    """Return the lanes of some streams, the most valuable first."""
    lanes = lanes_in_order(streams, members, tokens, values, ceilings)
    lanes.sort(key=_place)
    return lanes


def _place(lane: Lane) -> tuple[float, int, int]:
    return lane.negative_value, lane.last_used, lane.arrival


class Frontier:
    """The proposals of all streams at one lane class, and how P rows are shared in a cohort."""

    __slots__ = ("_admissions", "_first", "_rankings", "_ranks", "_table", "_tops")

    def __init__(self, streams: Streams, pricing: Pricing) -> None:
        table, first, lane_class, by = pricing
        self._table = table
        self._first = first
        width = lane_class - first
        lengths = table.lengths[lane_class]
        tokens = np.diff(table.tokens[first : lane_class + 1], axis=0)
        marginals = (tokens * streams.token).T
        slots = _integers([request.row for request in streams.requests])
        claims = marginals if by is None else by[:, :width]
        self._admissions = frontier_order(claims, lengths, slots)
        falling = -np.sort(-marginals, axis=None)
        self._tops: Floats = np.zeros(len(falling) + 1)
        np.cumsum(falling, out=self._tops[1:])
        whole = table.values[lane_class]
        keys = np.stack([whole, table.values[first], whole / lengths])
        self._rankings = ranked(keys, np.broadcast_to(lengths, keys.shape), streams.used)
        self._ranks: Integers | None = None
        """Place of every stream in each of them, once asked for."""

    @property
    def tops(self) -> Floats:
        """Sums of the 0, 1, ... largest marginals of all streams."""
        return self._tops

    def cohorts(
        self,
        batch: int,
        packed: int,
        bonus: Floats,
        *,
        every: bool = False,
        least: float = -np.inf,
    ) -> list[Cohort]:
        """Return the best cohorts among the prefixes of the three orderings, at most B of them.

        `bonus` [n] is what each served stream adds whatever its length. Only the best value is
        returned (more than one cohort on a tie), or all when `every`. Where no cohort is worth
        `least`, it is some cohort that is worth less.
        """
        count = self._table.values.shape[1]
        sizes = np.arange(1, min(batch, packed, count) + 1)
        pending = (self._table.values[self._first] + bonus)[self._rankings]
        spare = np.minimum(packed - sizes, len(self._tops) - 1)
        bounds = np.cumsum(pending, axis=1)[:, : len(sizes)] + self._tops[spare]
        if len(sizes) == count:
            # Every ordering ends in the same cohort, so one of the three stands for all.
            bounds[1:, -1] = -np.inf
        todo = np.isfinite(bounds)
        if every:
            return self.priced(self._members(np.argwhere(todo)), packed, bonus)
        bounds[~todo] = -np.inf
        best: list[Cohort] = []
        while (top := float(bounds[np.unravel_index(bounds.argmax(), bounds.shape)])) > -np.inf:
            if best and top < least - SLACK * abs(least):
                break
            floor = best[0].value if best else top
            wanted = bounds >= floor - SLACK * max(abs(floor), 1.0)
            if not wanted.any():
                break
            members = self._members(np.argwhere(wanted))
            bounds[wanted] = -np.inf
            found = self.best_priced(members, packed, bonus, least=best[0].value if best else None)
            if found and best and found[0].value > best[0].value:
                best = []
            best += found
        return best

    def _members(self, places: Integers) -> Flags:
        """Return the streams of prefixes [m, n]: `places` [m, 2] are an ordering and a size less
        one."""
        if self._ranks is None:
            self._ranks = np.argsort(self._rankings, axis=1)
        return self._ranks[places[:, 0]] <= places[:, [1]]

    def priced(self, members: Flags, packed: int, bonus: Floats) -> list[Cohort]:
        """Price cohorts, `members` [m, n] of at most `packed` lanes, by their causal allocation."""
        lengths, values = self._shared(members, packed, bonus)
        return [
            _cohort(inside, length, value)
            for inside, length, value in zip(members, lengths, values.tolist(), strict=True)
        ]

    def best_priced(
        self, members: Flags, packed: int, bonus: Floats, *, least: float | None = None
    ) -> list[Cohort]:
        """Return those of `priced` with the best value, if that is `least` or more."""
        lengths, values = self._shared(members, packed, bonus)
        top = float(values[values.argmax()])
        if least is not None and top < least:
            return []
        places = (values == top).nonzero()[0].tolist()
        return [_cohort(members[place], lengths[place], top) for place in places]

    def _shared(self, members: Flags, packed: int, bonus: Floats) -> tuple[Integers, Floats]:
        """Return how each cohort shares its rows [m, n], and what that is worth [m]."""
        table, count = self._table, self._table.values.shape[1]
        capacities = np.full(len(members), packed, dtype=np.int64)
        lengths = lengths_of_cohorts(self._admissions, members, capacities)
        lane = table.values[self._first + np.maximum(lengths, 1) - 1, np.arange(count)]
        return lengths, np.where(members, lane + bonus, 0.0).sum(axis=1)


def _cohort(inside: Flags, lengths: Integers, value: float) -> Cohort:
    chosen = inside.nonzero()[0]
    return Cohort(chosen, lengths[chosen], value)
