"""Funded acceptance learning in the running scheduler (scheduling-utility.md section 11)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest

from helios.scheduler import (
    DecodeMode,
    ExecutionTiming,
    Fence,
    GraphKind,
    ProposalSource,
    ScheduledPlan,
    SelectionReason,
    SpeculationConfig,
    StalePlanError,
    exploration,
)
from helios.scheduler.acceptance import COPY, LEARNED
from helios.scheduler.blocks import Listed
from helios.scheduler.geometry import Integers
from helios.scheduler.learning import best_probe
from helios.scheduler.policy import rank_key
from helios.scheduler.refresh import stale_alternative
from helios.scheduler.requests import UNLIMITED, Request
from helios.scheduler.streams import lane_limits
from tests.scheduler import test_exploration
from tests.support.books import Books
from tests.support.catalogs import ModelledCatalog, Recipe, recipe
from tests.support.snapshot import freeze
from tests.support.world import Flight, World, honest_timing

MS = 1_000_000
LEARNING = SelectionReason.ACCEPTANCE_LEARNING
REFRESH = SelectionReason.TIMING_REFRESH
ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
ROUNDS = recipe(Recipe(rows=2, prefills=(64,), widths=(1, 2, 4)))
SEEDS = tuple(ROUNDS.duration_ns)


@dataclasses.dataclass(frozen=True)
class Spell:
    """Every proposal is accepted, but none between two output positions."""

    begin: int
    end: int

    def accepted(self, name: str, output_index: int, offered: int) -> int:
        return 0 if self.begin <= output_index < self.end else offered

    def confidence(self, depth: int) -> float:
        return 0.5**depth

    def survival(self, depth: int) -> float:
        return 0.5**depth


def world_of(
    acceptance: Spell,
    *,
    streams: int = 1,
    output: int = 100_000,
    speculation: SpeculationConfig = ADAPTIVE,
    slowness: int = 1,
) -> World:
    """Return a world whose streams decode in rounds at measured costs."""
    world = World(ROUNDS.scaled(slowness), rows=2, speculation=speculation, seeded=SEEDS)
    world.observers.append(Books())
    for index in range(streams):
        world.admit(f"s{index}", 64, output, acceptance=acceptance)
    return world


def width_of(flight: Flight) -> int:
    return flight.plan.graph.token_capacity


def next_probe(world: World, limit: int = 2_000) -> ScheduledPlan:
    """Run until a probe of acceptance is offered; return it uncommitted."""
    for _ in range(limit):
        while (plan := world.plan()) is not None:
            if plan.reason is LEARNING:
                return plan
            world.commit(plan)
        world.finish_frame()
    raise AssertionError("no probe")


def tail_widths(world: World, count: int) -> list[int]:
    return [width_of(f) for f in world.log[-count:] if f.plan.reason is SelectionReason.ORDINARY]


def test_speculation_recovers_after_acceptance_fell() -> None:
    """Field report 9: it stopped while nothing was accepted, and funded probes bring it back."""
    world = world_of(Spell(600, 2_000))
    stream = world.streams["s0"]
    while len(stream.tokens) < 500:
        world.step()
    assert min(tail_widths(world, 40)) == 4, "everything is accepted: the widest round wins"
    while len(stream.tokens) < 1_900:
        world.step()
    assert max(tail_widths(world, 200)) == 1, "nothing is accepted: width one wins"
    probes = [f for f in world.log if f.plan.reason is LEARNING]
    assert probes, "full credit was not used"
    assert min(map(width_of, probes)) > 1
    while len(stream.tokens) < 2_000:
        world.step()
    good_ns = world.now_ns
    while not (tail := tail_widths(world, 40)) or min(tail) < 4:
        assert world.now_ns < good_ns + 10_000 * MS, "speculation stayed off"
        world.step()


def test_probes_stop_when_there_is_nothing_to_learn() -> None:
    """At the deepest round no depth can be added, so full credit stays unspent (11.8)."""
    world = world_of(Spell(0, 0), slowness=10)
    while world.now_ns < 10_000 * MS:
        world.step()
    before = world.scheduler.exploration()[LEARNING]
    world.run(300)
    after = world.scheduler.exploration()[LEARNING]
    assert after.spent_ns == before.spent_ns
    assert after.credit_ms == 5.0


def test_a_search_is_made_once_in_so_many_commits_while_the_credit_stays_full() -> None:
    """Every program is priced a second time for it, and full credit often finds nothing (11.9)."""
    world = world_of(Spell(0, 100_000), slowness=10)
    state = world.scheduler._state
    searched: dict[int, None] = {}

    def search(*_: object) -> None:
        searched[state.commits - state.learning_since] = None

    with mock.patch.object(exploration, "deeper_round", search):
        world.run(1_000)
    assert [*searched] == [*range(0, max(searched) + 1, 128)]
    assert len(searched) > 3


def test_a_probe_is_deeper_alone_and_pays_once() -> None:
    """It adds a depth, waits for an empty queue, and is charged its raw duration (11.3, 11.8)."""
    world = world_of(Spell(0, 100_000))
    plan = next_probe(world)
    assert not world.queue
    assert plan.needs_empty_queue
    assert plan.steps[0].output_ceiling > 1
    terms = plan.terms
    assert terms is not None
    assert (terms.reason, terms.exploration_credit_ms) == (LEARNING, 5.0)
    assert world.scheduler.explain()[0] == terms
    world.commit(plan)
    assert world.plan() is None, "a frame was queued behind a probe"
    flight = world.queue[0]
    timing_before = world.scheduler.exploration()[REFRESH]
    world.timing_of = lambda inner, done: dataclasses.replace(
        honest_timing(inner, done), readiness_ns=MS
    )
    world.finish_frame()
    account = world.scheduler.exploration()[LEARNING]
    assert account.spent_ns == sum(
        f.finish_ns - f.start_ns for f in world.log if f.plan.reason is LEARNING
    )
    paid_ns = flight.finish_ns - flight.start_ns
    assert account.credit_ms == (5 * MS - paid_ns) / MS
    # The budget is raw time; the estimate leaves out what waiting for embeddings added. It is the
    # mean of this sample and one that had no delay.
    assert world.scheduler._state.costs.estimates_ns[plan.cost_index] == paid_ns - MS // 2
    assert world.scheduler.exploration()[REFRESH] == timing_before
    assert world.scheduler.executions()[LEARNING].count == 1


def test_a_probe_must_leave_output_to_use_it() -> None:
    """Requests near their end are not probed (11.8)."""
    world = world_of(Spell(0, 100_000), output=100_000)
    plan = next_probe(world)
    request = world.scheduler._state.table.find(plan.steps[0].handle)
    request.max_output = request.output_count + plan.steps[0].output_ceiling + 1
    again = world.plan()
    assert again is not None
    if again.reason is LEARNING:
        assert again.steps[0].output_ceiling < plan.steps[0].output_ceiling
    request.max_output = request.output_count + 3
    last = world.plan()
    assert last is not None
    assert last.reason is SelectionReason.ORDINARY


@pytest.mark.parametrize("width", [1, 2])
def test_fixed_width_never_probes(width: int) -> None:
    """Fixed-width execution does not probe acceptance, whatever credit it has (11.8)."""
    speculation = SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=width)
    world = world_of(Spell(0, 100_000), speculation=speculation, slowness=10)
    while world.now_ns < 3_000 * MS:
        world.step()
    assert world.scheduler.exploration()[LEARNING].credit_ms == 5.0
    assert {f.plan.reason for f in world.log} == {SelectionReason.ORDINARY}


def test_refresh_takes_precedence() -> None:
    """With both ledgers full and a graph stale, the refresh is first (11.8)."""
    world = world_of(Spell(0, 100_000))
    plan = next_probe(world)
    funds = world.scheduler._state.funds
    funds.settle(SelectionReason.ORDINARY, 3_000 * MS, 3_000 * MS)
    world.scheduler._state.costs.ttl_ns = 1
    both = world.plan()
    assert both is not None
    assert both.reason is REFRESH
    funds.timing.discard()
    alone = world.plan()
    assert alone is not None
    assert alone.reason is LEARNING
    assert alone.steps == plan.steps


def test_commit_refuses_a_probe_whose_credit_is_gone() -> None:
    """A saved acceptance probe is rechecked too, and a refusal changes nothing (11.7)."""
    world = world_of(Spell(0, 100_000))
    saved = next_probe(world)
    world.scheduler._state.funds.discard()
    before = freeze(world.scheduler)
    with pytest.raises(StalePlanError, match="credit"):
        world.scheduler.commit(saved, Fence(10_000))
    assert freeze(world.scheduler) == before


def test_planning_a_probe_changes_nothing() -> None:
    """The optimistic view is a view: estimates, credit and attempts stay (runtime 2.1)."""
    world = world_of(Spell(0, 100_000), streams=2)
    plan = next_probe(world)
    before = freeze(world.scheduler)
    assert world.scheduler.plan() == plan
    assert freeze(world.scheduler) == before


WIDE = recipe(
    Recipe(
        rows=8,
        prefills=(64, 256),
        widths=(1, 2, 4),
        ragged=((3, 2), (7, 2)),
        mixed=((1, 64), (2, 64)),
    )
)


def busy_world(seed: int, model: ModelledCatalog = WIDE) -> tuple[World, random.Random]:
    """Return a world in the middle of rounds, prompts and retirements at measured costs."""
    draw = random.Random(seed)
    world = World(model, rows=8, speculation=ADAPTIVE, seeded=tuple(model.duration_ns))
    for index in range(9):
        begin = draw.randrange(200)
        spell = Spell(begin, begin + draw.randrange(200))
        world.admit(f"r{index}", draw.randrange(1, 400), draw.randrange(2, 60), acceptance=spell)
    return world, draw


@pytest.mark.parametrize("seed", range(3))
def test_the_least_recent_alternative_is_found_without_making_all(seed: int) -> None:
    """Masks and bounds leave the same refresh as materialising every entry (11.6)."""
    world, draw = busy_world(seed)
    compared = 0
    for _ in range(60):
        if not world.step():
            break
        if world.plan() is None or draw.random() < 0.5:
            continue
        decided = world.scheduler._state.decision
        assert decided is not None
        decision = decided.decision
        graphs = range(len(WIDE.catalog.graphs))
        attention = {g: draw.randrange(3) for g in graphs if draw.random() < 0.7}
        everything = dict.fromkeys(graphs, 0)
        made = [candidate for graph in graphs for candidate in decision.alternatives({graph: 0})]
        assert {c.graph_index for c in decision.alternatives(everything)} <= {
            c.graph_index for c in made
        }
        slow = stale_alternative(made, attention, rank=rank_key)
        fast = stale_alternative(decision.alternatives(attention), attention, rank=rank_key)
        assert fast == slow
        compared += slow is not None
    assert compared > 10


SWIFT = ModelledCatalog(WIDE.catalog, {name: ns // 64 for name, ns in WIDE.duration_ns.items()})
"""The same programs in a fraction of a millisecond, where a rate is more than a gain."""


@pytest.mark.parametrize("model", [WIDE, SWIFT], ids=["wide", "swift"])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_probe_is_found_without_making_all(seed: int, model: ModelledCatalog) -> None:
    """Stopping at the bound leaves the same probe as offering every deeper round (11.9)."""
    world, draw = busy_world(seed, model)
    found = 0
    for _ in range(80):
        if not world.step():
            break
        if world.plan() is None or draw.random() < 0.3:
            continue
        state = world.scheduler._state
        decided = state.decision
        assert decided is not None
        assert decided.selected is not None
        decision, winner = decided.decision, decided.selected.candidate
        lengths = exploration._ordinary_lengths(state, winner)
        offers = [
            exploration._offer_of(state, block.best(entry))
            for block in (decision.optimistic() if lengths else [])
            for entry in range(len(block.rate))
            if block.determinate[entry] and block.rate[entry] > float("-inf")
        ]
        slow = best_probe(offers, -winner.negative_rate, lengths)
        fast = exploration.deeper_round(state, decision, winner)
        assert fast == (None if slow is None else slow.offer.candidate)
        found += fast is not None
    assert found > 5


def test_rounds_that_gain_alike_are_compared_by_what_is_left_of_the_order() -> None:
    """The search goes on while another may gain as much: the smaller one is taken (11.9)."""
    world = world_of(Spell(0, 100_000))
    next_probe(world)
    state = world.scheduler._state
    assert state.decision is not None
    assert state.decision.selected is not None
    probe = state.decision.selected.candidate
    alike = [
        probe._replace(graph_index=index)
        for index, graph in enumerate(state.catalog.graphs)
        if graph.kind is GraphKind.SPECULATIVE
        and graph.token_capacity == state.catalog.graphs[probe.graph_index].token_capacity
    ]
    sizes = [state.catalog.graphs[candidate.graph_index].rows for candidate in alike]
    assert len(dict.fromkeys(sizes)) == len(sizes) > 1
    ordinary = -probe.negative_rate - 1.0
    for order in (alike, alike[::-1]):
        block = Listed(order)
        bounds = [
            exploration._Bound(-1.0 / probe.duration_ms, each.graph_index, entry, 0, block)
            for entry, each in enumerate(order)
        ]
        requests = [lane.request for lane in probe.cohort]
        best = exploration._best_of_bounds(
            state, ordinary, dict.fromkeys(requests, 1), bounds, requests, made={}
        )
        assert best is not None
        assert best.offer.candidate.graph_index == alike[sizes.index(min(sizes))].graph_index


COPYING = recipe(Recipe(rows=2, prefills=(64,), widths=(1, 2, 4), copy_depths=(3,)))


def test_a_probe_of_copies_is_as_informed_as_copies_are() -> None:
    """The least informed prefix is told by the aged weight of what the round proposes (11.9)."""
    world = World(COPYING, rows=2, speculation=ADAPTIVE, seeded=tuple(COPYING.duration_ns))
    for name in ("s0", "s1"):
        world.admit(name, 64, 1_000, acceptance=Spell(300, 400))
    world.run(60)
    while world.queue:
        world.finish_frame()
    for stream in world.streams.values():
        world.scheduler.supply_copies(stream.handle, 3)
    state = world.scheduler._state
    assert world.plan() is not None
    assert state.decision is not None
    seen: dict[ProposalSource, list[list[float]]] = {}
    for block in state.decision.decision.optimistic():
        for entry in range(len(block.rate)):
            offer = exploration._offer_of(state, block.best(entry))
            graph = state.catalog.graphs[offer.candidate.graph_index]
            if not graph.proposal_depth:
                continue
            requests = [lane.request for lane in offer.lanes]
            expected = state.history.acceptance.weights(
                np.array([request.row for request in requests]),
                {ProposalSource.LEARNED: LEARNED, ProposalSource.COPY: COPY}[graph.source],
                np.array([request.output_count for request in requests]),
            ).tolist()
            assert offer.weights() == expected, graph.name
            seen[graph.source] = expected
    assert seen[ProposalSource.COPY] != seen[ProposalSource.LEARNED]


def test_a_speculative_refresh_runs_one_complete_program_and_pays_once() -> None:
    """Proposals, verification and commit are one graph and one charge (11.3, 11.5)."""
    world = world_of(Spell(0, 100_000))
    world.run(20)
    state = world.scheduler._state
    while world.queue:
        world.finish_frame()
    state.funds.discard()
    state.funds.timing.earn(2_495 * MS)
    state.costs.ttl_ns = 1
    state.dispatches.first_ns = 0
    plan = world.plan()
    assert plan is not None
    assert plan.reason is REFRESH
    assert plan.graph.kind is GraphKind.SPECULATIVE
    flight = world.commit(plan)
    assert world.plan() is None
    world.finish_frame()
    account = world.scheduler.exploration()[REFRESH]
    assert account.spent_ns == flight.finish_ns - flight.start_ns
    assert world.scheduler.exploration()[LEARNING].spent_ns == 0


def run_randomly(seed: int, frames: int) -> World:
    """Run rounds, prompts, faults, cancellations and pauses, with both books kept."""
    world, draw = busy_world(seed)
    world.scheduler._state.costs.ttl_ns = 400 * MS
    world.observers += [Books(), test_exploration.Account(world)]

    def timing(inner: World, flight: Flight) -> ExecutionTiming:
        honest = honest_timing(inner, flight)
        fault = draw.random()
        if fault < 0.04:
            return dataclasses.replace(honest, device_ns=draw.choice([(), (0,)]))
        if fault < 0.08:
            return dataclasses.replace(honest, wall_ns=draw.randrange(3_000 * MS))
        return honest

    world.timing_of = timing
    for step in range(frames):
        if not world.step() or draw.random() < 0.05:
            spell = Spell(0, draw.randrange(400))
            world.admit(
                f"n{step}", draw.randrange(1, 300), draw.randrange(2, 300), acceptance=spell
            )
        if draw.random() < 0.01:
            test_exploration.try_cancel(world, draw.choice(list(world.streams)))
        if draw.random() < 0.003:
            world.advance(draw.choice([1.0, 700.0]))
    return world


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))]
)
def test_both_bounds_hold_on_random_histories_of_rounds(seed: int) -> None:
    """Refresh and learning together, under faults; every frame is counted by its reason (11.3)."""
    world = run_randomly(seed, 700)
    counts = world.scheduler.executions()
    done = [flight for flight in world.log if flight not in world.queue]
    for reason, count in counts.items():
        assert count.count == sum(flight.plan.reason is reason for flight in done)
    assert counts[REFRESH].count
    assert counts[LEARNING].count


@pytest.mark.parametrize("limits", [(2,), (3,), (1, 4), (3, 2), (0, 3)], ids=str)
def test_no_probe_goes_beyond_the_limit_of_learned_rounds(limits: tuple[int, ...]) -> None:
    """The lengths that could be more are those of every source; what a probe offers is not.

    A request at its limit of learned rounds is in them, because a round with copies may give it
    more. Leaving it out where nothing copies changes no decision: no candidate is longer for it.
    """

    def within(requests: Sequence[Request], *, is_capped: bool = True) -> Integers:
        left = lane_limits(requests, is_capped=is_capped)
        limit = [request.spec.learned_width_limit or UNLIMITED for request in requests]
        return np.minimum(left, limit)

    def play() -> list[tuple[str, SelectionReason, list[int]]]:
        world = World(ROUNDS.scaled(10), rows=2, speculation=ADAPTIVE, seeded=SEEDS)
        for index, limit in enumerate(limits):
            spell = Spell(300, 1_500)
            world.admit(f"s{index}", 64, 6_000, acceptance=spell, learned_width_limit=limit)
        world.run(1_200)
        for flight in world.log:
            for name, step in zip(flight.lanes, flight.plan.steps, strict=True):
                most = world.streams[name].spec.learned_width_limit or UNLIMITED
                assert step.output_ceiling <= most, "a probe like any other round"
        return [
            (flight.name, flight.plan.reason, [step.output_ceiling for step in flight.plan.steps])
            for flight in world.log
        ]

    log = play()
    assert sum(reason is LEARNING for _, reason, _ in log) > 2
    with mock.patch.object(exploration, "lane_limits", within):
        assert play() == log
