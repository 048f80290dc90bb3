"""Funded refresh in the running scheduler (docs/design/scheduling-utility.md section 11)."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random

import pytest

from helios.scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    PolicyConfig,
    ScheduledPlan,
    SelectionReason,
    StalePlanError,
    UnknownHandleError,
    exploration,
    format_trace,
    parse_trace,
)
from tests.support.books import Books
from tests.support.catalogs import ModelledCatalog, gpu_like, modelled
from tests.support.snapshot import freeze
from tests.support.world import Flight, Observer, World, honest_timing, measure_all

MS = 1_000_000
REFRESH = SelectionReason.TIMING_REFRESH
SLOW = modelled(
    {
        "initialize-b1": 2.0,
        "initialize-b2": 2.0,
        "prefill-c64": 20.0,
        "prefill-c256": 60.0,
        "decode-b1": 50.0,
        "decode-b2": 60.0,
        "terminal-b1": 2.0,
        "terminal-b2": 2.0,
    }
)
"""Long frames, so that credit and staleness come within a few hundred of them."""


class Account(Observer):
    """Holds the refresh account to the books at every completion."""

    def __init__(self, world: World) -> None:
        self.world = world
        account = world.scheduler.exploration()[REFRESH]
        assert account.spent_ns == 0
        self.books = Books(account.ordinary_ns)

    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None:
        self.books.on_complete(flight, records, timing, tokens)
        account = self.world.scheduler.exploration()[REFRESH]
        kept = (self.books.ordinary_ns, self.books.spent_ns[REFRESH])
        assert (account.ordinary_ns, account.spent_ns) == kept


def steady(model: ModelledCatalog = SLOW, *, streams: int = 1, **policy: float) -> World:
    """Return a world with measured graphs and streams that decode on and on."""
    world = World(model, rows=2, policy=PolicyConfig(**policy))
    measure_all(world)
    for index in range(streams):
        world.admit(f"s{index}", 64, 200_000)
    while any(not world.streams[f"s{index}"].tokens for index in range(streams)):
        assert world.step()
    return world


def next_probe(world: World, limit: int = 2_000) -> ScheduledPlan:
    """Run ordinary frames until an idle window is offered a probe; return it uncommitted."""
    for _ in range(limit):
        if not world.queue:
            plan = world.plan()
            assert plan is not None
            if plan.reason is REFRESH:
                return plan
            world.commit(plan)
        world.submit()
        world.finish_frame()
    raise AssertionError("no probe")


def credit_ms(world: World) -> float:
    return world.scheduler.exploration()[REFRESH].credit_ms


def reasons(world: World) -> list[str]:
    return [f.plan.reason.value for f in world.log]


def test_a_graph_spoiled_by_one_outlier_recovers() -> None:
    """One slow first sample keeps a graph out until, stale, it is paid a second look (11.5)."""
    world = World(SLOW, rows=2)

    def contended(inner: World, flight: Flight) -> ExecutionTiming:
        honest = honest_timing(inner, flight)
        if flight.name != "decode-b2" or "decode-b2" in [f.name for f in inner.log[:-1]]:
            return honest
        return dataclasses.replace(honest, device_ns=(40 * honest.device_ns[0],))

    world.timing_of = contended
    for name in "ab":
        world.admit(name, 64, 200_000)
    while len(world.log) < 100:
        world.step()
    tail = [f.name for f in world.log[-60:]]
    assert "decode-b2" not in tail, "the outlier must have driven the graph out"
    while REFRESH.value not in reasons(world):
        assert world.now_ns < 40_000 * MS, "never looked at again"
        world.step()
    assert world.log[-1].name == "decode-b2"
    assert world.now_ns > 30_000 * MS, "a fresh estimate was looked at again"
    world.run(60)
    assert [f.name for f in world.log[-40:]] == ["decode-b2"] * 40


def test_the_first_refresh_needs_its_funding_time() -> None:
    """With something stale at hand, 2,495 ms of credited ordinary execution come first (11.1)."""
    world = World(SLOW, rows=2, policy=PolicyConfig(estimate_ttl_ns=1_000 * MS))
    measure_all(world)
    world.run_until(world.now_ns / MS + 10_000)
    books_before = world.scheduler.exploration()[REFRESH]
    assert books_before.credit_ms == 0.0
    world.admit("a", 64, 200_000)
    start_ns = books_before.ordinary_ns
    for _ in range(200):
        earned_ns = world.scheduler.exploration()[REFRESH].ordinary_ns - start_ns
        plan = world.plan()
        if not world.queue:
            assert plan is not None
            assert (plan.reason is REFRESH) is (earned_ns >= 2_495 * MS), earned_ns
            if plan.reason is REFRESH:
                return
        if plan is not None:
            world.commit(plan)
        else:
            world.finish_frame()
    raise AssertionError("no refresh at all")


def test_discovery_earns_nothing() -> None:
    """Initial discovery neither earns nor spends; it is counted by its own reason (11.2)."""
    world = World(SLOW, rows=1)
    world.admit("a", 64, 40)
    for _ in range(3):
        assert world.step()
        assert credit_ms(world) == 0.0
    assert world.scheduler.executions()[SelectionReason.DISCOVERY].count == 3
    assert world.step()
    assert world.scheduler.executions()[SelectionReason.ORDINARY].count == 1
    assert credit_ms(world) > 0.0


def test_a_probe_waits_for_the_queue_and_runs_alone() -> None:
    """A due refresh stops further queueing, runs in an empty window and nothing joins it (11.7)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    while not (len(world.queue) == 1 and world.plan() is None and credit_ms(world) == 5.0):
        if world.plan() is None or len(world.queue) == 1:
            world.submit()
            world.finish_frame()
        else:
            world.submit()
    score = world.scheduler.explain()[0]
    assert score.reason is REFRESH
    assert score.needs_empty_queue
    assert score.exploration_credit_ms == 5.0
    world.finish_frame()
    plan = world.plan()
    assert plan is not None
    assert plan.reason is REFRESH
    assert plan.needs_empty_queue
    world.commit(plan)
    assert world.plan() is None, "a frame was queued behind a probe"
    world.finish_frame()
    ordinary = world.plan()
    assert ordinary is not None
    assert ordinary.reason is SelectionReason.ORDINARY


def test_alternatives_include_shapes_with_redundant_padding() -> None:
    """Dominance rules the ordinary choice; a probe measures the graph, padded or not (11.5)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    plan = next_probe(world)
    assert plan.graph.name == "decode-b2"
    assert len(plan.steps) == 1
    assert plan.terms is not None
    assert plan.terms.padding == 1


def test_a_refresh_pays_its_duration_once_and_into_debt() -> None:
    """60 ms out of 5 ms of credit: the rest is earned back before the next one (11.3)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    world.commit(next_probe(world))
    assert world.scheduler.exploration()[REFRESH].is_open
    assert credit_ms(world) == 5.0
    world.finish_frame()
    assert credit_ms(world) == 5.0 - 60.0
    assert not world.scheduler.exploration()[REFRESH].is_open
    begin_ns = world.scheduler.exploration()[REFRESH].ordinary_ns
    next_probe(world)
    earned_ns = world.scheduler.exploration()[REFRESH].ordinary_ns - begin_ns
    assert 60 * 499 * MS <= earned_ns < (60 * 499 + 2 * 50) * MS, "and a drain of the queue"


def test_invalid_timing_is_paid_by_wall_time_and_refreshes_nothing() -> None:
    """The attempt costs its isolated wall time, the estimate stays stale, it is retried (11.3)."""
    world = steady(streams=1, estimate_ttl_ns=1_000 * MS)
    plan = next_probe(world)
    index = plan.cost_index
    world.commit(plan)
    world.timing_of = lambda inner, flight: ExecutionTiming(device_ns=(0,), wall_ns=90 * MS)
    world.finish_frame()
    world.timing_of = honest_timing
    assert credit_ms(world) == 5.0 - 90.0
    again = next_probe(world)
    assert again.cost_index == index, "the only alternative in this load"
    assert again.terms is not None
    assert (again.terms.cost_age_ns or 0) > 90 * 499 * MS, "the invalid attempt made it fresh"


def test_a_failed_probe_closes_and_pays_the_time_it_took() -> None:
    """There is no timing and no observation; the machine was busy all the same (11.3)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    flight = world.commit(next_probe(world))
    world.queue.clear()
    world.now_ns += 17 * MS
    world.scheduler.advance_to(world.now_ns)
    world.scheduler.fail(flight.fence)
    account = world.scheduler.exploration()[REFRESH]
    assert (account.is_open, account.spent_ns) == (False, 17 * MS)
    assert account.credit_ms == 5.0 - 17.0


def test_a_cancelled_probe_pays_and_its_observation_is_real() -> None:
    """Cancellation drops the tokens of the probe, not its duration (11.3)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    plan = next_probe(world)
    world.commit(plan)
    world.cancel("s0")
    assert world.finish_frame() == []
    assert credit_ms(world) == 5.0 - 60.0
    assert world.scheduler.executions()[REFRESH].count == 1
    assert not world.scheduler.exploration()[REFRESH].is_open


def test_attempts_advance_on_commit_alone() -> None:
    """Asking for plans changes nothing, even at full credit (11.6)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    plan = next_probe(world)
    before = freeze(world.scheduler)
    for _ in range(3):
        assert world.scheduler.plan() == plan
        world.scheduler.explain()
    assert freeze(world.scheduler) == before
    dispatches = world.scheduler._state.dispatches
    attempted_ns = dispatches.last_ns[plan.cost_index]
    flight = world.commit(plan)
    assert attempted_ns < dispatches.last_ns[plan.cost_index] == world.now_ns
    world.queue.clear()
    world.scheduler.fail(flight.fence)
    assert dispatches.last_ns[plan.cost_index] == world.now_ns, "it was attempted all the same"


def test_commit_refuses_a_probe_that_is_no_longer_funded() -> None:
    """A saved probe whose credit is gone is refused, and changes nothing (11.7)."""
    world = steady(streams=1, estimate_ttl_ns=1_000 * MS)
    saved = next_probe(world)
    world.scheduler._state.funds.discard()
    before = freeze(world.scheduler)
    with pytest.raises(StalePlanError, match="credit"):
        world.scheduler.commit(saved, Fence(10_000))
    assert freeze(world.scheduler) == before


def test_commit_refuses_a_refresh_that_has_become_fresh() -> None:
    """A saved refresh whose entry was measured meanwhile has nothing to refresh (11.7)."""
    world = steady(streams=1, estimate_ttl_ns=1_000 * MS)
    saved = next_probe(world)
    state = world.scheduler._state
    state.costs.observe(saved.cost_index, 60 * MS, world.now_ns)
    before = freeze(world.scheduler)
    with pytest.raises(StalePlanError, match="fresh"):
        world.scheduler.commit(saved, Fence(10_000))
    assert freeze(world.scheduler) == before


def test_commit_rechecks_the_freshness_of_a_saved_plan() -> None:
    """A plan for behind a running frame outlives its estimate's freshness: refused (11.7)."""
    world = steady(streams=1, estimate_ttl_ns=1_000 * MS)
    world.commit(world.plan() or pytest.fail("no plan"))
    saved = world.plan()
    assert saved is not None
    assert not saved.needs_empty_queue
    world.scheduler._state.costs.ttl_ns = 1
    with pytest.raises(StalePlanError, match="no longer fresh"):
        world.scheduler.commit(saved, Fence(10_000))


def prompts_with_costs_of_their_own(ttl_ms: int) -> World:
    """Return a world whose prefill costs depend on how much of the prompt is cached."""
    programs = {"initialize-b1": 0.2, "prefill-c64": 4.0, "prefill-c256": 9.0, "decode-b1": 3.0}
    model = modelled({**programs, "terminal-b1": 0.2})
    split = (512, 1_024, 2_048)
    catalog = Catalog.of(
        dataclasses.replace(graph, context_intervals=split)
        if graph.kind is GraphKind.PREFILL
        else graph
        for graph in model.catalog.graphs
    )
    policy = dataclasses.replace(PolicyConfig.balanced(), estimate_ttl_ns=ttl_ms * MS)
    return World(ModelledCatalog(catalog, model.duration_ns), rows=4, policy=policy)


def test_a_refresh_is_of_the_cost_that_prices_its_own_prompt() -> None:
    """A prefill may be stale at the mean of all prompts and fresh at the one that it would run.

    Such a plan was refused at commit and made again, so that nothing ran any more (11.5; 13.2).
    """
    world = prompts_with_costs_of_their_own(ttl_ms=1_000)
    world.admit("deep", 9_000, 1)
    state = world.scheduler._state
    while not (resident := state.table.resident) or resident[0].prompt_done <= 2_600:
        world.step()
    world.admit("new", 450, 1)
    while any(request.stages for request in resident) or len(resident) < 2:
        world.step()
    assert [request.prompt_done > 2_048 for request in resident] == [True, False]
    world.advance_to(world.now_ns + 2_000 * MS)
    exploration.on_complete(state, SelectionReason.ORDINARY, 60_000 * MS, 60_000 * MS)
    prefills = state.catalog.indices_of(GraphKind.PREFILL)
    for request, graph in itertools.product(resident, prefills):
        entry = state.costs.entry_of(graph, float(request.prompt_done))
        state.costs.observe(entry, 4 * MS, world.now_ns)
    plan = world.plan()
    assert plan is not None
    assert plan.reason is SelectionReason.ORDINARY, "the mean of both prompts prices neither"
    world.advance_to(world.now_ns + 2_000 * MS)
    exploration.on_complete(state, SelectionReason.ORDINARY, 60_000 * MS, 60_000 * MS)
    plan = world.plan()
    assert plan is not None
    assert plan.reason is REFRESH
    position = float(plan.steps[0].position)
    assert plan.cost_index == state.costs.entry_of(plan.graph_index, position)
    assert world.step()
    assert world.log[-1].plan.reason is REFRESH


def test_a_stale_ordinary_winner_spends_nothing() -> None:
    """Running the winner measures it: ordinary reason, ordinary credit (11.5)."""
    world = steady(streams=2, estimate_ttl_ns=1_000 * MS)
    while world.queue:
        world.finish_frame()
    world.advance(5_000.0)
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    assert (plan.terms.cost_age_ns or 0) > 1_000 * MS
    assert plan.reason is SelectionReason.ORDINARY
    spent_ns = world.scheduler.exploration()[REFRESH].spent_ns
    world.commit(plan)
    world.finish_frame()
    assert world.scheduler.exploration()[REFRESH].spent_ns == spent_ns


def test_idle_drops_credit_and_keeps_debt() -> None:
    """Time that passes with nothing to run clears what was saved, and forgives nothing (11.4)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    world.run(20)
    assert credit_ms(world) > 0.0
    world.cancel("s0")
    while world.queue:
        world.finish_frame()
    assert credit_ms(world) > 0.0, "no time has passed yet"
    world.advance(0.001)
    assert credit_ms(world) == 0.0
    world.admit("s1", 64, 200_000)
    world.commit(next_probe(world))
    world.finish_frame()
    world.cancel("s1")
    world.advance(60_000.0)
    assert credit_ms(world) == -55.0


def test_short_busy_periods_leave_graphs_stale_for_ever() -> None:
    """Two seconds of work at a time never fund a refresh; the document's limit (11.10)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    world.cancel("s0")
    while world.queue:
        world.finish_frame()
    for period in range(12):
        world.advance(100.0)
        world.admit(f"p{period}", 64, 38)
        world.run_until_idle()
    assert REFRESH.value not in reasons(world)
    assert world.scheduler.exploration()[REFRESH].ordinary_ns > 12 * 1_850 * MS


def test_every_measured_graph_of_a_steady_load_is_refreshed() -> None:
    """Whatever is feasible in the load is measured again and again, padded shapes included."""
    model = gpu_like(rows=4, prefills=(64, 256)).scaled(10)
    world = World(model, rows=4, policy=PolicyConfig(estimate_ttl_ns=20_000 * MS))
    measure_all(world)
    for index in range(3):
        world.admit(f"s{index}", 64, 500_000)
    world.observers.append(Account(world))
    begin_ns = world.now_ns
    while world.now_ns < begin_ns + 55_000 * MS:
        world.step()
    steady = [f for f in world.log if f.start_ns > begin_ns + 10_000 * MS]
    ordinary = {f.name for f in steady if f.plan.reason is SelectionReason.ORDINARY}
    assert {"decode-b1", "decode-b2", "decode-b4"} - ordinary, "nothing was left to refresh"
    last_ns = {f.name: f.start_ns for f in world.log}
    for name in ("decode-b1", "decode-b2", "decode-b4"):
        # Two alternatives of at most 32 ms, each of which takes 499 times as long to fund.
        assert last_ns[name] > world.now_ns - 40_000 * MS, f"{name} was forgotten"


def test_a_refresh_delays_a_stream_by_one_frame_at_most() -> None:
    """The worst gap with probes is the worst without, plus the longest alternative (11.7)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    start_ns = world.now_ns
    while world.now_ns < start_ns + 9_000 * MS:
        world.step()
    assert REFRESH.value in reasons(world)
    assert max(world.streams["s0"].gaps_ms) <= 50.0 + 60.0


def test_no_refresh_breaks_a_gap_objective_while_it_can_wait() -> None:
    """A probe of 60 ms waits ten ttl under an objective of 55 ms, not at all under 70 (11.5.1)."""
    world = steady(estimate_ttl_ns=400 * MS, gap_objective_ms=55.0)
    begin_ns = world.now_ns
    while REFRESH.value not in reasons(world):
        assert world.now_ns < begin_ns + 20_000 * MS, "never looked at again"
        world.step()
    assert world.log[-1].name == "decode-b2"
    assert world.now_ns > begin_ns + 3_700 * MS
    patient = steady(estimate_ttl_ns=400 * MS, gap_objective_ms=70.0)
    begin_ns = patient.now_ns
    while REFRESH.value not in reasons(patient):
        patient.step()
    assert patient.now_ns < begin_ns + 3_500 * MS, "an objective that it keeps holds nothing up"


def test_the_trace_of_a_probe_says_why_it_ran() -> None:
    """Reason, credit and cost age survive the trace line (runtime 4.2)."""
    world = steady(estimate_ttl_ns=1_000 * MS)
    flight = world.commit(next_probe(world))
    trace = world.scheduler.trace_of(flight.fence)
    assert trace.score.reason is REFRESH
    assert trace.score.exploration_credit_ms == 5.0
    assert (trace.score.cost_age_ns or 0) > 1_000 * MS
    assert parse_trace(format_trace(trace)) == trace


def test_ordinary_work_has_no_exploration_credit() -> None:
    """Only a probe spends (11.3)."""
    world = steady()
    world.run(50)
    assert {score.exploration_credit_ms for score in world.scheduler.explain()} == {0.0}


def try_cancel(world: World, name: str) -> None:
    """Cancel a request unless it has been released already."""
    with contextlib.suppress(UnknownHandleError):
        world.cancel(name)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]
)
def test_both_bounds_hold_on_random_histories(seed: int) -> None:
    """Adversarial timings, idle times, cancellations, failures; checked at every completion."""
    draw = random.Random(seed)
    model = gpu_like(rows=4, prefills=(64, 512)).scaled(draw.choice([1, 10, 40]))
    policy = PolicyConfig(estimate_ttl_ns=draw.choice([200, 2_000, 30_000]) * MS)
    world = World(model, rows=4, policy=policy)

    def timing(inner: World, flight: Flight) -> ExecutionTiming:
        honest = honest_timing(inner, flight)
        fault = draw.random()
        if fault < 0.05:
            return dataclasses.replace(honest, device_ns=draw.choice([(), (0,), (0, 0)]))
        if fault < 0.08:
            return dataclasses.replace(honest, wall_ns=draw.randrange(5_000 * MS))
        if fault < 0.1:
            return dataclasses.replace(honest, device_ns=(draw.randrange(1, 900 * MS),))
        return honest

    world.timing_of = timing
    world.observers.append(Account(world))
    for step in range(900):
        alive = [n for n, s in world.streams.items() if len(s.tokens) < s.spec.max_output_tokens]
        if len(alive) < 3 and draw.random() < 0.3:
            world.admit(f"r{step}", draw.randrange(1, 900), draw.randrange(1, 120))
        if draw.random() < 0.004 and alive:
            try_cancel(world, draw.choice(alive))
        if draw.random() < 0.002:
            world.advance(draw.choice([1.0, 400.0, 31_000.0]))
        if not world.step():
            world.advance(draw.choice([0.0, 5.0]))
    assert world.scheduler.exploration()[REFRESH].ordinary_ns > 0
