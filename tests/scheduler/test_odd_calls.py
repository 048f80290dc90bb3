"""Values that no type of the interface allows are refused by name, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
    FenceError,
    InvalidCatalogError,
    InvalidPolicyError,
    SchedulerError,
    TimeError,
)
from tests.support.catalogs import TINY, descriptor
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
