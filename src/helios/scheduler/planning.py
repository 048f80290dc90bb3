"""The next plan: the projected view, the decision, and the gate for winners that need feedback."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from helios.scheduler import exploration
from helios.scheduler.blocks import Candidate
from helios.scheduler.explaining import ranked_scores
from helios.scheduler.paging import with_pages
from helios.scheduler.plan import CandidateScore, ScheduledPlan, seal
from helios.scheduler.policy import (
    Decided,
    Decision,
    cost_index_of,
    needs_empty_queue,
    requests_of,
    score_of,
    steps_of,
)
from helios.scheduler.state import State
from helios.scheduler.utility import View
from helios.scheduler.window import projected_view


def plan(state: State) -> ScheduledPlan | None:
    """Return the best next frame; see `Scheduler.plan`."""
    window, now_ns, costs = state.window, state.now_ns, state.costs
    if window.is_closed(now_ns):
        return None
    standing = state.standing()
    view = View(
        standing.shapes,
        standing.durations_ms,
        state.policy,
        window.start_ns(now_ns),
        standing.durations,
    )
    view.known_interval = (standing.interval_ms,)
    view.estimates, view.yields, view.roster = standing.estimates, standing.yields, standing.roster
    if costs.has_intervals:
        view.cost_indices = standing.cost_indices
        view.prompt_costs = {
            prompt: standing.prompt_entries(costs, prompt) for prompt in standing.prefilling
        }
    running = window.frames[0] if window.frames else None
    decision = Decision(projected_view(view, standing, running, state.class_price))
    ages = costs.ages_at(now_ns)
    winner = decision.winner
    if winner is None:
        state.decision = Decided(decision, ages, None, state.version)
        return None
    choice = exploration.selected(state, decision, winner)
    state.decision = Decided(decision, ages, choice, state.version)
    candidate = choice.candidate
    graph = state.catalog.graphs[candidate.graph_index]
    cost_index = cost_index_of(view, candidate)
    is_fresh = costs.is_fresh(cost_index, now_ns)
    needs_empty = choice.is_probe or needs_empty_queue(view, candidate, is_fresh=is_fresh)
    if needs_empty and running is not None:
        # A lower-valued frame that could be queued now must not displace this winner.
        return None
    standing.planned = ScheduledPlan(
        graph_index=candidate.graph_index,
        graph=graph,
        steps=with_pages(state, steps_of(candidate, graph.kind, state.speculation.mode)),
        estimated_duration_ns=costs.estimates_ns[cost_index],
        reason=choice.reason,
        needs_empty_queue=needs_empty,
        epoch=state.version,
        value_rate=-candidate.negative_rate,
        log_scale=decision.units.log_scale,
        cost_index=cost_index,
        prefill_row=candidate.prefill_row,
        explanation=partial(_score, state.decision, candidate, costs.ttl_ns),
    )
    standing.planned_requests = [*requests_of(candidate)]
    return seal(standing.planned, state.table)


def explain(state: State) -> tuple[CandidateScore, ...]:
    """Return every candidate of the last decision; see `Scheduler.explain`."""
    decided = state.decision
    if decided is None:
        return ()
    if decided.scores is None:
        selected = decided.selected
        if state.version != decided.version:
            # The lanes of the others would be made from requests and costs that have moved on.
            return _scores(state, decided, [selected.candidate] if selected else [])
        if selected is None:
            decided.scores = ()
        elif selected.is_probe:
            # A probe runs although others rank above it, and may be too padded to be ranked at all.
            others = (c for c in decided.decision.ranked() if c != selected.candidate)
            decided.scores = _scores(state, decided, [selected.candidate, *others])
        else:
            decided.scores = ranked_scores(
                decided.decision, decided.ages, state.costs.ttl_ns, selected.candidate.graph_index
            )
    return decided.scores


def _scores(
    state: State, decided: Decided, candidates: Sequence[Candidate]
) -> tuple[CandidateScore, ...]:
    return tuple(_score(decided, candidate, state.costs.ttl_ns) for candidate in candidates)


def _score(decided: Decided, candidate: Candidate, ttl_ns: int) -> CandidateScore:
    """Return every term of a candidate's score, with the reason of the one that was selected."""
    score = score_of(decided.decision, candidate, decided.ages, ttl_ns)
    selected = decided.selected
    if selected is None or not selected.is_probe or candidate != selected.candidate:
        return score
    return score._replace(
        reason=selected.reason,
        needs_empty_queue=True,
        exploration_credit_ms=selected.credit_ms,
    )
