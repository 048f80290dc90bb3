"""Values that no type of the interface allows are refused by name, and change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from helios.scheduler import (
    Catalog,
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    FenceError,
    GraphKind,
    InvalidCatalogError,
    InvalidPolicyError,
    InvalidRequestError,
    ProposalSource,
    ResourceConfig,
    Scheduler,
    SchedulerError,
    StalePlanError,
    TimeError,
    UnknownHandleError,
)
from tests.support.catalogs import TINY, descriptor, gpu_like
from tests.support.snapshot import freeze
from tests.support.world import World

BEYOND = 1 << 63


def refused(world: World, error: type[SchedulerError], call: Callable[[], Any]) -> None:
    """Expect a typed error and a state that is the same bit for bit."""
    before = freeze(world.scheduler)
    with pytest.raises(error):
        call()
    assert freeze(world.scheduler) == before


@pytest.mark.parametrize("moment", [0.5, float("nan"), True, "1", BEYOND])
def test_what_is_no_moment_of_a_clock_is_refused(moment: Any) -> None:
    """A time that one array cannot hold would only be found out decisions later."""
    world = World(TINY)
    refused(world, TimeError, lambda: world.scheduler.advance_to(moment))


@pytest.mark.parametrize("fence", [None, float("nan"), True, "1", -1])
def test_what_is_no_fence_is_refused(fence: Any) -> None:
    """A fence that compares with nothing would end the order of all later ones."""
    world = World(TINY)
    world.admit("a")
    plan = world.plan()
    assert plan is not None
    refused(world, FenceError, lambda: world.scheduler.commit(plan, fence))


@pytest.mark.parametrize(
    "timing",
    [
        ExecutionTiming(device_ns=(BEYOND,), wall_ns=1),
        ExecutionTiming(device_ns=(1,), wall_ns=10**400),
        ExecutionTiming(device_ns=(1,), wall_ns=1, readiness_ns=BEYOND),
        ExecutionTiming(device_ns=(1,), wall_ns=1, feedback_ns=BEYOND),
    ],
)
def test_an_interval_that_no_float_holds_is_refused_before_any_change(
    timing: ExecutionTiming,
) -> None:
    """It would overflow only after the frame's lanes had advanced."""
    world = World(TINY)
    world.admit("a")
    (flight,) = world.submit()
    records = [CompletionRecord(step.handle) for step in flight.plan.steps]
    scheduler = world.scheduler
    refused(world, CompletionError, lambda: scheduler.complete(flight.fence, records, timing))


def test_a_policy_of_another_kind_is_refused() -> None:
    """The policy in force stays."""
    world = World(TINY)
    other: Any = None
    refused(world, InvalidPolicyError, lambda: world.scheduler.configure_policy(other))
    assert world.scheduler.policy == world.policy


@pytest.mark.parametrize("duration_ns", [BEYOND, 10**400, 0, True, 1.5])
def test_a_seed_that_is_no_interval_is_refused_before_any_change(duration_ns: Any) -> None:
    """Also where another seed is good."""
    world = World(TINY)
    seeds = {"decode-b1": 1_000_000, "prefill-c16": duration_ns}
    refused(world, InvalidCatalogError, lambda: world.scheduler.seed_costs(seeds))


def test_a_round_of_more_rows_than_an_integer_counts_is_no_graph() -> None:
    """B times W is counted before it is put in an array."""
    with pytest.raises(InvalidCatalogError, match="2\\*\\*62"):
        descriptor(f"speculative-b64-d{1 << 60}-w{1 << 60}")


def test_a_graph_of_more_depths_than_estimates_can_have_is_refused() -> None:
    """Every row has an estimate of every depth: memory would run out before any typed error."""
    with pytest.raises(InvalidCatalogError, match="proposal_depth must be at most 4096"):
        descriptor(f"speculative-b4-d{1 << 40}-w4")


@pytest.mark.parametrize("field", ["page_count", "snapshot_rows"])
def test_more_pages_than_the_pool_can_list_are_refused(field: str) -> None:
    """The same of pages and snapshot rows."""
    sizes: dict[str, Any] = {
        "row_count": 4,
        "page_count": 8,
        "page_size_tokens": 16,
        "context_length_tokens": 64,
    }
    with pytest.raises(InvalidPolicyError, match=f"resources.{field} must be an integer from"):
        ResourceConfig(**{**sizes, field: 1 << 61})


NOTHING: Any = None
NO_HANDLES: list[Any] = [None, 3, "ab", (0,), (0, 0, 0), (0.0, 0), ("a", 0), (None, None)]


@pytest.mark.parametrize("handle", NO_HANDLES)
@pytest.mark.parametrize("call", ["cancel", "finish", "phase_of", "output_count_of"])
def test_what_is_no_handle_is_refused(call: str, handle: Any) -> None:
    """Every handle misuse is a typed error, whatever was passed for one (decisions, 5)."""
    world = World(TINY)
    world.admit("a")
    refused(world, UnknownHandleError, lambda: getattr(world.scheduler, call)(handle))


def test_what_is_no_handle_publishes_and_copies_nothing() -> None:
    """The calls that take more than a handle look at it first."""
    world = World(TINY)
    world.admit("a")
    scheduler = world.scheduler
    refused(world, UnknownHandleError, lambda: scheduler.published_output(NOTHING, Fence(1)))
    refused(world, UnknownHandleError, lambda: scheduler.supply_copies(NOTHING, 1))
    refused(world, UnknownHandleError, lambda: scheduler.offer_terminal(NOTHING, b"key"))


@pytest.mark.parametrize("records", [None, 3, [None], [3], ["lane"], [(0, 0)]])
def test_what_is_no_record_is_refused(records: Any) -> None:
    """The error names the fence and the lane."""
    world = World(TINY)
    world.admit("a")
    (flight,) = world.submit()
    timing = world.timing_of(world, flight)
    refused(
        world,
        CompletionError,
        lambda: world.scheduler.complete(flight.fence, records, timing),
    )


BAD_FIELDS: list[dict[str, Any]] = [
    {"tokens": None},
    {"tokens": 7},
    {"prompt_tokens": 16.0},
    {"prompt_tokens": None},
    {"offered": "1"},
    {"terminated": 1},
    {"terminated": "yes"},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_a_record_of_other_types_changes_nothing(fields: dict[str, Any]) -> None:
    """A field that another type would carry into the state is refused before any change."""
    world = World(TINY)
    world.admit("a", 16)
    world.step()
    (flight,) = world.submit()
    assert flight.plan.graph.kind is GraphKind.PREFILL
    world.advance_to(flight.finish_ns)
    (good,) = [world._execute(step.handle, flight) for step in flight.plan.steps]
    bad = good._replace(**fields)
    timing = world.timing_of(world, flight)
    scheduler = world.scheduler
    refused(world, CompletionError, lambda: scheduler.complete(flight.fence, [bad], timing))
    assert len(scheduler.complete(flight.fence, [good], timing)) == 1


@pytest.mark.parametrize("terminated", [None, 1, "no"])
def test_an_end_that_is_no_bool_is_refused_for_a_lane_that_is_over(terminated: Any) -> None:
    """The end of a cancelled lane is taken in with the others, after which it is too late."""
    world = World(TINY)
    world.admit("a", 16)
    world.run(2)
    (flight, *_) = world.submit()
    world.cancel("a")
    records = [CompletionRecord(step.handle, terminated=terminated) for step in flight.plan.steps]
    timing = world.timing_of(world, flight)
    scheduler = world.scheduler
    refused(world, CompletionError, lambda: scheduler.complete(flight.fence, records, timing))


@pytest.mark.parametrize("peers", [None, 3, [None], [[None]], [["lane"]]])
def test_what_is_no_peer_is_refused(peers: Any) -> None:
    """Ranks whose records are no records disagree with rank zero."""
    world = World(TINY)
    world.admit("a")
    (flight,) = world.submit()
    records = [CompletionRecord(step.handle) for step in flight.plan.steps]
    timing = world.timing_of(world, flight)
    scheduler = world.scheduler
    refused(
        world,
        CompletionError,
        lambda: scheduler.complete(flight.fence, records, timing, peers=peers),
    )


@pytest.mark.parametrize("timing", [None, 5, ExecutionTiming(device_ns=NOTHING, wall_ns=1)])
def test_what_is_no_timing_is_refused(timing: Any) -> None:
    """No interval is no error; no timing is one."""
    world = World(TINY)
    world.admit("a")
    (flight,) = world.submit()
    records = [CompletionRecord(step.handle) for step in flight.plan.steps]
    scheduler = world.scheduler
    refused(world, CompletionError, lambda: scheduler.complete(flight.fence, records, timing))


def test_what_is_no_plan_is_refused() -> None:
    """Nothing, and a plan of a scheduler with a larger catalog."""
    world, other = World(TINY), World(gpu_like(rows=4))
    for each in (world, other):
        each.admit("a")
    refused(world, StalePlanError, lambda: world.scheduler.commit(NOTHING, Fence(1)))
    plan = other.plan()
    assert plan is not None
    far = dataclasses.replace(plan, graph_index=len(TINY.catalog.graphs) + 5)
    for foreign in (plan, far):
        refused(world, StalePlanError, lambda each=foreign: world.scheduler.commit(each, Fence(1)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.admit(NOTHING), InvalidRequestError),
        (lambda s: s.seed_costs(NOTHING), InvalidCatalogError),
        (lambda s: s.seed_acceptance("learned", [0.5], weight=4.0), InvalidRequestError),
        (
            lambda s: s.seed_acceptance(ProposalSource.LEARNED, NOTHING, weight=4.0),
            InvalidRequestError,
        ),
        (
            lambda s: s.seed_acceptance(ProposalSource.LEARNED, ["x"], weight=4.0),
            InvalidRequestError,
        ),
        (
            lambda s: s.seed_acceptance(ProposalSource.LEARNED, [0.5], weight="4"),
            InvalidRequestError,
        ),
    ],
)
def test_what_is_no_request_and_no_seed_is_refused(
    call: Callable[[Scheduler], Any], error: type[SchedulerError]
) -> None:
    """What enters before the first plan."""
    world = World(TINY)
    refused(world, error, lambda: call(world.scheduler))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"catalog": None}, InvalidCatalogError),
        ({"catalog": TINY.catalog.graphs}, InvalidCatalogError),
        ({"resources": None}, InvalidPolicyError),
        ({"policy": {}}, InvalidPolicyError),
        ({"speculation": "adaptive"}, InvalidPolicyError),
    ],
)
def test_a_scheduler_is_made_of_its_records(
    fields: dict[str, Any], error: type[SchedulerError]
) -> None:
    """The error names the argument."""
    (name,) = fields
    resources = World(TINY).resources
    with pytest.raises(error, match=f"^{name} must be"):
        Scheduler(**{"catalog": TINY.catalog, "resources": resources, **fields})


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ((descriptor("decode-b1"),), "the catalog has no initialize graph"),
        (TINY.catalog.graphs * 2, "is in the catalog twice"),
        (TINY.catalog.graphs[::-1], "in the order of Catalog.of"),
        (list(TINY.catalog.graphs), "graphs must be the tuple that Catalog.of makes"),
        ((3,), r"graphs\[0\] must be"),
        (None, "graphs must be"),
    ],
)
def test_a_catalog_made_past_its_checks_is_refused(graphs: Any, message: str) -> None:
    """Incomplete, doubled, out of order, or of other things."""
    resources = World(TINY).resources
    with pytest.raises(InvalidCatalogError, match=message):
        Scheduler(catalog=Catalog(graphs), resources=resources)


@pytest.mark.parametrize("graphs", [None, 3, [None], [*TINY.catalog.graphs, "decode-b4"]])
def test_a_catalog_is_made_of_descriptors(graphs: Any) -> None:
    """The error names the place."""
    with pytest.raises(InvalidCatalogError, match=r"^graphs(\[\d+\])? must be"):
        Catalog.of(graphs)
