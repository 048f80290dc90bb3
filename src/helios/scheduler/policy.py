"""The choice: every feasible candidate, one total order, and every term of a score for people.

Indeterminate beats determinate; then value per time; then shorter known time, more served requests,
less recently used requests, smaller physical padding, and last the catalog's order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from helios.scheduler.candidates import Candidate, single_candidates, waiting_price
from helios.scheduler.catalog import GraphKind
from helios.scheduler.cost import CostAges
from helios.scheduler.lookahead import pair_candidates
from helios.scheduler.plan import CandidateScore, ScheduledStep, SelectionReason
from helios.scheduler.records import Phase
from helios.scheduler.stages import STAGE_KINDS, work_of
from helios.scheduler.utility import Lane, Units, View, units_of

QUEUEABLE = (GraphKind.DECODE,)
"""Kinds that may occupy both frame slots."""

RankKey = tuple[tuple[bool, float, float, int], tuple[int, ...], int, int, int, tuple[int, ...]]


class Decision:
    """All candidates of one view, comparable in one scale; the best one is `winner`."""

    __slots__ = ("candidates", "units", "view", "waiting", "winner")

    def __init__(self, view: View) -> None:
        self.view = view
        self.units: Units = units_of(view)
        self.waiting = waiting_price(view, self.units)
        self.candidates = single_candidates(view, self.units, self.waiting)
        self.candidates += pair_candidates(view, self.units, self.waiting)
        self.winner: Candidate | None = best_of(self.candidates)

    def alternatives(self) -> list[Candidate]:
        """Return every feasible candidate, redundant padding included: what a probe may run."""
        singles = single_candidates(self.view, self.units, self.waiting, padded=True)
        return singles + pair_candidates(self.view, self.units, self.waiting, padded=True)

    def ranked(self) -> list[Candidate]:
        """Return the candidates, best first."""
        return sorted(self.candidates, key=rank_key)


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


class Decided(NamedTuple):
    """A decision as it can be explained: what was compared, and how old every cost was."""

    decision: Decision
    ages: CostAges
    selected: Selected | None
    """None when there was no candidate."""


def best_of(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the first candidate by rank; the slower half of the rank is computed for ties only."""
    best: list[Candidate] = []
    for candidate in candidates:
        if not best or candidate[:4] < best[0][:4]:
            best = [candidate]
        elif candidate[:4] == best[0][:4]:
            best.append(candidate)
    return min(best, key=rank_key) if len(best) > 1 else (best[0] if best else None)


def rank_key(candidate: Candidate) -> RankKey:
    """Return the place of a candidate in the policy's total order (smaller is better)."""
    following = candidate.following_index
    return (
        candidate[:4],
        tuple(sorted(lane.last_used for lane in candidate.cohort)),
        candidate.padding,
        candidate.graph_index,
        -1 if following is None else following,
        tuple(lane.arrival for lane in candidate.cohort),
    )


def reason_of(candidate: Candidate) -> SelectionReason:
    """Return why a winner was selected."""
    return SelectionReason.ORDINARY if candidate.determinate else SelectionReason.DISCOVERY


def needs_empty_queue(view: View, candidate: Candidate, *, is_fresh: bool) -> bool:
    """Tell whether the candidate depends on the completion of everything submitted before it."""
    if not is_fresh or view.shapes.catalog.graphs[candidate.graph_index].kind not in QUEUEABLE:
        return True
    return any(lane.request.needs_feedback for lane in candidate.cohort)


def score_of(
    decision: Decision, candidate: Candidate, ages: CostAges, ttl_ns: int
) -> CandidateScore:
    """Return every term of a candidate's score."""
    view, units = decision.view, decision.units
    graphs = view.shapes.catalog.graphs
    cohort = candidate.cohort
    retires = graphs[candidate.graph_index].kind is GraphKind.TERMINAL
    service = sum(lane.service for lane in cohort)
    if candidate.following_lane is not None:
        service += candidate.following_lane.service
    age = sum(lane.age for lane in cohort)
    age_ns = ages.age_ns(candidate.graph_index)
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
        service_value=service,
        delivery_value=sum(lane.delivery for lane in cohort),
        age_credit=age + candidate.served * candidate.age_slope * candidate.duration_ms,
        terminal_value=candidate.served * units.terminal if retires else 0.0,
        waiting_cost=0.5 * whole_ms * decision.waiting if candidate.determinate else 0.0,
        duration_ms=candidate.duration_ms,
        following=None if following is None else graphs[following].name,
        following_ms=candidate.following_ms,
        cost_age_ns=age_ns,
        padding=candidate.padding,
    )


def steps_of(candidate: Candidate, kind: GraphKind) -> tuple[ScheduledStep, ...]:
    """Freeze a winner's cohort into the lanes of a plan of `kind`."""
    if kind in STAGE_KINDS or any(lane.request.window is not None for lane in candidate.cohort):
        return tuple([_staged_step(lane, kind) for lane in candidate.cohort])
    return tuple(
        [
            ScheduledStep(
                request.handle,
                request.row,
                request.position_after(request.queued_tokens),
                lane.prompt_tokens,
                lane.output_ceiling,
                request.pages,
                incarnation=request.incarnation,
            )
            for lane in candidate.cohort
            for request in (lane.request,)
        ]
    )


def _staged_step(lane: Lane, kind: GraphKind) -> ScheduledStep:
    request = lane.request
    work = work_of(request, kind, lane.prompt_tokens)
    return ScheduledStep(
        request.handle,
        request.row,
        request.position_after(request.queued_tokens),
        lane.prompt_tokens,
        lane.output_ceiling,
        request.pages,
        snapshot_row=work.snapshot_row,
        image_index=work.image_index,
        feature_offset=work.feature_offset,
        is_retired=kind is GraphKind.SNAPSHOT and request.phase is Phase.TERMINAL,
        incarnation=work.incarnation,
    )
