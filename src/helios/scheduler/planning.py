"""The next plan: the projected view, the decision, and the gate for winners that need feedback."""

from __future__ import annotations

from functools import partial

from helios.scheduler.paging import with_pages
from helios.scheduler.plan import CandidateScore, ScheduledPlan
from helios.scheduler.policy import Decision, needs_empty_queue, reason_of, score_of, steps_of
from helios.scheduler.state import State
from helios.scheduler.utility import View
from helios.scheduler.window import projected_view


def plan(state: State) -> ScheduledPlan | None:
    """Return the best next frame; see `Scheduler.plan`."""
    window, now_ns, costs = state.window, state.now_ns, state.costs
    if window.is_closed(now_ns):
        return None
    standing = state.standing()
    view = View(state.shapes, standing.durations_ms, state.policy, window.start_ns(now_ns))
    running = window.frames[0] if window.frames else None
    decision = Decision(projected_view(view, standing, running))
    ages = costs.ages_at(now_ns)
    state.decision = (decision, ages)
    winner = decision.winner
    if winner is None:
        return None
    graph_index = winner.graph_index
    cost_index = standing.cost_indices[graph_index]
    is_fresh = costs.is_fresh(cost_index, now_ns)
    needs_empty = needs_empty_queue(view, winner, is_fresh=is_fresh)
    if needs_empty and running is not None:
        # A lower-valued frame that could be queued now must not displace this winner.
        return None
    return ScheduledPlan(
        graph_index=graph_index,
        graph=state.catalog.graphs[graph_index],
        steps=with_pages(state, steps_of(winner, state.catalog.graphs[graph_index].kind)),
        estimated_duration_ns=costs.estimates_ns[cost_index],
        reason=reason_of(winner),
        needs_empty_queue=needs_empty,
        epoch=state.version,
        value_rate=-winner.negative_rate,
        log_scale=decision.units.log_scale,
        cost_index=cost_index,
        explanation=partial(score_of, decision, winner, ages, costs.ttl_ns),
    )


def explain(state: State) -> tuple[CandidateScore, ...]:
    """Return every candidate of the last decision; see `Scheduler.explain`."""
    if state.decision is None:
        return ()
    decision, ages = state.decision
    return tuple(
        score_of(decision, candidate, ages, state.costs.ttl_ns) for candidate in decision.ranked()
    )
