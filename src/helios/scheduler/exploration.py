"""Exploration over the state: the ordinary winner or a funded probe, and the life of an episode.

    plan      choose: discovery > timing refresh > acceptance probe > ordinary winner
    commit    still funded, still stale -> the episode opens, the attempt is noted
    complete  ordinary work earns, the probe pays; fail: the probe pays the time it took
    time      an idle machine drops what it has saved

The order of the ledgers and all conditions are in docs/design/scheduling-utility.md section 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import gt, itemgetter
from typing import NamedTuple

import numpy as np

from helios.scheduler.acceptance import COPY, LEARNED
from helios.scheduler.blocks import Block, Candidate
from helios.scheduler.catalog import GraphKind, ProposalSource
from helios.scheduler.config import DecodeMode
from helios.scheduler.errors import StalePlanError
from helios.scheduler.generation import Generation
from helios.scheduler.geometry import Integers
from helios.scheduler.learning import Lane, Offer, Probe, best_probe
from helios.scheduler.plan import ScheduledPlan, SelectionReason
from helios.scheduler.policy import (
    Decision,
    Selected,
    ceilings_of,
    cost_index_of,
    rank_key,
    reason_of,
    requests_of,
)
from helios.scheduler.records import ExplorationAccount
from helios.scheduler.refresh import PATIENCE_TTLS, stale_alternative, stale_attention_ns, tolerable
from helios.scheduler.requests import Request
from helios.scheduler.rounds import SLACK
from helios.scheduler.state import State
from helios.scheduler.streams import lane_limits
from helios.scheduler.units import NANOSECONDS_PER_MS
from helios.scheduler.utility import View

_PREFILLS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)

ROUNDS = (GraphKind.SPECULATIVE, GraphKind.MIXED)
"""Kinds whose lanes have a depth that a probe can go beyond."""

LEARNING_STRIDE = 128
"""Commits between two searches for a probe while the credit stays full."""

_NEW_LANE: Callable[[tuple[Request, int, int]], Lane[Request]] = partial(tuple.__new__, Lane)
"""Makes a lane of all its fields; the generated constructor takes several times as long."""

MOST_OFFERS = 32
"""Most rounds that one search materialises."""

NO_DEPTH = 1 << 62
"""What no lane of a request outside the ordinary cohort goes beyond."""


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
    proposes = decision.view.estimates is not None
    if proposes and funds.can_open(SelectionReason.ACCEPTANCE_LEARNING) and _may_learn(state):
        candidate = deeper_round(state, decision, winner)
        if candidate is not None:
            credit_ms = funds.learning.credit_ms
            return Selected(candidate, SelectionReason.ACCEPTANCE_LEARNING, credit_ms)
    return Selected(winner, reason)


def _may_learn(state: State) -> bool:
    # A search prices every round a second time, and at full credit it often finds nothing to try:
    # so one is made when the credit fills, and then once in so many commits. The window drains
    # without commits, so a probe that was found behind queued work is found again in its turn.
    is_adaptive = state.speculation.mode is DecodeMode.ADAPTIVE
    return is_adaptive and (state.commits - state.learning_since) % LEARNING_STRIDE == 0


def deeper_round(state: State, decision: Decision, winner: Candidate) -> Candidate | None:
    """Return the round that is most worth probing instead of an ordinary winner; None without any.

    Entries are materialised in the order of what they could gain at most, until no other could gain
    more than the best acceptable one.
    """
    lengths = _ordinary_lengths(state, winner)
    if not lengths:
        return None
    ordinary_rate = -winner.negative_rate
    bounds = partial(
        _bounds,
        decision.optimistic(),
        state.shapes.geometry.width,
        ordinary_rate,
        min(lengths.values()),
    )
    served = requests_of(winner)
    search = partial(_best_of_bounds, state, ordinary_rate, lengths, made={})
    # A probe that leaves somebody out delays them, and teaches their neighbours only: from then on
    # the untrained stream looks poor beside them. Such a probe is the second choice, and nearly
    # never asked for.
    best = search(bounds(room=len(served)), served) or search(bounds(room=0), ())
    return None if best is None else best.offer.candidate


class _Bound(NamedTuple):
    """An entry of a block, by the most that it could gain per ms."""

    negative_gain: float
    graph: int
    entry: int
    number: int
    """Of the block."""
    block: Block


def _bounds(
    blocks: Sequence[Block], widths: Integers, ordinary_rate: float, shortest: int, *, room: int
) -> list[_Bound]:
    """Return the rounds that may be deeper and better than the ordinary choice, by their gain.

    Those that serve fewer than `room` requests are left out. A bound may lie below the score by
    rounding, so those within it stay.
    """
    least = ordinary_rate - SLACK * abs(ordinary_rate)
    found: list[_Bound] = []
    for number, block in enumerate(blocks):
        deeper = block.determinate & (widths[block.graph] > shortest) & (block.rate > least)
        deeper &= block.served >= room
        entries = np.flatnonzero(deeper)
        if isinstance(block, Generation):
            block.tighten(entries)
            entries = entries[block.rate[entries] > least]
        gains = (block.rate[entries] - ordinary_rate) / block.known_ms[entries]
        columns = ((-gains).tolist(), block.graph[entries].tolist(), entries.tolist())
        found += map(_Bound, *columns, repeat(number), repeat(block))
    found.sort(key=itemgetter(0, 1))
    return found


def _best_of_bounds(
    state: State,
    ordinary_rate: float,
    lengths: dict[Request, int],
    bounds: list[_Bound],
    served: Sequence[Request],
    *,
    made: dict[tuple[int, int], Candidate],
) -> Probe[Candidate, Request] | None:
    """Return the best probe among sorted bounds that serves everybody in `served`.

    `made` keeps candidates by block and entry, for a second search of the same bounds.
    """
    equals: list[Offer[Candidate, Request]] = []
    best_rate = 0.0
    for bound in bounds[:MOST_OFFERS]:
        if equals and -bound.negative_gain < best_rate * (1.0 - SLACK):
            break
        key = bound.number, bound.entry
        candidate = made.get(key) or _candidate_of(bound, ordinary_rate, best_rate)
        if candidate is None:
            continue
        made[key] = candidate
        # Nearly all fail by their score or their depth, which asks for no lane of an offer.
        gain = -candidate.negative_rate - ordinary_rate
        if gain <= 0.0 or gain / candidate.duration_ms < best_rate:
            continue
        if not _goes_deeper(candidate, lengths):
            continue
        present = dict.fromkeys(requests_of(candidate))
        if not all(map(present.__contains__, served)):
            continue
        offer = _offer_of(state, candidate)
        probe = best_probe([offer], ordinary_rate, lengths)
        if probe is None or probe.improvement_rate < best_rate:
            continue
        if probe.improvement_rate > best_rate:
            equals, best_rate = [], probe.improvement_rate
        equals.append(offer)
    return best_probe(equals, ordinary_rate, lengths)


def _goes_deeper(candidate: Candidate, lengths: Mapping[Request, int]) -> bool:
    """Tell whether a lane is longer than the ordinary choice has it."""
    ordinary = [lengths.get(request, NO_DEPTH) for request in requests_of(candidate)]
    return any(map(gt, ceilings_of(candidate), ordinary))


def _candidate_of(bound: _Bound, ordinary_rate: float, best_rate: float) -> Candidate | None:
    """Return the best cohort of an entry; None where it cannot gain as much as `best_rate`."""
    block, entry = bound.block, bound.entry
    if not isinstance(block, Generation):
        return block.best(entry)
    return block.best_above(entry, ordinary_rate + best_rate * float(block.known_ms[entry]))


def _ordinary_lengths(state: State, winner: Candidate) -> dict[Request, int]:
    """Return the rows that a winner gives each of its streams that could use more.

    Empty when there is none, which ends many fruitless searches.
    """
    if state.catalog.graphs[winner.graph_index].kind not in ROUNDS:
        return {}
    requests, ceilings = requests_of(winner), ceilings_of(winner)
    limits = lane_limits(requests).tolist()
    return {
        request: ceiling
        for place, (request, ceiling, limit) in enumerate(
            zip(requests, ceilings, limits, strict=True)
        )
        if limit > ceiling and place != winner.prefill_row
    }


def _offer_of(state: State, candidate: Candidate) -> Offer[Candidate, Request]:
    graph = state.catalog.graphs[candidate.graph_index]
    # A prompt row is the first lane.
    first = candidate.prefill_row + 1
    requests = requests_of(candidate)[first:]
    ceilings = ceilings_of(candidate)[first:]
    left = [r.max_output - r.output_count - r.queued_tokens for r in requests]
    lanes = list(map(_NEW_LANE, zip(requests, ceilings, left, strict=True)))

    def weights() -> list[list[float]]:
        aged: list[list[float]] = state.history.acceptance.weights(
            np.array([request.row for request in requests], dtype=np.int64),
            COPY if graph.source is ProposalSource.COPY else LEARNED,
            np.array([request.output_count for request in requests], dtype=np.int64),
        ).tolist()
        return aged

    geometry = (
        graph.rows + graph.prefill_capacity,
        graph.batch_capacity,
        graph.token_capacity,
        graph.proposal_depth,
        candidate.graph_index,
    )
    rate = -candidate.negative_rate
    return Offer(candidate, rate, candidate.duration_ms, geometry, lanes, weights)


def _due_refresh(state: State, decision: Decision, winner: Candidate) -> Candidate | None:
    attention = _tolerable(state, decision.view, _stale_costs(state, decision.view, winner))
    if not attention:
        return None
    return stale_alternative(
        decision.alternatives(attention),
        attention,
        rank=rank_key,
        priced_by=partial(cost_index_of, decision.view),
    )


def _tolerable(state: State, view: View, attention_ns: dict[int, int]) -> dict[int, int]:
    """Return the stale costs that may be looked at beside streams with a gap objective."""
    if view.policy.gap_objective_ms <= 0.0 or not view.waited_ms:
        return attention_ns
    room_ms = view.policy.gap_objective_ms - max(view.waited_ms)
    return tolerable(
        attention_ns,
        state.costs.estimates_ns,
        room_ns=room_ms * NANOSECONDS_PER_MS,
        first_ns=state.dispatches.begun_ns(state.now_ns),
        overdue_ns=state.now_ns - PATIENCE_TTLS * state.costs.ttl_ns,
    )


def _stale_costs(state: State, view: View, winner: Candidate) -> dict[int, int]:
    """Return the stale cost entries that price something now, with the time of their attention.

    Where prompts have entries of their own, a prefill is stale for some prompts and fresh for
    others, and the mean of all prompts prices none of them.
    """
    looked = partial(
        stale_attention_ns,
        state.costs,
        state.dispatches,
        winner_graph=winner.graph_index,
        now_ns=state.now_ns,
    )
    means = state.standing().cost_indices
    found = {means[graph]: at for graph, at in looked(cost_indices=means).items()}
    if not view.prompt_costs:
        return found
    prefills = [index for kind in _PREFILLS for index in state.catalog.indices_of(kind)]
    found = {
        entry: at for entry, at in found.items() if state.costs.graph_of(entry) not in prefills
    }
    for entries, _ in view.prompt_costs.values():
        own = looked(cost_indices=entries)
        found.update({entries[graph]: at for graph, at in own.items() if graph in prefills})
    return found


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


def on_complete(state: State, reason: SelectionReason, device_ns: int, charged_ns: int) -> None:
    """Let ordinary work earn and a probe pay; see `Funds.settle`."""
    learning = state.funds.learning
    was_full = learning.is_full
    state.funds.settle(reason, device_ns, charged_ns)
    if learning.is_full and not was_full:
        state.learning_since = state.commits


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
