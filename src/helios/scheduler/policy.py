"""The choice: every feasible candidate, one total order, and every term of a score for people.

Indeterminate beats determinate; then value per time; then shorter known time, more served requests,
less recently used requests, smaller physical padding, and last the catalog's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from helios.scheduler.blocks import Block, Candidate, Listed, Terms, rank_key
from helios.scheduler.candidates import (
    generating_blocks,
    mixed_blocks,
    prefill_blocks,
    terminal_blocks,
    undominated,
    waiting_of,
)
from helios.scheduler.catalog import GraphDescriptor, GraphKind, ProposalSource
from helios.scheduler.config import DecodeMode
from helios.scheduler.cost import CostAges
from helios.scheduler.dominance import is_dominated
from helios.scheduler.generation import Generation
from helios.scheduler.geometry import Integers, chosen
from helios.scheduler.lanes import DeferredLanes
from helios.scheduler.lookahead import preparing_blocks
from helios.scheduler.plan import (
    CandidateScore,
    MixedLane,
    MixedRole,
    ScheduledStep,
    SelectionReason,
)
from helios.scheduler.prefills import Prefills, prefills_reach
from helios.scheduler.records import Phase
from helios.scheduler.requests import Request
from helios.scheduler.rounds import optimistic_yields
from helios.scheduler.scene import Scene, placed_yields, scene_of
from helios.scheduler.screening import NONE_LEFT, Screening, Verdict, can_screen
from helios.scheduler.selection import Selection, best_of, least_recent
from helios.scheduler.stages import STAGE_KINDS, work_of
from helios.scheduler.streams import Streams, streams_of
from helios.scheduler.utility import Lane, Units, View, prompts_of, units_of
from helios.scheduler.widths import ample_rounds, asks_for_width, shortest_ample

__all__ = ["Decision", "best_of", "rank_key"]

STREAM_KINDS = (GraphKind.DECODE, GraphKind.SPECULATIVE)
"""Kinds that serve streams alone."""

_NEEDS_FEEDBACK = attrgetter("needs_feedback")
_WINDOW = attrgetter("window")
"""A window is a tuple of three numbers, so it is true."""

_NEW_STEP = partial(tuple.__new__, ScheduledStep)
"""Makes a step of all its fields; the generated constructor takes several times as long."""

_PLAIN = tuple(list(ScheduledStep._field_defaults.values())[2:-1])
"""What a lane has that has no stage or image: all between its role and its row's incarnation."""

QUEUEABLE = (GraphKind.DECODE, GraphKind.SPECULATIVE)
"""Kinds that may occupy both frame slots; copied proposals need the tokens before them."""


class Decision:
    """All candidates of one view, comparable in one scale; the best one is `winner`."""

    __slots__ = (
        "_alone",
        "_others",
        "_prefills",
        "_prompts",
        "_scene",
        "_screening",
        "_streams",
        "units",
        "view",
        "waiting",
        "winner",
    )

    def __init__(self, view: View) -> None:
        self.view = view
        self.units: Units = units_of(view)
        self.waiting = waiting_of(view, self.units)
        self._alone: list[Block] | None = None
        self._scene: Scene | None = None
        self._screening: Screening | None = None
        self._streams: Streams = streams_of(view, self.units, view.decode_interval_ms())
        self._prompts = prompts_of(view, self.units, view.prefilling) if view.prefilling else []
        self._others = self._other_blocks()
        self._prefills: list[Block] | None = None
        self.winner = self._best()
        if self.winner is not None and self.winner.determinate:
            self.winner = self._at_its_width(self.winner)

    def _best(self) -> Candidate | None:
        """Return the first candidate by rank of all families.

        The few candidates with prompts or prerequisites come first, because nearly all programs for
        decoders alone are ruled out by the best of them without an order of any lanes.
        """
        selection, geometry = None, self.view.shapes.geometry
        best, top = None, -np.inf
        if self._others or self._prompts:
            selection = Selection(self._others, geometry)
            best = self._best_beside(selection)
            top = selection.top
        if not self.view.decoders:
            return best
        verdict = self._screened(best, top)
        if verdict is not None and not len(verdict.left):
            if best is None or verdict.winner is None or verdict.best > top:
                return verdict.winner or best
            blocks: list[Block] = [_listed(verdict.winner, verdict.best)]
        elif verdict is None:
            blocks = self._alone_blocks()
        else:
            programs = chosen(geometry.contest(len(self.view.decoders)).programs, verdict.left)
            blocks = [Generation(self.scene, programs, floor=verdict.best)]
            if verdict.winner is not None:
                blocks.append(_listed(verdict.winner, verdict.best))
        if selection is None:
            return Selection(blocks, geometry).winner()
        for block in blocks:
            selection.add(block)
        return selection.winner()

    def _best_beside(self, selection: Selection) -> Candidate | None:
        """Return the best of everything but decoders alone; prefills only where one may be it."""
        best = selection.winner() if self._others else None
        if self._prompts and (
            best is None
            or not best.determinate
            or prefills_reach(self.view, self._prompts, self.waiting, selection.top)
        ):
            for block in self._prefill_blocks():
                selection.add(block)
                best = selection.winner()
        return best

    def _at_its_width(self, winner: Candidate) -> Candidate:
        """Return a winner, or, where it serves everybody there is, the round that does so best."""
        view, contest = self.view, self.view.shapes.geometry.contest
        if not view.decoders or not asks_for_width(view, winner.served):
            return winner
        programs = contest(len(view.decoders))
        screening, values = self._screening, self._streams.token
        tokens = self.scene.table.tokens if screening is None else screening.tokens
        known_ms = view.durations.take(programs.programs.graph)
        inexact = self.scene.inexact if screening is None else screening.inexact
        ample = ample_rounds(programs, tokens, values, known_ms, inexact)
        places = dict(zip(programs.programs.graph[ample.places].tolist(), count()))
        place = places.get(winner.graph_index)
        if place is None:
            service = sum([lane.service for lane in winner.cohort])
            rate = service / winner.duration_ms
        else:
            rate = float(ample.service_rates[place])
        share = view.policy.alone_service_share
        for found in shortest_ample(ample, winner.known_ms, rate, share):
            candidate = self._everybody_in(int(programs.programs.graph[found]), found)
            if not is_dominated(view.shapes.geometry, candidate):
                return candidate
        return winner

    def _everybody_in(self, graph: int, place: int) -> Candidate:
        """Return the candidate of a program that holds everybody; `place` is in the contest."""
        if self._screening is not None:
            return self._screening.candidate(place)
        entries = self.view.shapes.geometry.generating.graph
        block = next(block for block in self.blocks if isinstance(block, Generation))
        return block.best(int((entries == graph).nonzero()[0][0]))

    def _screened(self, best: Candidate | None, floor: float) -> Verdict | None:
        """Return what a screening finds among decoders alone; None where it cannot tell.

        `best` is the best of everything else, and `floor` its score.
        """
        view = self.view
        if not can_screen(view, self._streams):
            return None
        if best is not None and not best.determinate:
            # Every program for decoders alone is measured: what is not measured goes before them.
            return Verdict(None, floor, NONE_LEFT)
        yields, scene = placed_yields(view, self._streams), self._scene
        table = None if scene is None else scene.table
        screening = Screening(
            view, self._streams, yields, slope=self._slope(), waiting=self.waiting, table=table
        )
        verdict = screening.verdict(-np.inf if best is None else floor)
        if verdict is not None:
            self._screening = screening
        return verdict

    def _other_blocks(self) -> list[Block]:
        """Return the blocks of everything but decoders alone."""
        view, shapes, units = self.view, self.view.shapes, self.units
        found: list[Block] = []
        if view.prefilling and len(shapes.geometry.mixed.graph):
            found += mixed_blocks(self.scene, self._prompts)
        if view.terminals:
            found += terminal_blocks(view, units, self.waiting)
        retires = view.terminals and shapes.by_kind[GraphKind.SNAPSHOT]
        if view.initializing or view.blocked or retires:
            found += preparing_blocks(self.scene, units)
        return found

    def _prefill_blocks(self) -> list[Block]:
        if self._prefills is None:
            prompts = self._prompts
            self._prefills = prefill_blocks(self.view, prompts, self.waiting) if prompts else []
        return self._prefills

    def _alone_blocks(self) -> list[Block]:
        if self._alone is None:
            self._alone = generating_blocks(self.scene, ())
        return self._alone

    def _slope(self) -> float:
        return self.units.age * (self.view.decode_interval_ms() or 0.0)

    @property
    def scene(self) -> Scene:
        """What the blocks share, made when asked for from what the decision has read."""
        if self._scene is None:
            self._scene = scene_of(
                self.view, self._streams, slope=self._slope(), waiting=self.waiting
            )
        return self._scene

    @property
    def blocks(self) -> list[Block]:
        """Every program of every family, made when asked for."""
        return self._alone_blocks() + self._others + self._prefill_blocks()

    @property
    def candidates(self) -> list[Candidate]:
        """The best undominated candidate of every graph and family, made when asked for."""
        found = [
            undominated(self.view, block, entry)
            for block in self.blocks
            for entry in range(len(block.rate))
        ]
        return [candidate for candidate in found if candidate is not None]

    def alternatives(self, attention_ns: Mapping[int, int]) -> list[Candidate]:
        """Return candidates at the costs looked at least recently, the best of them among these.

        `attention_ns` has, by cost entry, when each was last looked at; other costs are left out.
        Redundant padding is allowed, for this is about graphs and not about the work they do.
        """
        view, units, waiting = self.view, self.units, self.waiting
        blocks: list[Block] = [block for block in self.blocks if isinstance(block, Generation)]
        blocks += terminal_blocks(view, units, waiting, padded=True)
        blocks += prefill_blocks(view, self._prompts, waiting, padded=True)
        blocks += preparing_blocks(self.scene, units, padded=True)
        return least_recent(blocks, [_priced_by(view, block) for block in blocks], attention_ns)

    def optimistic(self) -> list[Block]:
        """Return the programs that generate, priced with acceptance as good as it may still be.

        In the units of this decision; redundant padding included.
        """
        view, found = self.view.optimistic(), self.view.yields
        if found is not None and view.estimates is not None:
            programs = view.shapes.geometry.generating
            view.yields = optimistic_yields(found, view.decoders, programs, view.estimates)
        scene = scene_of(view, self._streams, slope=self._slope(), waiting=self.waiting)
        return generating_blocks(scene, self._prompts)

    def ranked(self) -> list[Candidate]:
        """Return the undominated candidates, best first."""
        return sorted(self.candidates, key=rank_key)


def _listed(winner: Candidate, score: float) -> Listed:
    """Return a block of one candidate, compared by the score that it won by.

    A candidate adds its lanes up in their order, which may round the last bit the other way.
    """
    block = Listed([winner])
    block.rate[0] = score
    return block


class Selected(NamedTuple):
    """What is to run next, and why."""

    candidate: Candidate
    reason: SelectionReason
    credit_ms: float = 0.0
    """Credit of the ledger that a probe spends from; zero for everything else."""

    @property
    def is_probe(self) -> bool:
        """It was not the best by value: exploration pays for it."""
        return self.reason not in (SelectionReason.ORDINARY, SelectionReason.DISCOVERY)


class Decided:
    """A decision as it can be explained: what was compared, and how old every cost was."""

    __slots__ = ("ages", "decision", "scores", "selected", "version")

    def __init__(
        self, decision: Decision, ages: CostAges, selected: Selected | None, version: int
    ) -> None:
        self.decision = decision
        self.ages = ages
        self.selected = selected
        """None when there was no candidate."""
        self.version = version
        """State version up to which its candidates can be made; they are not copied for later."""
        self.scores: tuple[CandidateScore, ...] | None = None
        """All of them, once somebody has asked."""


def reason_of(candidate: Candidate) -> SelectionReason:
    """Return why a winner was selected."""
    return SelectionReason.ORDINARY if candidate.determinate else SelectionReason.DISCOVERY


def is_queueable(graph: GraphDescriptor) -> bool:
    """Tell whether a graph may occupy both frame slots."""
    return graph.kind in QUEUEABLE and graph.source is not ProposalSource.COPY


def cost_index_of(view: View, candidate: Candidate) -> int:
    """Return the cost entry that priced a candidate's graph."""
    graph = view.shapes.catalog.graphs[candidate.graph_index]
    is_prefill = graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
    request = candidate.lanes[0].request if is_prefill else None
    return view.cost_index_of(candidate.graph_index, request)


def _priced_by(view: View, block: Block) -> Integers:
    """Return the cost entry of each entry of a block; a prefill has that of its own prompt."""
    if view.cost_indices is None:
        return block.graph
    if isinstance(block, (Listed, Prefills)):
        entries = [cost_index_of(view, block.best(entry)) for entry in range(len(block.graph))]
        return np.array(entries, dtype=np.int64)
    return np.array(view.cost_indices, dtype=np.int64)[block.graph]


def needs_empty_queue(view: View, candidate: Candidate, *, is_fresh: bool) -> bool:
    """Tell whether the candidate depends on the completion of everything submitted before it."""
    if not is_fresh or not is_queueable(view.shapes.catalog.graphs[candidate.graph_index]):
        return True
    return any(map(_NEEDS_FEEDBACK, requests_of(candidate)))


def requests_of(candidate: Candidate) -> Sequence[Request]:
    """Return the requests of a candidate's cohort, in the order of its lanes."""
    lanes = candidate.lanes
    if isinstance(lanes, DeferredLanes):
        return lanes.requests
    return [lane.request for lane in candidate.cohort]


def ceilings_of(candidate: Candidate) -> Sequence[int]:
    """Return the most output tokens of every lane of a candidate's cohort, in order."""
    lanes = candidate.lanes
    if isinstance(lanes, DeferredLanes):
        return lanes.ceilings
    return [lane.output_ceiling for lane in candidate.cohort]


def _terms_of(decision: Decision, candidate: Candidate) -> Terms:
    """Return what a candidate's value consists of."""
    if candidate.terms is not None:
        return candidate.terms
    cohort, graphs = candidate.cohort, decision.view.shapes.catalog.graphs
    retires = graphs[candidate.graph_index].kind is GraphKind.TERMINAL
    gain = candidate.streams * candidate.age_slope * candidate.duration_ms
    return Terms(
        service=sum(lane.service for lane in cohort),
        delivery=sum(lane.delivery for lane in cohort),
        age=sum(lane.age for lane in cohort) + gain,
        terminal=candidate.served * decision.units.terminal if retires else 0.0,
    )


def score_of(
    decision: Decision, candidate: Candidate, ages: CostAges, ttl_ns: int
) -> CandidateScore:
    """Return every term of a candidate's score."""
    view, units = decision.view, decision.units
    graphs = view.shapes.catalog.graphs
    cohort = candidate.cohort
    terms = _terms_of(decision, candidate)
    age_ns = ages.age_ns(cost_index_of(view, candidate))
    is_fresh = age_ns is not None and age_ns <= ttl_ns
    whole_ms = candidate.duration_ms + candidate.following_ms
    following = candidate.following_index
    return CandidateScore(
        graph=graphs[candidate.graph_index].name,
        graph_index=candidate.graph_index,
        handles=tuple(lane.request.handle for lane in cohort),
        reason=reason_of(candidate),
        needs_empty_queue=needs_empty_queue(view, candidate, is_fresh=is_fresh),
        value_rate=-candidate.negative_rate,
        log_scale=units.log_scale,
        service_value=terms.service,
        delivery_value=terms.delivery,
        age_credit=terms.age,
        terminal_value=terms.terminal,
        saved_waiting=terms.saved_waiting,
        continuation_value=terms.continuation,
        waiting_cost=decision.waiting.cost(whole_ms) if candidate.determinate else 0.0,
        duration_ms=candidate.duration_ms,
        following=None if following is None else graphs[following].name,
        following_ms=candidate.following_ms,
        cost_age_ns=age_ns,
        padding=candidate.padding,
    )


def steps_of(candidate: Candidate, kind: GraphKind, mode: DecodeMode) -> tuple[ScheduledStep, ...]:
    """Freeze a winner's cohort into the lanes of a plan of `kind`."""
    lanes, count = candidate.lanes, candidate.served
    requests: Sequence[Request]
    prompts: Iterable[int]
    ceilings: Sequence[int]
    expected: Sequence[float]
    if isinstance(lanes, DeferredLanes):
        requests, prompts = lanes.requests, repeat(0, count)
        if lanes.prompt is not None:
            prompts = [lanes.prompt.prompt_tokens, *[0] * (count - 1)]
        ceilings, expected = lanes.ceilings, lanes.tokens
    else:
        # Columns of `Lane`: a look-up per lane and field costs more than all of them together.
        columns = zip(*candidate.cohort, strict=True)
        *_, requests, _, _, _, prompts, ceilings, expected = columns
    mixed: Iterable[MixedLane | None] = repeat(None, count)
    if kind is GraphKind.MIXED:
        roles = [MixedLane(MixedRole.GENERATE, mode)] * count
        if candidate.prefill_row >= 0:
            roles[candidate.prefill_row] = MixedLane(MixedRole.PROMPT, mode)
        mixed = roles
    if kind in STAGE_KINDS or any(map(_WINDOW, requests)):
        cohort = candidate.cohort
        return tuple([_staged_step(*each, kind) for each in zip(cohort, mixed, strict=False)])
    if kind in STREAM_KINDS:
        # `position_after`, without a call for each: all of them have output.
        positions = [
            request.spec.prompt_tokens + request.output_count - 1 + request.queued_tokens
            for request in requests
        ]
    else:
        positions = [request.position_after(request.queued_tokens) for request in requests]
    return tuple(
        map(
            _NEW_STEP,
            zip(
                [request.handle for request in requests],
                [request.row for request in requests],
                positions,
                prompts,
                ceilings,
                [request.pages for request in requests],
                expected,
                mixed,
                *[repeat(value, count) for value in _PLAIN],
                [request.incarnation for request in requests],
                strict=True,
            ),
        )
    )


def _staged_step(lane: Lane, mixed: MixedLane | None, kind: GraphKind) -> ScheduledStep:
    request = lane.request
    work = work_of(request, kind, lane.prompt_tokens)
    return ScheduledStep(
        request.handle,
        request.row,
        request.position_after(request.queued_tokens),
        lane.prompt_tokens,
        lane.output_ceiling,
        request.pages,
        lane.expected_tokens,
        mixed=mixed,
        snapshot_row=work.snapshot_row,
        image_index=work.image_index,
        feature_offset=work.feature_offset,
        is_retired=kind is GraphKind.SNAPSHOT and request.phase is Phase.TERMINAL,
        incarnation=work.incarnation,
    )
