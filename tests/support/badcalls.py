"""Calls that must be refused in any state: each is a typed error and leaves the state as it was.

A maker returns the errors that it may raise and the call, or None where the state offers no target.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    FenceError,
    InvalidRequestError,
    PhaseError,
    PolicyConfig,
    RequestHandle,
    RequestSpec,
    RowAllocation,
    StalePlanError,
    TimeError,
    UnknownHandleError,
)
from tests.support.world import Flight, World

Errors = type[Exception] | tuple[type[Exception], ...]
Attempt = tuple[Errors, Callable[[], Any]]
Maker = Callable[[World, random.Random], Attempt | None]

TIMING = ExecutionTiming(device_ns=(1_000_000,), wall_ns=1_000_000)
NO_ONE = RequestHandle(10_000, 0)


def good_records(flight: Flight) -> list[CompletionRecord]:
    """Records of the right form: every lane consumed its prompt and produced to its ceiling."""
    return [
        CompletionRecord(step.handle, step.prompt_tokens, (7,) * step.output_ceiling)
        for step in flight.plan.steps
    ]


def _complete(world: World, records: list[CompletionRecord], timing: Any = TIMING) -> Attempt:
    fence = world.queue[0].fence
    return CompletionError, lambda: world.scheduler.complete(fence, records, timing)


def _broken(world: World, roll: random.Random, **fields: Any) -> Attempt:
    records = good_records(world.queue[0])
    index = roll.randrange(len(records))
    records[index] = records[index]._replace(**fields)
    return _complete(world, records)


def lane_missing(world: World, roll: random.Random) -> Attempt | None:
    return _complete(world, good_records(world.queue[0])[:-1]) if world.queue else None


def lane_too_many(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue:
        return None
    records = good_records(world.queue[0])
    return _complete(world, [*records, records[-1]])


def wrong_generation(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue:
        return None
    handle = world.queue[0].plan.steps[0].handle
    records = good_records(world.queue[0])
    other = RequestHandle(handle.slot, handle.generation + 1)
    return _complete(world, [records[0]._replace(handle=other), *records[1:]])


def beyond_the_ceiling(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue:
        return None
    most = max(step.output_ceiling for step in world.queue[0].plan.steps)
    return _broken(world, roll, tokens=(7,) * (most + 1))


def wrong_prompt(world: World, roll: random.Random) -> Attempt | None:
    return _broken(world, roll, prompt_tokens=1 << 20) if world.queue else None


def offered_beyond_the_ceiling(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue:
        return None
    most = max(step.output_ceiling for step in world.queue[0].plan.steps)
    return _broken(world, roll, offered=most + 1)


def impossible_timing(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue:
        return None
    fields = roll.choice(
        [
            {"device_ns": (-1,)},
            {"device_ns": (float("nan"),)},
            {"wall_ns": -1},
            {"readiness_ns": -1},
            {"wall_ns": True},
        ]
    )
    timing = dataclasses.replace(TIMING, **fields)
    return _complete(world, good_records(world.queue[0]), timing)


def _sidecar(world: World) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A good sidecar of one rank: falling probabilities in every row."""
    depth = max(graph.proposal_depth for graph in world.model.catalog.graphs)
    rows = np.float32(0.5) ** np.arange(1, depth + 1, dtype=np.float32)
    return np.tile(rows, (1, world.resources.row_count, 1))


def _round_at_head(world: World) -> Flight | None:
    """The oldest frame, where it proposes and one of its lanes must still speak."""
    if not world.queue or not world.queue[0].plan.graph.proposal_depth:
        return None
    flight = world.queue[0]
    streams = [world.by_handle[step.handle] for step in flight.plan.steps]
    alive = [s for s in streams if s.produced < s.ends_at]
    return flight if len(alive) == len(streams) else None


def bad_confidence(world: World, roll: random.Random) -> Attempt | None:
    """No probability, in a row that ran, or a prefix likelier than a shorter one."""
    flight = _round_at_head(world)
    if flight is None or not flight.plan.graph.confidence_width:
        return None
    confidence = _sidecar(world)
    row = roll.choice(flight.plan.steps).row
    confidence[0, row, 0] = roll.choice([float("nan"), -0.25, 1.5, 0.0, float("inf")])
    return CompletionError, lambda: world.scheduler.complete_packed_round(
        flight.fence, good_records(flight), TIMING, confidence
    )


def bad_shape(world: World, roll: random.Random) -> Attempt | None:
    """A sidecar of another shape or type."""
    flight = _round_at_head(world)
    if flight is None or not flight.plan.graph.confidence_width:
        return None
    good = _sidecar(world)
    confidence = roll.choice([good[0], good[:, :-1], good[:, :, :-1], good.astype(np.float64)])
    return CompletionError, lambda: world.scheduler.complete_packed_round(
        flight.fence, good_records(flight), TIMING, confidence
    )


def unpacked_device_round(world: World, roll: random.Random) -> Attempt | None:
    """A round whose rows the device allocates brings its confidence, always."""
    flight = _round_at_head(world)
    if flight is None or flight.plan.graph.allocation is not RowAllocation.DEVICE:
        return None
    return _complete(world, good_records(flight))


def survival_of_a_program_without(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue or world.queue[0].plan.graph.reports_survival:
        return None
    flight, survival = world.queue[0], np.ones((1, 1, 1), dtype=np.float32)
    return CompletionError, lambda: world.scheduler.complete_with_survival(
        flight.fence, good_records(flight), TIMING, survival
    )


def ranks_that_disagree(world: World, roll: random.Random) -> Attempt | None:
    if not world.queue:
        return None
    records = good_records(world.queue[0])
    index = roll.randrange(len(records))
    peer = list(records)
    peer[index] = peer[index]._replace(terminated=True, tokens=(9,))
    fence = world.queue[0].fence
    return CompletionError, lambda: world.scheduler.complete(fence, records, TIMING, peers=[peer])


def copies_for_no_one(world: World, roll: random.Random) -> Attempt | None:
    errors = (UnknownHandleError, InvalidRequestError)
    return errors, lambda: world.scheduler.supply_copies(NO_ONE, 2)


def wrong_fence(world: World, roll: random.Random) -> Attempt | None:
    fence = Fence(1 << 40)
    return FenceError, lambda: world.scheduler.complete(fence, [], TIMING)


def failing_an_unknown_fence(world: World, roll: random.Random) -> Attempt | None:
    return FenceError, lambda: world.scheduler.fail(Fence(1 << 40))


def reused_fence(world: World, roll: random.Random) -> Attempt | None:
    plan = world.scheduler.plan()
    if plan is None or not world.log:
        return None
    return FenceError, lambda: world.scheduler.commit(plan, world.log[-1].fence)


def stale_plan(world: World, roll: random.Random) -> Attempt | None:
    """The plan that was committed last: every one of its lanes has changed since."""
    if not world.log:
        return None
    plan = world.log[-1].plan
    fence = Fence(1 << 40)
    return (StalePlanError, UnknownHandleError), lambda: world.scheduler.commit(plan, fence)


def backwards(world: World, roll: random.Random) -> Attempt | None:
    if world.now_ns == 0:
        return None
    return TimeError, lambda: world.scheduler.advance_to(world.now_ns - 1)


def unknown_handle(world: World, roll: random.Random) -> Attempt | None:
    call = roll.choice([world.scheduler.cancel, world.scheduler.finish, world.scheduler.phase_of])
    return UnknownHandleError, lambda: call(NO_ONE)


def unknown_publication(world: World, roll: random.Random) -> Attempt | None:
    return UnknownHandleError, lambda: world.scheduler.published_output(NO_ONE, Fence(1))


def unearned_publication(world: World, roll: random.Random) -> Attempt | None:
    if not world.streams:
        return None
    handle = world.streams[roll.choice(list(world.streams))].handle
    errors = (FenceError, PhaseError, UnknownHandleError)
    return errors, lambda: world.scheduler.published_output(handle, Fence(1 << 40))


def too_long(world: World, roll: random.Random) -> Attempt | None:
    spec = RequestSpec(prompt_tokens=1 << 30, max_output_tokens=1)
    return InvalidRequestError, lambda: world.scheduler.admit(spec)


def late_policy(world: World, roll: random.Random) -> Attempt | None:
    if not world.scheduler._state.table.admitted:
        return None
    return PhaseError, lambda: world.scheduler.configure_policy(PolicyConfig())


def late_seed(world: World, roll: random.Random) -> Attempt | None:
    if not world.scheduler._state.table.admitted:
        return None
    return PhaseError, lambda: world.scheduler.seed_costs({})


def bad_survival(world: World, roll: random.Random) -> Attempt | None:
    """No probability, at a depth that a lane's target rows have evaluated."""
    flight = _round_at_head(world)
    if flight is None or not flight.plan.graph.reports_survival:
        return None
    wide = [s for s in flight.plan.steps if s.output_ceiling > 1 and not s.prompt_tokens]
    if not wide:
        return None
    survival, scheduler = _sidecar(world), world.scheduler
    survival[0, roll.choice(wide).row, 0] = roll.choice([float("nan"), -0.25, 1.5, float("inf")])
    given = (flight.fence, good_records(flight), TIMING)
    if flight.plan.graph.confidence_width:
        return CompletionError, lambda: scheduler.complete_packed_round_with_survival(
            *given, _sidecar(world), survival
        )
    return CompletionError, lambda: scheduler.complete_with_survival(*given, survival)


def no_record(world: World, roll: random.Random) -> Attempt | None:
    """Something else in a lane's place, and nothing at all."""
    if not world.queue:
        return None
    records: Any = good_records(world.queue[0])
    records[roll.randrange(len(records))] = roll.choice([None, 7, "lane", NO_ONE])
    return _complete(world, roll.choice([records, None]))


def no_timing(world: World, roll: random.Random) -> Attempt | None:
    return _complete(world, good_records(world.queue[0]), None) if world.queue else None


def no_plan(world: World, roll: random.Random) -> Attempt | None:
    plan: Any = roll.choice([None, "decode-b4", 3])
    return StalePlanError, lambda: world.scheduler.commit(plan, Fence(1 << 40))


def no_handle(world: World, roll: random.Random) -> Attempt | None:
    call = roll.choice([world.scheduler.cancel, world.scheduler.finish, world.scheduler.phase_of])
    handle: Any = roll.choice([None, "ab", (0,), (0.5, 0)])
    return UnknownHandleError, lambda: call(handle)


BAD_CALLS: tuple[tuple[str, Maker], ...] = tuple(
    (maker.__name__, maker)
    for maker in (
        lane_missing,
        lane_too_many,
        wrong_generation,
        beyond_the_ceiling,
        wrong_prompt,
        offered_beyond_the_ceiling,
        impossible_timing,
        bad_confidence,
        bad_shape,
        unpacked_device_round,
        survival_of_a_program_without,
        ranks_that_disagree,
        copies_for_no_one,
        wrong_fence,
        failing_an_unknown_fence,
        reused_fence,
        stale_plan,
        backwards,
        unknown_handle,
        unknown_publication,
        unearned_publication,
        too_long,
        late_policy,
        late_seed,
        bad_survival,
        no_record,
        no_timing,
        no_plan,
        no_handle,
    )
)
