"""Exploration over the state: the ordinary winner or a funded probe, and the life of an episode.

    plan      choose: discovery > timing refresh > acceptance probe > ordinary winner
    commit    still funded, still stale -> the episode opens, the attempt is noted
    complete  ordinary work earns, the probe pays; fail: the probe pays the time it took
    time      an idle machine drops what it has saved

The order of the ledgers and all conditions are in docs/design/scheduling-utility.md section 11.
"""

from __future__ import annotations

from helios.scheduler.blocks import Candidate
from helios.scheduler.errors import StalePlanError
from helios.scheduler.plan import ScheduledPlan, SelectionReason
from helios.scheduler.policy import Decision, Selected, rank_key, reason_of
from helios.scheduler.records import ExplorationAccount
from helios.scheduler.refresh import stale_alternative, stale_attention_ns
from helios.scheduler.state import State


def selected(state: State, decision: Decision, winner: Candidate) -> Selected:
    """Return the ordinary winner of a decision, or the probe that displaces it.

    With no ledger full this is two comparisons.
    """
    reason = reason_of(winner)
    if reason is SelectionReason.DISCOVERY:
        return Selected(winner, reason)
    funds = state.funds
    if funds.can_open(SelectionReason.TIMING_REFRESH):
        alternative = _due_refresh(state, decision, winner)
        if alternative is not None:
            credit_ms = funds.timing.credit_ms
            return Selected(alternative, SelectionReason.TIMING_REFRESH, credit_ms)
    return Selected(winner, reason)


def _due_refresh(state: State, decision: Decision, winner: Candidate) -> Candidate | None:
    attention = stale_attention_ns(
        state.costs,
        state.dispatches,
        cost_indices=state.standing().cost_indices,
        winner_graph=winner.graph_index,
        now_ns=state.now_ns,
    )
    if not attention:
        return None
    # Padding adds shapes to the kinds that have candidates, never a kind: most plans at full credit
    # end here, because what is stale in steady load has no work.
    graphs = state.catalog.graphs
    stale_kinds = dict.fromkeys(graphs[index].kind for index in attention)
    if not any(decision.serves(kind) for kind in stale_kinds):
        return None
    return stale_alternative(decision.alternatives(), attention, rank=rank_key)


def check_funded(state: State, plan: ScheduledPlan, *, is_fresh: bool) -> None:
    """Raise StalePlanError for a probe that its ledger or its estimate no longer justifies."""
    if state.funds.ledger_of(plan.reason) is None:
        return
    if not state.funds.can_open(plan.reason):
        raise StalePlanError(f"no credit is left for a {plan.reason.value} of {plan.graph.name}")
    if plan.reason is SelectionReason.TIMING_REFRESH and is_fresh:
        raise StalePlanError(f"the cost of {plan.graph.name} has become fresh")


def on_commit(state: State, plan: ScheduledPlan) -> None:
    """Note the attempt of a checked plan, and open the episode of a probe."""
    state.dispatches.record(plan.cost_index, state.now_ns)
    state.funds.open(plan.reason)


def on_time(state: State) -> None:
    """Drop positive credit when time has passed with nothing in flight and nothing runnable."""
    if not state.window.frames and state.standing().is_empty:
        state.funds.discard()


def accounts(state: State) -> dict[SelectionReason, ExplorationAccount]:
    """Return both ledgers as they stand, by the reason that each pays for."""
    funds = state.funds
    ledgers = {
        SelectionReason.TIMING_REFRESH: funds.timing,
        SelectionReason.ACCEPTANCE_LEARNING: funds.learning,
    }
    return {
        reason: ExplorationAccount(
            ledger.credit_ms, ledger.ordinary_ns, ledger.spent_ns, ledger.is_open
        )
        for reason, ledger in ledgers.items()
    }
