"""The ranked candidates of a decision with every term of their scores, for people and traces.

A trace asks for them at every frame, so nearly all of them are read out of the arrays that the
decision was made from: a candidate with the tuples of its lanes takes several times as long. The
numbers are those of the tuples bit for bit, because both add up the same values in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeGuard

import numpy as np

from helios.scheduler.blocks import Block, Candidate, rank_key
from helios.scheduler.candidates import undominated
from helios.scheduler.cost import CostAges
from helios.scheduler.generation import Generation
from helios.scheduler.geometry import Flags, Floats, Integers
from helios.scheduler.plan import CandidateScore, SelectionReason
from helios.scheduler.policy import Decision, is_queueable, score_of

Head = tuple[bool, float, float, int]
"""The leading part of a candidate's rank, `Candidate[:4]`."""


class _Entry(NamedTuple):
    """A candidate by its rank; the rest of its rank is made when it is tied."""

    head: Head
    graph_index: int
    whole_key: Callable[[], object]
    score: Callable[[], CandidateScore]


def ranked_scores(
    decision: Decision, ages: CostAges, ttl_ns: int, selected_graph: int
) -> tuple[CandidateScore, ...]:
    """Return the scores of all undominated candidates, best first, the selected one before all.

    `selected_graph` is that of the candidate that was chosen by value or by service per time.
    """
    entries: list[_Entry] = []
    for block in decision.blocks:
        if _is_plain(block):
            entries += _Plain(decision, block, ages, ttl_ns).entries()
        else:
            entries += _made(decision, block, range(len(block.rate)), ages, ttl_ns)
    entries.sort(key=itemgetter(0))
    ranked: list[_Entry] = []
    for _, group in groupby(entries, itemgetter(0)):
        tied = list(group)
        if len(tied) > 1:
            tied.sort(key=lambda entry: entry.whole_key())  # type: ignore[arg-type,return-value]
        ranked += tied
    if ranked[0].graph_index != selected_graph:
        # Service per time has chosen another width than the score (utility 9.14), among streams
        # alone: there every graph has one candidate.
        ranked.sort(key=lambda entry: entry.graph_index != selected_graph)
    return tuple([entry.score() for entry in ranked])


def _is_plain(block: Block) -> TypeGuard[Generation]:
    """Tell whether streams alone stand in this block, and rank alike whatever a program takes."""
    return isinstance(block, Generation) and block.prompts is None and not block.has_shares


def _made(
    decision: Decision, block: Block, places: Sequence[int], ages: CostAges, ttl_ns: int
) -> list[_Entry]:
    """Return some entries of a block by their candidates."""
    found = [undominated(decision.view, block, place) for place in places]
    return [_of_candidate(decision, each, ages, ttl_ns) for each in found if each is not None]


def _of_candidate(decision: Decision, candidate: Candidate, ages: CostAges, ttl_ns: int) -> _Entry:
    return _Entry(
        candidate[:4],
        candidate.graph_index,
        partial(rank_key, candidate),
        partial(score_of, decision, candidate, ages, ttl_ns),
    )


class _Plain:
    """The entries of a block of streams alone whose best cohort are the most valuable lanes."""

    def __init__(self, decision: Decision, block: Generation, ages: CostAges, ttl_ns: int) -> None:
        self._decision, self._block, self._ages, self._ttl_ns = decision, block, ages, ttl_ns
        scene, programs, streams = block.scene, block.programs, block.scene.streams
        self._table, self._slope = scene.table, scene.slope
        order, count = self._table.order, len(streams.requests)
        self._places: Integers = order + np.arange(0, order.size, count)[:, None]
        """Of every class, the places of its lanes in order in a flat table."""
        self._cells: tuple[Integers, Integers] = (programs.lane_class, block.lanes - 1)
        """Where the sum of each entry's lanes stands in running sums of all classes."""
        tokens = self._table.tokens.ravel()[self._places]
        self._service = self._sums(tokens * streams.token.take(order))
        self._delivery = self._sums(streams.delivery.take(order))
        self._age = self._sums(streams.age.take(order))
        self._rows: Integers = self._table.rows[programs.lane_class, block.lanes]
        beside = programs.prompt + (programs.batch - 1) * programs.width
        capacity = np.where(programs.prompt > 0, beside, programs.packed)
        self._padding: list[int] = (capacity - self._rows).tolist()
        self._known_ms: list[float] = block.known_ms.tolist()
        self._rates: list[float] = block.rate.tolist()
        self._served: list[int] = block.lanes.tolist()
        self._graphs: list[int] = block.graph.tolist()
        self._classes: list[int] = programs.lane_class.tolist()
        self._handles = [request.handle for request in streams.requests]
        waits = [request.needs_feedback for request in streams.requests]
        self._waits = waits if any(waits) else None

    def entries(self) -> list[_Entry]:
        """Return the undominated candidates of the block."""
        block = self._block
        simple = block.settled & (block.lanes > 0) & (block.rate > -np.inf)
        if block.found:
            simple[list(block.found)] = False
        lengths, is_held = self._table.lengths, self._held()
        left: Flags = ~simple
        if (lengths[:, :1] != lengths).any():
            # Where the best cohort is redundant, one with a longer lane may not be.
            left |= is_held
            hopeless = block.hopeless()
            if hopeless is not None:
                left &= ~hopeless
        simple &= ~is_held
        found = [self._entry(place) for place in simple.nonzero()[0].tolist()]
        others: list[int] = left.nonzero()[0].tolist()
        return found + _made(self._decision, block, others, self._ages, self._ttl_ns)

    def _sums(self, values: Floats) -> list[float]:
        """Return the sum of each entry's lanes of `values` [classes, n], added in order."""
        sums: list[float] = np.add.accumulate(values, axis=1)[self._cells].tolist()
        return sums

    def _held(self) -> Flags:
        """Tell of which entries a smaller shape holds the best cohort."""
        geometry, programs = self._decision.view.shapes.geometry, self._block.programs
        nested = geometry.generating_nested
        held = np.zeros(len(programs.graph), dtype=bool)
        if not len(nested.place):
            return held
        lengths = self._table.lengths.ravel()[self._places]
        widest = np.maximum.accumulate(lengths, axis=1)[self._cells]
        rows = np.minimum(self._rows, programs.packed)
        held[nested.place[geometry.holds(nested, self._block.lanes, widest, rows)]] = True
        return held

    def _entry(self, place: int) -> _Entry:
        known_ms = self._known_ms[place]
        head = (known_ms > 0.0, -self._rates[place], known_ms, -self._served[place])
        return _Entry(
            head,
            self._graphs[place],
            partial(self._whole_key, place, head),
            partial(self._score, place),
        )

    def _members(self, place: int) -> list[int]:
        """Return the streams of an entry's cohort, the most valuable first."""
        members: list[int] = self._table.order[self._classes[place], : self._served[place]].tolist()
        return members

    def _whole_key(self, place: int, head: Head) -> object:
        members, streams = self._members(place), self._block.scene.streams
        used = streams.used[members].tolist()
        pairs = sorted(zip(used, streams.arrival[members].tolist(), strict=True))
        return (
            head,
            tuple([last_used for last_used, _ in pairs]),
            self._padding[place],
            self._graphs[place],
            -1,
            tuple([arrival for _, arrival in pairs]),
        )

    def _score(self, place: int) -> CandidateScore:
        """Return what `score_of` returns of the candidate of this entry."""
        decision, graph_index = self._decision, self._graphs[place]
        view, members, known_ms = decision.view, self._members(place), self._known_ms[place]
        graph = view.shapes.catalog.graphs[graph_index]
        age_ns = self._ages.age_ns(view.cost_index_of(graph_index))
        is_ready = age_ns is not None and age_ns <= self._ttl_ns and is_queueable(graph)
        if is_ready and self._waits is not None:
            is_ready = not any(map(self._waits.__getitem__, members))
        is_known = known_ms > 0.0
        return CandidateScore(
            graph=graph.name,
            graph_index=graph_index,
            handles=tuple([self._handles[member] for member in members]),
            reason=SelectionReason.ORDINARY if is_known else SelectionReason.DISCOVERY,
            needs_empty_queue=not is_ready,
            value_rate=self._rates[place],
            log_scale=decision.units.log_scale,
            service_value=self._service[place],
            delivery_value=self._delivery[place],
            age_credit=self._age[place] + self._served[place] * self._slope * known_ms,
            terminal_value=0.0,
            waiting_cost=decision.waiting.cost(known_ms) if is_known else 0.0,
            duration_ms=known_ms,
            following=None,
            following_ms=0.0,
            cost_age_ns=age_ns,
            padding=self._padding[place],
        )
