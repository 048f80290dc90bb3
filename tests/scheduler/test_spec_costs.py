"""The design's section on duration estimates, one test per clause."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.scheduler import (
    Catalog,
    Endpoint,
    ExecutionTiming,
    Fence,
    GraphKind,
    PolicyConfig,
    SelectionReason,
    StalePlanError,
)
from tests.scheduler.oracles import costs
from tests.support.catalogs import ModelledCatalog, modelled
from tests.support.snapshot import freeze
from tests.support.world import Flight, World, measure_all

TTL_NS = PolicyConfig().estimate_ttl_ns
MS = 1_000_000

SOLO = modelled({"initialize-b1": 0.25, "prefill-c64": 4.0, "decode-b1": 3.0, "terminal-b1": 0.25})


def decoding_world(model: ModelledCatalog = SOLO, *, names: str = "a", **options: int) -> World:
    """Return a world whose requests decode, one frame at a time, in the only decode shape."""
    world = World(model, rows=len(names), **options)
    for name in names:
        world.admit(name, 16, 2_000, needs_feedback=True)
    while any(not world.streams[name].tokens for name in names):
        assert world.step()
    return world


def observe(
    world: World,
    *device_ns: int,
    readiness_ns: int = 0,
    wall_ns: int = 0,
    feedback_ns: int = 0,
) -> None:
    """Run one frame whose timing is reported as given."""

    def timing(inner: World, flight: Flight) -> ExecutionTiming:
        wall = wall_ns or inner.now_ns - flight.submitted_ns
        return ExecutionTiming(
            device_ns=device_ns, wall_ns=wall, readiness_ns=readiness_ns, feedback_ns=feedback_ns
        )

    honest, world.timing_of = world.timing_of, timing
    assert world.step()
    world.timing_of = honest


def estimate_of(world: World) -> int:
    """The estimate in the plan that the scheduler would submit now."""
    plan = world.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.DECODE
    return plan.estimated_duration_ns


def test_supplied_estimates_are_ignored() -> None:
    """Native estimates start at zero even when a descriptor carries one (Duration estimates)."""
    graphs = [dataclasses.replace(g, estimated_duration_ns=9 * MS) for g in SOLO.catalog.graphs]
    world = World(ModelledCatalog(Catalog.of(graphs), SOLO.duration_ns), rows=1)
    world.admit("a")
    plan = world.plan()
    assert plan is not None
    assert plan.estimated_duration_ns == 0
    assert plan.reason is SelectionReason.DISCOVERY


def test_first_positive_observation_sets_the_estimate() -> None:
    """The first positive device observation becomes the estimate (Duration estimates)."""
    world = decoding_world()
    observe(world, 7 * MS)
    assert estimate_of(world) == 7 * MS


def test_middle_pair_is_averaged_while_there_are_few_samples() -> None:
    """An even count below nine averages its middle pair (Duration estimates)."""
    world = decoding_world()
    observe(world, 7 * MS)
    observe(world, 4 * MS)
    assert estimate_of(world) == 5.5 * MS


@given(st.lists(st.integers(1, 50 * MS), min_size=1, max_size=30))
def test_estimate_is_the_median_of_the_last_nine(samples: list[int]) -> None:
    """While fresh, the estimate is the median of the last nine (Duration estimates)."""
    world = decoding_world()
    history = []
    for sample in samples:
        observe(world, sample)
        history.append(costs.Observation(world.now_ns, (sample,)))
        assert abs(estimate_of(world) - costs.estimate_ns(history, TTL_NS)) <= 0.5


def test_one_outlier_among_nine_changes_nothing() -> None:
    """A median ignores a single contended replay, however long (Duration estimates)."""
    world = decoding_world()
    for _ in range(9):
        observe(world, 3 * MS)
    observe(world, 3_000 * MS)
    assert estimate_of(world) == 3 * MS


def test_the_longest_rank_counts() -> None:
    """The raw observation is the maximum positive rank interval (Duration estimates)."""
    world = decoding_world()
    observe(world, 2 * MS, 0, 6 * MS, 5 * MS)
    assert estimate_of(world) == 6 * MS


def test_readiness_delay_is_subtracted_after_aggregation() -> None:
    """Exposed embedding delay leaves the cost sample, after the maximum (Duration estimates)."""
    world = decoding_world()
    observe(world, 2 * MS, 9 * MS, readiness_ns=4 * MS)
    assert estimate_of(world) == 5 * MS


def test_a_wait_for_feedback_is_part_of_the_cost() -> None:
    """A program that never runs ahead costs the device's wait for the host, too (decision 0023)."""
    world = decoding_world()
    observe(world, 9 * MS, feedback_ns=2 * MS)
    assert estimate_of(world) == 11 * MS
    observe(world, 0, feedback_ns=50 * MS)
    assert estimate_of(world) == 11 * MS, "without an interval there is nothing to learn"


def test_host_time_is_no_part_of_a_cost() -> None:
    """Dispatch, delivery and polling time stay outside the estimate (Duration estimates)."""
    world = decoding_world()
    observe(world, 3 * MS, wall_ns=500 * MS)
    assert estimate_of(world) == 3 * MS


@pytest.mark.parametrize("device_ns", [(), (0,), (0, 0)])
def test_missing_intervals_teach_nothing(device_ns: tuple[int, ...]) -> None:
    """A missing or zero interval leaves the estimate as it was (Duration estimates)."""
    world = decoding_world()
    observe(world, 7 * MS)
    observe(world, *device_ns)
    assert estimate_of(world) == 7 * MS
    observe(world, 3 * MS)
    assert estimate_of(world) == 5 * MS, "the invalid sample took a place among the nine"


def test_missing_intervals_leave_an_unmeasured_graph_indeterminate() -> None:
    """Without a positive interval a graph stays indeterminate (Duration estimates)."""
    world = World(SOLO, rows=1)
    world.timing_of = lambda inner, flight: ExecutionTiming(device_ns=(0,), wall_ns=5 * MS)
    world.admit("a", 16, 50)
    world.run(8)
    plan = world.plan()
    assert plan is not None
    assert (plan.estimated_duration_ns, plan.reason) == (0, SelectionReason.DISCOVERY)


def test_missing_intervals_do_not_refresh() -> None:
    """Invalid timing does not make an entry fresh (Duration estimates)."""
    world = decoding_world()
    observe(world, 3 * MS)
    start_ns = world.now_ns
    world.advance_to(start_ns + TTL_NS - 10 * MS)
    observe(world)
    world.advance_to(start_ns + TTL_NS + 10 * MS)
    plan = world.plan()
    assert plan is not None
    assert plan.needs_empty_queue, "stale entries need an empty queue"


def test_an_estimate_is_fresh_until_thirty_seconds_have_passed() -> None:
    """Stale after 30 s without a valid observation, fresh before (Duration estimates)."""
    world = World(SOLO, rows=1)
    world.admit("a", 16, 2_000)
    world.run(6)
    while world.queue:
        world.finish_frame()
    seen_ns = world.now_ns
    world.advance_to(seen_ns + TTL_NS - 1)
    fresh = world.plan()
    world.advance_to(seen_ns + TTL_NS + 1)
    stale = world.plan()
    assert fresh is not None
    assert stale is not None
    assert not fresh.needs_empty_queue
    assert stale.needs_empty_queue
    assert fresh.estimated_duration_ns == stale.estimated_duration_ns == 3 * MS


def _ms(model: ModelledCatalog) -> dict[str, float]:
    return {name: ns / MS for name, ns in model.duration_ns.items()}


def test_elapsed_time_never_makes_a_graph_unknown() -> None:
    """A measured graph keeps its cost for selection however old it is (Duration estimates)."""
    world = decoding_world()
    observe(world, 3 * MS)
    world.advance(1000 * 3600 * 1000)
    plan = world.plan()
    assert plan is not None
    assert plan.estimated_duration_ns == 3 * MS
    assert plan.reason is SelectionReason.ORDINARY


def test_first_observation_of_a_stale_entry_replaces_its_estimate() -> None:
    """A stale entry forgets its samples at the next valid one (Duration estimates)."""
    world = decoding_world()
    for _ in range(9):
        observe(world, 3 * MS)
    world.advance_to(world.now_ns + TTL_NS + 1)
    observe(world, 8 * MS)
    assert estimate_of(world) == 8 * MS
    observe(world, 6 * MS)
    assert estimate_of(world) == 7 * MS


def test_active_rows_do_not_change_the_entry() -> None:
    """Active row count is no part of a cost entry's identity (Duration estimates)."""
    model = modelled(
        {"initialize-b4": 0.25, "prefill-c64": 4.0, "decode-b4": 3.0, "terminal-b4": 0.25}
    )
    world = World(model, rows=4)
    world.admit("a", 16, 500, needs_feedback=True)
    while not world.streams["a"].tokens:
        world.step()
    observe(world, 7 * MS)
    for name in "bcd":
        world.admit(name, 16, 500, needs_feedback=True)
    while not all(world.streams[name].tokens for name in "bcd"):
        plan = world.plan()
        assert plan is not None
        if plan.graph.kind is GraphKind.DECODE:
            assert plan.reason is SelectionReason.ORDINARY
        observe(world, 7 * MS if plan.graph.kind is GraphKind.DECODE else MS // 4)
    while (plan := world.plan()) is not None and plan.graph.kind is not GraphKind.DECODE:
        world.step()
    assert plan is not None
    assert plan.estimated_duration_ns == 7 * MS


def test_kinds_do_not_share_entries() -> None:
    """The graph kind is part of a cost entry's identity (Duration estimates)."""
    model = modelled({**_ms(SOLO), "scored-prefill-c64": 5.0})
    world = World(model, rows=1)
    measure_all(world, prompt=64)
    world = World(model, rows=1)
    world.admit("plain", 64, 1)
    world.run_until_idle()
    world.admit("scored", 64, 1, scored=True)
    names = []
    while world.step():
        names.append((world.log[-1].name, world.log[-1].plan.estimated_duration_ns))
    assert ("scored-prefill-c64", 0) in names


# ---- discovery ----------------------------------------------------------------------------


def test_a_cold_request_tries_its_largest_useful_prefill() -> None:
    """A lone cold request tries its largest useful extent, without a rule (Duration estimates)."""
    model = modelled({**_ms(SOLO), "prefill-c256": 9.0, "prefill-c1024": 30.0})
    world = World(model, rows=1)
    world.admit("a", 600, 4)
    world.run(2)
    assert [flight.name for flight in world.log] == ["initialize-b1", "prefill-c1024"]


def test_larger_unmeasured_prefill_is_not_explored_for_the_same_tokens() -> None:
    """A larger unmeasured prefill is excluded when a smaller consumes the same (exploration)."""
    model = modelled({**_ms(SOLO), "prefill-c256": 9.0, "prefill-c1024": 30.0})
    world = World(model, rows=1)
    for index, prompt in enumerate((40, 64, 200)):
        world.admit(f"r{index}", prompt, 1)
        world.run_until_idle()
    prefills = [flight.name for flight in world.log if "prefill" in flight.name]
    assert prefills == ["prefill-c64", "prefill-c64", "prefill-c256"]


def _explored(model: ModelledCatalog, prompt: int, ends: tuple[int, ...], **more: Any) -> list[str]:
    """Return the prompt programs that a lone prompt runs; all but the larger ones are known."""
    known = {name: model.duration_ns[name] for name in model.duration_ns if "c64" in name}
    world = World(model, rows=1, page_size=16, pages=4096, seeded=known, more=more)
    endpoints = (
        *(Endpoint(end, b"m%d" % end) for end in ends),
        Endpoint(prompt, b"p", ends_message=False),
    )
    world.admit("a", prompt, 1, endpoints=endpoints)
    world.run_until_idle()
    return [flight.name for flight in world.log if "prefill" in flight.name]


LARGER = modelled({**_ms(SOLO), "prefill-c256": 5.0, "prefill-c1024": 12.0, "prefill-c4096": 40.0})
KEEPING = modelled(
    {**_ms(SOLO), "prefill-c256": 5.0, "snapshot-b1": 0.25, "restore-b1": 0.25},
)


def test_exploration_looks_no_further_than_prefill_goes() -> None:
    """Exploration ends where prefill does: at a message's end whose state is kept (exploration).

    A smaller graph that reaches it consumes the same tokens. Where nothing is kept there, prefill
    runs on, so the larger graph consumes more and is tried.
    """
    assert _explored(KEEPING, 600, (50,), snapshot_rows=1)[0] == "prefill-c64"
    assert _explored(KEEPING, 600, (300,), snapshot_rows=1)[0] == "prefill-c256"
    assert _explored(KEEPING, 600, (50,))[0] == "prefill-c256"


@pytest.mark.parametrize("more", [{}, {"page_prefixes": True}], ids=["nothing kept", "pages kept"])
def test_messages_shorter_than_a_capacity_hide_it_not(more: dict[str, Any]) -> None:
    """Nothing stops at these messages, so the largest useful prefill is tried as without them; what
    is larger than the prompt needs is not (exploration)."""
    ends = tuple(range(50, 950, 50))
    assert _explored(LARGER, 950, ends, **more) == ["prefill-c1024"]
    assert _explored(LARGER, 2_000, ends, **more) == ["prefill-c4096"]
    assert _explored(LARGER, 250, ends[:4], **more) == ["prefill-c256"]


def test_messages_shorter_than_a_capacity_hide_it_not_from_kept_rows() -> None:
    """Only the anchor's row is worth a stop here, so the way there is one stretch (exploration)."""
    ends = tuple(range(50, 600, 50))
    prefills = _explored(KEEPING, 600, ends, snapshot_rows=1)
    assert prefills == ["prefill-c256", "prefill-c256", "prefill-c64", "prefill-c64"]


def test_a_scored_prompt_explores_over_its_messages_too() -> None:
    """Scored graphs follow the same rule (exploration)."""
    model = modelled({**_ms(SOLO), "scored-prefill-c64": 5.0, "scored-prefill-c256": 9.0})
    known = {name: model.duration_ns[name] for name in ("scored-prefill-c64", "initialize-b1")}
    world = World(model, rows=1, seeded=known)
    ends = tuple(Endpoint(end, b"m%d" % end) for end in range(30, 600, 30))
    world.admit("a", 600, 1, endpoints=ends, scored=True)
    world.run_until_idle()
    assert "scored-prefill-c256" in [flight.name for flight in world.log]


def test_a_newcomer_is_seated_at_once_for_what_its_first_prefill_would_show() -> None:
    """The second stage of a pair follows the same rule: an unknown graph that a newcomer would try
    makes its initialisation win over known decoding, near messages or not (exploration)."""
    model = modelled({**_ms(LARGER), "decode-b1": 0.01, "initialize-b1": 50.0})
    world = World(model, rows=2, seeded=[name for name in model.duration_ns if "c256" not in name])
    world.admit("a", 16, 2_000, needs_feedback=True)
    while not world.streams["a"].tokens:
        world.step()
    for _ in range(3):
        world.step()
    world.admit("b", 250, 2, endpoints=tuple(Endpoint(end, b"%d" % end) for end in (50, 100, 150)))
    plan = world.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.INITIALIZE


def test_a_mixed_capacity_beyond_every_prompt_is_not_explored() -> None:
    """Beside decoders, too, a larger prompt row is tried where it takes more, over message ends,
    and not where a smaller one takes the whole prompt (exploration; dominance)."""
    rows = {f"mixed-b2-w1-c{capacity}": 4.0 + capacity / 64 for capacity in (64, 256, 1024)}
    model = modelled({**_ms(SOLO), **rows})
    world = World(model, rows=2)
    world.admit("a", 16, 2_000, needs_feedback=True)
    while not world.streams["a"].tokens:
        world.step()
    ends = tuple(Endpoint(end, b"m%d" % end) for end in range(50, 250, 50))
    world.admit("b", 250, 2, endpoints=ends)
    while world.streams["b"].tokens == []:
        world.step()
    names = {flight.name for flight in world.log if "mixed" in flight.name}
    assert "mixed-b2-w1-c256" in names
    assert "mixed-b2-w1-c1024" not in names


def test_an_indeterminate_candidate_beats_a_determinate_one() -> None:
    """Unknown wins over known whatever the values are (Duration estimates)."""
    model = modelled({**_ms(SOLO), "initialize-b2": 0.3, "decode-b2": 3.2})
    world = World(model, rows=2)
    world.admit("a", 16, 2_000)
    world.run(10)
    world.admit("huge", 64, 2_000, weight=1e6)
    while not world.streams["huge"].tokens:
        world.step()
    plan = None
    while plan is None:
        plan = world.plan()
        if plan is None:
            world.finish_frame()
    assert plan.graph.name == "decode-b2"
    assert plan.reason is SelectionReason.DISCOVERY


def test_unknown_graphs_wait_for_an_empty_queue() -> None:
    """An unknown graph requires an empty queue and completion feedback (Duration estimates)."""
    model = modelled({**_ms(SOLO), "initialize-b2": 0.3, "decode-b2": 3.2})
    world = World(model, rows=2)
    world.admit("a", 16, 2_000)
    world.admit("b", 16, 2_000)
    world.run(40)
    discovered: set[str] = set()
    for earlier, flight in zip(world.log, world.log[1:], strict=False):
        discovered.add(earlier.name)
        if flight.name not in discovered:
            assert flight.plan.needs_empty_queue
            assert not flight.queued


def test_nothing_is_queued_behind_an_unknown_graph() -> None:
    """An unknown graph requires completion feedback, also of what could follow it (same section).

    `short` ends in the frame that discovers decode-b2, so the only thing that could be queued
    behind it is decode-b1 at a fresh cost.
    """
    model = modelled({**_ms(SOLO), "initialize-b2": 0.3, "decode-b2": 3.2})
    world = World(model, rows=2)
    world.admit("long", 16, 2_000)
    world.run(10)
    world.admit("short", 16, 2)
    while world.log[-1].name != "decode-b2":
        if (plan := world.plan()) is not None:
            world.commit(plan)
        else:
            world.finish_frame()
    assert set(world.log[-1].lanes) == {"long", "short"}
    assert world.log[-1].plan.reason is SelectionReason.DISCOVERY
    assert world.plan() is None


def test_stale_graphs_wait_for_an_empty_queue() -> None:
    """Stale dispatches require an empty queue while keeping their cost (Duration estimates)."""
    world = World(SOLO, rows=1)
    world.admit("a", 16, 2_000)
    world.run(10)
    while world.queue:
        world.finish_frame()
    world.advance_to(world.now_ns + TTL_NS + 1)
    world.submit()
    assert len(world.queue) == 1, "a second frame was queued behind a stale one"
    assert world.queue[0].plan.estimated_duration_ns == 3 * MS
    world.finish_frame()
    world.submit()
    assert len(world.queue) == 2, "the refreshed graph may occupy both slots again"


def test_commit_rechecks_freshness() -> None:
    """A saved plan can outlive the freshness of its estimate (Duration estimates).

    The interval is shorter than a frame, so it passes while the head is still within its time and
    nothing but freshness speaks against the plan.
    """
    world = World(SOLO, rows=1, policy=PolicyConfig(estimate_ttl_ns=2 * MS))
    world.admit("a", 16, 2_000)
    world.run(10)
    while world.queue:
        world.finish_frame()
    first = world.plan()
    assert first is not None
    world.commit(first)
    saved = world.plan()
    assert saved is not None
    assert not saved.needs_empty_queue
    world.advance(2.5)
    before = freeze(world.scheduler)
    with pytest.raises(StalePlanError):
        world.scheduler.commit(saved, Fence(10_000))
    assert freeze(world.scheduler) == before


def test_seeded_costs_are_eligible_but_never_fresh() -> None:
    """A cost cache seeds stale entries: ranked by old cost, refreshed on use (decisions, 10)."""
    world = World(SOLO, rows=1, seeded=SOLO.duration_ns)
    world.admit("a", 16, 2_000)
    plan = world.plan()
    assert plan is not None
    assert plan.reason is SelectionReason.ORDINARY
    assert plan.estimated_duration_ns == SOLO.duration_ns["initialize-b1"]
    assert plan.needs_empty_queue
    world.run(3)
    assert world.log[-1].name == "decode-b1"
    assert world.log[-1].plan.needs_empty_queue
    world.model = SOLO.with_duration("decode-b1", 5.0)
    world = World(world.model, rows=1)
    world.scheduler.seed_costs({"decode-b1": 3 * MS})
    world.admit("a", 16, 2_000, needs_feedback=True)
    while not world.log or world.log[-1].name != "decode-b1":
        world.step()
    assert estimate_of(world) == 5 * MS, "the first observation replaces the seed"
