"""Rounds and mixed graphs in a world: what each mode may run, and what a plan carries of it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from helios.scheduler import (
    DecodeMode,
    ExecutionTiming,
    GraphKind,
    Phase,
    PolicyConfig,
    ProposalSource,
    RowAllocation,
    SelectionReason,
    SpeculationConfig,
)
from tests.support.catalogs import NS_PER_MS, Recipe, recipe
from tests.support.checkers import Checker
from tests.support.decisions import scores_of
from tests.support.device import Always, Chance
from tests.support.world import Flight, World, measure_directly

ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
EVERY = recipe(
    Recipe(
        rows=4,
        prefills=(64,),
        ordinary=True,
        widths=(1, 2, 4),
        ragged=((3, 2),),
        device=True,
        copy_depths=(3,),
        mixed=((1, 64), (4, 64)),
        mixed_ordinary=(64,),
    )
)
ROUNDS = (GraphKind.SPECULATIVE, GraphKind.MIXED)


def running(speculation: SpeculationConfig, *, accepts: int = 3, count: int = 4) -> World:
    """A measured world in which streams run and another prompt arrives now and then."""
    world = World(EVERY, rows=4, speculation=speculation)
    measure_directly(world)
    Checker.watch(world)
    for index in range(count):
        world.admit(f"s{index}", 64, 60, acceptance=Always(accepts))
    return world


def rounds_of(world: World) -> list[Flight]:
    return [flight for flight in world.log if flight.plan.graph.kind in ROUNDS]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_fixed_mode_runs_its_width_by_the_host_alone(width: int) -> None:
    """Separate and mixed graphs alike; nothing that the device allocates (clauses S7, S8, M7)."""
    world = running(SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=width))
    world.run_until_idle()
    flights = rounds_of(world)
    assert flights
    assert {flight.plan.graph.token_capacity for flight in flights} == {width}
    assert all(flight.plan.graph.allocation is not RowAllocation.DEVICE for flight in flights)
    assert not any(flight.plan.graph.kind is GraphKind.DECODE for flight in world.log)


def test_ordinary_mode_keeps_no_draft_state_and_the_others_always_do() -> None:
    """Decode and plain mixed graphs on one side, speculative variants on the other (M6)."""
    world = running(SpeculationConfig())
    world.run_until_idle()
    assert not any(flight.plan.graph.speculation_enabled for flight in world.log)
    assert any(flight.plan.graph.kind is GraphKind.DECODE for flight in world.log)
    world = running(ADAPTIVE)
    world.run_until_idle()
    assert all(flight.plan.graph.speculation_enabled for flight in rounds_of(world))
    assert not any(flight.plan.graph.kind is GraphKind.DECODE for flight in world.log)


def test_every_width_competes_at_every_useful_bucket() -> None:
    """Width one included; for three streams that is one, two and four rows (S4, U15)."""
    world = running(ADAPTIVE, count=3)
    while not all(stream.tokens for stream in world.streams.values()):
        world.step()
    while world.queue:
        world.finish_frame()
    found = scores_of(world)
    for batch, (depth, width) in itertools.product((1, 2, 4), ((0, 1), (1, 2), (3, 4))):
        assert f"speculative-b{batch}-d{depth}-w{width}" in found


def test_only_rounds_and_decode_share_the_window() -> None:
    """Two rounds may be in flight; a mixed graph is alone until it has completed (W7, W8)."""
    world = running(ADAPTIVE)
    seen = set()
    for step in range(300):
        world.submit()
        kinds = tuple(flight.plan.graph.kind for flight in world.queue)
        seen.add(kinds)
        if len(kinds) == 2:
            assert kinds == (GraphKind.SPECULATIVE,) * 2
        if not world.queue:
            break
        world.finish_frame()
        if step % 25 == 0:
            world.admit(f"late{step}", 64, 20, acceptance=Always(1))
    assert (GraphKind.SPECULATIVE,) * 2 in seen


def test_a_mixed_plan_says_which_lane_is_the_prompt() -> None:
    """At most one, by its dense lane index, and -1 for none; the others generate (M8, M11, M16)."""
    model = recipe(Recipe(rows=4, prefills=(64,), widths=(1,), mixed=((1, 64), (1, 256), (4, 64))))
    world = World(model, rows=4, speculation=ADAPTIVE)
    measure_directly(world)
    Checker.watch(world)
    for index in range(40):
        if index % 4 == 0:
            world.admit(f"s{index}", 200, 30, acceptance=Always(2))
        world.run(3)
    mixed = [f.plan for f in world.log if f.plan.graph.kind is GraphKind.MIXED]
    assert mixed
    for plan in mixed:
        prompts = [index for index, step in enumerate(plan.steps) if step.prompt_tokens]
        assert prompts == ([] if plan.prefill_row < 0 else [plan.prefill_row])
        assert all(step.mixed is not None for step in plan.steps)
        rows = sum(step.prompt_tokens or step.output_ceiling for step in plan.steps)
        graph = plan.graph
        assert rows <= graph.prefill_capacity + (graph.batch_capacity - 1) * graph.token_capacity
    assert any(plan.prefill_row >= 0 and len(plan.steps) > 1 for plan in mixed)


def test_lanes_never_reach_beyond_their_limits() -> None:
    """Depth, width, the request's own limit and what is left of its output, queued or not (S13)."""
    world = running(ADAPTIVE, accepts=0)
    world.admit("narrow", 64, 40, acceptance=Always(3), width_limit=2)
    world.run_until_idle()
    widest: dict[str, int] = {}
    for flight in rounds_of(world):
        for name, step in zip(flight.lanes, flight.plan.steps, strict=True):
            if not step.prompt_tokens:
                widest[name] = max(widest.get(name, 0), step.output_ceiling)
    assert widest["narrow"] == 2
    assert all(
        len(stream.tokens) == 60 for name, stream in world.streams.items() if name != "narrow"
    )


def test_a_queued_round_counts_with_its_ceiling() -> None:
    """Nothing is planned that could pass the output limit if all in flight were accepted (W22)."""
    world = running(ADAPTIVE, count=2)
    queued = 0
    while world.step():
        for name, stream in world.streams.items():
            lanes = [
                step.output_ceiling
                for flight in world.queue
                for lane, step in zip(flight.lanes, flight.plan.steps, strict=True)
                if lane == name and not step.prompt_tokens
            ]
            queued += len(lanes) > 1
            assert len(stream.tokens) + sum(lanes) <= stream.spec.max_output_tokens
        world.submit()
    assert all(len(stream.tokens) == 60 for stream in world.streams.values())


@pytest.mark.parametrize(("output", "width"), [(60, 8), (4, 4)])
def test_a_cold_stream_tries_its_largest_useful_round(output: int, width: int) -> None:
    """Unknown programs compete by useful value, so a lone stream needs no rule of its own (D18).

    With three outputs left the round of four does all that the round of eight could.
    """
    model = recipe(Recipe(rows=1, prefills=(64,), widths=(1, 2, 4, 8)))
    world = World(model, rows=1, speculation=ADAPTIVE)
    world.admit("s", 64, output, acceptance=Always(3))
    world.run(3)
    flight = world.log[2]
    assert flight.name == f"speculative-b1-d{width - 1}-w{width}"
    assert flight.plan.reason is SelectionReason.DISCOVERY


def test_alpha_is_the_exponent_of_survival() -> None:
    """Service of a round is the token value times 1 + sum of s^alpha (A1, A3)."""
    values = {}
    for alpha in (1.0, 2.0, 0.5):
        policy = dataclasses.replace(PolicyConfig(), adaptive_verification_alpha=alpha)
        model = recipe(Recipe(rows=1, prefills=(64,), widths=(1, 2, 4)))
        world = World(model, rows=1, policy=policy, speculation=ADAPTIVE)
        world.scheduler.seed_acceptance(ProposalSource.LEARNED, (0.75, 0.5, 0.25), weight=64.0)
        measure_directly(world)
        world.admit("s", 64, 60, acceptance=Always(3))
        world.run(2)
        found = scores_of(world)
        token = found["speculative-b1-d0-w1"].service_value
        for name, survivals in (
            ("speculative-b1-d1-w2", (0.75,)),
            ("speculative-b1-d3-w4", (0.75, 0.5, 0.25)),
        ):
            expected = token * (1.0 + sum(s**alpha for s in survivals))
            assert found[name].service_value == pytest.approx(expected, rel=1e-12)
        values[alpha] = found["speculative-b1-d3-w4"].service_value / token
    assert values[2.0] < values[1.0] < values[0.5]


def test_the_trace_of_a_round_names_its_physical_program() -> None:
    """B, D, W, P, selected cost, age of the observation, reason and credit (A22)."""
    world = running(ADAPTIVE)
    for _ in range(100):
        for flight in world.submit():
            graph = flight.plan.graph
            trace = world.scheduler.trace_of(flight.fence)
            assert (trace.batch_capacity, trace.token_capacity) == (
                graph.batch_capacity,
                graph.token_capacity,
            )
            assert (trace.proposal_depth, trace.packed_capacity) == (
                graph.proposal_depth,
                graph.rows,
            )
            assert trace.prefill_capacity == graph.prefill_capacity
            assert trace.prefill_row == flight.plan.prefill_row
            assert trace.estimated_duration_ns == EVERY.duration_ns[graph.name]
            assert trace.score.cost_age_ns is not None
            assert trace.score.reason is flight.plan.reason
            is_probe = flight.plan.reason is SelectionReason.ACCEPTANCE_LEARNING
            assert (trace.score.exploration_credit_ms > 0.0) == is_probe
        if not world.queue:
            break
        world.finish_frame()


def test_padding_of_a_round_earns_nothing_and_costs_its_whole_program() -> None:
    """Three lanes in four rows: the score divides by the whole duration (S17, M20)."""
    world = running(ADAPTIVE, count=3)
    while not all(stream.tokens for stream in world.streams.values()):
        world.step()
    while world.queue:
        world.finish_frame()
    for name, score in scores_of(world).items():
        if name.startswith(("speculative", "mixed")) and score.following is None:
            worth = score.service_value + score.delivery_value + score.age_credit
            duration_ms = EVERY.duration_ns[name] / NS_PER_MS
            assert score.duration_ms == duration_ms
            expected = worth / duration_ms - score.waiting_cost
            assert score.value_rate == pytest.approx(expected, rel=1e-12)


def test_accepted_tokens_do_not_depend_on_the_schedule() -> None:
    """Every mode and machine yields the same output, token for token."""
    outputs = []
    for speculation in (SpeculationConfig(), ADAPTIVE):
        world = World(EVERY, rows=4, speculation=speculation)
        measure_directly(world)
        for index in range(4):
            acceptance = Chance((0.8, 0.6), 0.7)
            world.admit(f"s{index}", 64, 50, acceptance=acceptance, ends_at=30 + index)
        world.run_until_idle()
        outputs.append({n: [t.token for t in s.tokens] for n, s in world.streams.items()})
    assert outputs[0] == outputs[1]


def account_prices(world: World, name: str) -> tuple[float | None, float | None]:
    """Stored token and delivery price of a request."""
    request = world.scheduler._state.table.find(world.streams[name].handle)
    return request.account.token_price, request.delivery_price


def test_only_service_moves_a_price() -> None:
    """Phases, acceptance and estimates leave prices; no interval is no service (B14)."""
    world = running(ADAPTIVE, count=1)
    nothing = ExecutionTiming(device_ns=(), wall_ns=1)
    world.run(1)
    honest, world.timing_of = world.timing_of, lambda inner, flight: nothing
    world.submit()
    before = account_prices(world, "s0")
    assert before[0] is not None
    table = world.scheduler._state.history.acceptance
    learned = table.survivals(np.array([0]), 0).tolist()
    world.finish_frame(publish=False)
    assert world.scheduler.phase_of(world.streams["s0"].handle) is Phase.DECODE
    assert account_prices(world, "s0") == before, "a phase moved a price"
    world.submit()
    world.finish_frame(publish=False)
    assert table.survivals(np.array([0]), 0).tolist() != learned
    assert account_prices(world, "s0") == before, "acceptance moved a price"
    measure_directly(world)
    assert account_prices(world, "s0") == before, "an estimate moved a price"
    world.timing_of = honest
    world.submit()
    while world.queue:
        world.finish_frame()
    assert account_prices(world, "s0") != before


def test_mixed_shapes_expire_on_their_own() -> None:
    """Each shape is fresh by its own observations and no other's (V11)."""
    world = running(ADAPTIVE)
    costs, graphs = world.scheduler._state.costs, EVERY.catalog.graphs
    mixed = [i for i, graph in enumerate(graphs) if graph.kind is GraphKind.MIXED]
    later_ns = world.now_ns + 31_000 * NS_PER_MS
    assert all(costs.is_fresh(index, world.now_ns) for index in mixed)
    for place, index in enumerate(mixed):
        costs.observe(index, 5 * NS_PER_MS, later_ns)
        fresh = [costs.is_fresh(other, later_ns) for other in mixed]
        assert fresh == [other <= place for other in range(len(mixed))]


def test_reservation_knows_the_widest_lane_of_both_families() -> None:
    """The largest verification width, whichever family has it (M19)."""
    for rounds, mixed, widest in (((1, 4), ((1, 64),), 4), ((1, 2), ((4, 64),), 4)):
        model = recipe(Recipe(rows=4, prefills=(64,), widths=rounds, mixed=mixed))
        world = World(model, rows=4, speculation=ADAPTIVE)
        assert world.scheduler._state.widest_lane == widest
