"""Any field of what a caller hands in, replaced by any odd value: refused, or taken for what it is.

Either the call raises its typed error, says what is wrong and where, and leaves the state as it was
bit for bit; or it does what it does with the value of the right type that the odd one equals.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    FenceError,
    InvalidRequestError,
    Phase,
    ProposalSource,
    RequestHandle,
    RequestSpec,
    RowAllocation,
    ScheduledPlan,
    ScheduledStep,
    Scheduler,
    SchedulerError,
    SpeculationConfig,
    StalePlanError,
    TimeError,
    UnknownHandleError,
)
from helios.scheduler.config import DecodeMode
from helios.scheduler.plan import Seal
from tests.support.catalogs import TINY, Recipe, recipe
from tests.support.device import Executed, Scripted, execute
from tests.support.odd import ANYTHING, ODD, tried
from tests.support.snapshot import freeze
from tests.support.world import Flight, World, measure_directly

ROUNDS = recipe(
    Recipe(
        rows=4, prefills=(64,), widths=(1, 2, 4), ragged=((3, 2),), mixed=((1, 64),), device=True
    )
)
DEALT = recipe(Recipe(rows=4, prefills=(64,), widths=(1,), ragged=((3, 2),), device=True))
"""Rounds of more than one row are dealt by the device, which sends its confidence along."""
STEPS = st.integers(0, 40)
WORLDS = st.sampled_from(["ordinary", "rounds"])
tried_in_worlds = functools.partial(tried, many=500)
"""Every example loads a world, and compares all of its state."""


@functools.lru_cache(maxsize=128)
def _world(kind: str, steps: int) -> World:
    """Streams that begin, go on and end by themselves, after some frames."""
    if kind == "ordinary":
        world = World(TINY, rows=4)
    else:
        adaptive = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
        catalog = DEALT if kind == "dealt" else ROUNDS
        world = World(catalog, rows=4, speculation=adaptive)
    measure_directly(world)
    roll = random.Random(7)
    for index in range(4):
        script = Scripted((2, 0, 1, 3))
        ends_at = roll.choice([5, 12, 10_000])
        world.admit(f"s{index}", 1 + 30 * index, 14 + index, ends_at=ends_at, acceptance=script)
    for step in range(steps):
        if not world.step():
            world.admit(f"later-{step}", 20, 30)
    return world


def world_after(kind: str, steps: int) -> World:
    """Return a world with a frame in flight, and time at its end: a new one for every call."""
    world: World = pickle.loads(_saved(kind, steps))
    return world


@functools.lru_cache(maxsize=128)
def _saved(kind: str, steps: int) -> bytes:
    """What is loaded again takes a third of the time of a copy."""
    world = _world(kind, steps).fork()
    if not world.submit() and not world.queue:
        world.admit("last", 20, 30)
        world.submit()
    world.advance_to(world.queue[0].finish_ns)
    return pickle.dumps(world)


def is_refused(
    world: World,
    error: type[SchedulerError] | tuple[type[SchedulerError], ...],
    call: Callable[[], Any],
) -> str | None:
    """Return what a typed error says, of a state that is as it was; None if there is no error."""
    before = freeze(world.scheduler)
    try:
        call()
    except error as said:
        assert freeze(world.scheduler) == before
        return str(said)
    return None


# ---- completions --------------------------------------------------------------------------


def outcome(world: World) -> Executed:
    """Return what the device would report of the oldest frame."""
    flight = world.queue[0]
    streams = [world.by_handle[step.handle] for step in flight.plan.steps]
    return execute(flight, *copy.deepcopy((streams, world.device)))


def completing(world: World, done: Executed, records: Any, **other: Any) -> Callable[[], list[Any]]:
    """Return the call that completes the oldest frame with these records."""
    flight: Flight = world.queue[0]
    graph, scheduler = flight.plan.graph, world.scheduler
    timing = other.get("timing", world.timing_of(world, flight))
    peers = other.get("peers", ())
    name, sidecars = "complete", []
    if graph.proposal_depth and graph.allocation is RowAllocation.DEVICE:
        name, sidecars = "complete_packed_round", [world._sidecar(flight, done.confidence)]
        peers = peers or [done.records]
    sidecars = other.get("sidecars", sidecars)
    complete = getattr(scheduler, name)
    fence = other.get("fence", flight.fence)
    return lambda: complete(fence, records, timing, *sidecars, peers=peers)  # type: ignore[no-any-return]


RECORD_TYPES = {"prompt_tokens": int, "tokens": tuple, "terminated": bool, "offered": int}


def is_well_typed(name: str, value: Any) -> bool:
    """Tell whether a field of a record has the type that it is declared with."""
    if name == "tokens":
        return type(value) is tuple and all(type(token) is int for token in value)
    return type(value) is RECORD_TYPES.get(name)


@tried_in_worlds(
    WORLDS, STEPS, st.integers(0, 9), st.sampled_from(CompletionRecord._fields), ANYTHING
)
def test_any_field_of_a_record(kind: str, steps: int, place: int, name: str, odd: Any) -> None:
    """Another value of the right type may be legal; one that is equal to the right one, too."""
    world, twin = world_after(kind, steps), world_after(kind, steps)
    done = outcome(world)
    lane = place % len(done.records)
    records, good = list(done.records), list(done.records)
    records[lane] = records[lane]._replace(**{name: odd})
    said = is_refused(world, CompletionError, completing(world, done, records))
    if said is None:
        world = world_after(kind, steps)
        if is_well_typed(name, odd):
            good[lane] = good[lane]._replace(**{name: odd})
        else:
            assert name == "handle", "a number of another type was taken in"
            assert odd == good[lane].handle
        tokens = completing(world, done, records)()
        assert freeze(tokens) == freeze(completing(twin, done, good)())
        assert freeze(world.scheduler) == freeze(twin.scheduler)
        return
    assert f"fence {twin.queue[0].fence}" in said
    assert str(twin.queue[0].plan.steps[lane].handle) in said or "rank 1" in said
    completing(world, done, done.records)()


@tried_in_worlds(WORLDS, STEPS, st.integers(0, 9), ANYTHING)
def test_any_record_and_all_of_them(kind: str, steps: int, place: int, odd: Any) -> None:
    """Something else in the place of one record, of all, and of those of a peer."""
    world = world_after(kind, steps)
    done = outcome(world)
    records: list[Any] = list(done.records)
    records[place % len(records)] = odd
    said = is_refused(world, CompletionError, completing(world, done, records))
    assert said is not None
    assert f"fence {world.queue[0].fence}" in said
    said = is_refused(world, CompletionError, completing(world, done, odd))
    assert said is not None
    assert "lanes" in said or "records must be" in said or "is not what a lane did" in said
    said = is_refused(
        world, CompletionError, completing(world, done, done.records, peers=[records])
    )
    assert said is not None
    assert "rank 1" in said
    completing(world, done, done.records)()


TIMES = tuple(field.name for field in dataclasses.fields(ExecutionTiming))


@tried_in_worlds(WORLDS, STEPS, st.sampled_from([*TIMES, "timing"]), ANYTHING)
def test_any_field_of_a_timing(kind: str, steps: int, name: str, odd: Any) -> None:
    """Intervals are plain nonnegative integers; zero or none teaches nothing."""
    world = world_after(kind, steps)
    done = outcome(world)
    timing = world.timing_of(world, world.queue[0])
    timing = odd if name == "timing" else dataclasses.replace(timing, **{name: odd})
    said = is_refused(world, CompletionError, completing(world, done, done.records, timing=timing))
    if said is not None:
        assert ("timing" if name == "timing" else f"timing.{name}") in said
        completing(world, done, done.records)()
        return
    values = odd if name == "device_ns" else [odd]
    assert all(type(value) is int and 0 <= value <= 2**62 for value in values)


@functools.cache
def dealt_steps() -> tuple[int, ...]:
    """Steps after which a round that sends its confidence is in flight."""
    worlds = ((steps, world_after("dealt", steps)) for steps in range(30))
    return tuple(steps for steps, world in worlds if world.queue[0].plan.graph.confidence_width)


@tried_in_worlds(st.integers(0, 99), ANYTHING)
def test_any_sidecar(place: int, odd: Any) -> None:
    """In place of the confidence of a round that the device dealt."""
    world = world_after("dealt", dealt_steps()[place % len(dealt_steps())])
    flight, done = world.queue[0], outcome(world)
    call = completing(world, done, done.records, sidecars=[odd])
    said = is_refused(world, CompletionError, call)
    if said is None:
        # One of the odd values is a legal sidecar of two ranks.
        assert type(odd) is np.ndarray
        assert (odd.dtype, odd.shape) == (np.float32, (2, 4, 3))
        return
    assert f"fence {flight.fence}: confidence" in said


@tried_in_worlds(WORLDS, STEPS, ANYTHING)
def test_any_fence(kind: str, steps: int, odd: Any) -> None:
    """In every call that takes one: equal is not enough, it has to be an integer."""
    world = world_after(kind, steps)
    done, scheduler = outcome(world), world.scheduler
    fence = world.queue[0].fence
    handle = world.queue[0].plan.steps[0].handle
    ending: list[Callable[[], Any]] = [
        completing(world, done, done.records, fence=odd),
        lambda: scheduler.fail(odd),
    ]
    if type(odd) is not int or odd != fence:
        # A frame behind the oldest has a trace too.
        is_queued = type(odd) is int and odd in scheduler.usage().in_flight
        for call in ending if is_queued else [*ending, lambda: scheduler.trace_of(odd)]:
            said = is_refused(world, FenceError, call)
            assert said is not None
            assert "fence" in said
    errors = (FenceError, UnknownHandleError)
    if scheduler.phase_of(handle) is Phase.DECODE and type(odd) is not int:
        said = is_refused(world, errors, lambda: scheduler.published_output(handle, odd))
        assert said is not None
        assert "fence must be" in said


@pytest.mark.parametrize("odd", [1.0, True, np.int64(1), Phase.INITIALIZING])
def test_what_equals_a_fence_is_none(odd: Any) -> None:
    """One fence is in flight and its number is one."""
    world = World(TINY)
    world.admit("a")
    (flight,) = world.submit()
    assert flight.fence == odd
    world.advance_to(flight.finish_ns)
    done = outcome(world)
    for call in (
        completing(world, done, done.records, fence=odd),
        lambda: world.scheduler.fail(odd),
        lambda: world.scheduler.trace_of(odd),
    ):
        assert is_refused(world, FenceError, call) == (
            f"fence must be an integer of at least 0, not {odd!r}"
        )


# ---- plans --------------------------------------------------------------------------------

PLAN_FIELDS = tuple(field.name for field in dataclasses.fields(ScheduledPlan))
NEXT = Fence(1 << 40)


def planned(kind: str, steps: int) -> tuple[World, ScheduledPlan]:
    """Return a world and a plan that it would commit."""
    saved: tuple[World, ScheduledPlan] = pickle.loads(_saved_plan(kind, steps))
    return saved


@functools.lru_cache(maxsize=128)
def _saved_plan(kind: str, steps: int) -> bytes:
    world = _world(kind, steps).fork()
    while world.queue:
        world.finish_frame()
    plan = world.plan()
    if plan is None:
        world.admit("last", 20, 30)
        plan = world.plan()
    assert plan is not None
    return pickle.dumps((world, plan))


@tried_in_worlds(
    WORLDS, STEPS, st.sampled_from(PLAN_FIELDS), st.one_of(ANYTHING, st.integers(-2, 12))
)
def test_any_field_of_a_plan(kind: str, steps: int, name: str, odd: Any) -> None:
    """A plan is committed with the fields that it was made with, or not at all."""
    world, plan = planned(kind, steps)
    forged = dataclasses.replace(plan, **{name: odd})
    said = is_refused(world, StalePlanError, lambda: world.scheduler.commit(forged, NEXT))
    if said is None:
        was = getattr(plan, name)
        assert type(odd) is type(was)
        assert odd == was
        return
    assert "another scheduler, or by none" in said if name == "seal" else f"plan.{name} is" in said
    world.scheduler.commit(plan, NEXT)


@tried_in_worlds(WORLDS, STEPS, st.integers(0, 9), st.sampled_from(ScheduledStep._fields), ANYTHING)
def test_any_field_of_a_step(kind: str, steps: int, place: int, name: str, odd: Any) -> None:
    """Lanes cannot be changed, left out, doubled or added."""
    world, plan = planned(kind, steps)
    lane = place % len(plan.steps)
    step = plan.steps[lane]._replace(**{name: odd})
    changed = (*plan.steps[:lane], step, *plan.steps[lane + 1 :])
    for lanes in (changed, plan.steps[1:], (*plan.steps, plan.steps[0]), odd):
        forged = dataclasses.replace(plan, steps=lanes)
        said = is_refused(
            world, StalePlanError, lambda each=forged: world.scheduler.commit(each, NEXT)
        )
        assert said is not None
        assert "plan.steps is" in said
    world.scheduler.commit(plan, NEXT)


@tried_in_worlds(WORLDS, STEPS, ANYTHING)
def test_any_plan_and_any_fence_for_it(kind: str, steps: int, odd: Any) -> None:
    """Nothing but a plan is one; a fence is an integer above the last one."""
    world, plan = planned(kind, steps)
    said = is_refused(world, StalePlanError, lambda: world.scheduler.commit(odd, NEXT))
    assert said is not None
    assert said.startswith("plan must be a ScheduledPlan")
    said = is_refused(world, FenceError, lambda: world.scheduler.commit(plan, odd))
    last = world.scheduler._state.last_fence
    if said is None:
        assert type(odd) is int
        assert odd == world.scheduler.usage().in_flight[0]
        return
    assert "fence" in said
    assert type(odd) is not int or odd <= (last or 0) or odd > 2**62


def test_a_forged_epoch_makes_no_stale_plan_fresh() -> None:
    """The fields of a plan that was good once, with the version of now."""
    world, plan = planned("rounds", 9)
    world.scheduler.commit(plan, NEXT)
    version = world.scheduler._state.version
    forged = dataclasses.replace(plan, epoch=version)
    said = is_refused(
        world, StalePlanError, lambda: world.scheduler.commit(forged, Fence(NEXT + 1))
    )
    assert said == f"plan.epoch is {version}, it was made with {plan.epoch}"


def test_a_plan_that_somebody_put_together_is_refused() -> None:
    """Also one that says the same, and one with the seal of another scheduler's plan."""
    world, plan = planned("ordinary", 3)
    _, foreign = planned("ordinary", 3)
    fields = {name: getattr(plan, name) for name in PLAN_FIELDS}
    for mark in (None, foreign.seal, Seal(world.scheduler, ())):
        made = ScheduledPlan(**{**fields, "seal": mark})
        assert made == plan
        said = is_refused(
            world, StalePlanError, lambda each=made: world.scheduler.commit(each, NEXT)
        )
        assert said == "the plan was made by another scheduler, or by none"
    world.scheduler.commit(ScheduledPlan(**fields), NEXT)


def test_an_older_plan_is_committed_while_nothing_speaks_against_it() -> None:
    """The same decision made twice: the first of both plans is as good as the second."""
    world, plan = planned("rounds", 12)
    assert world.scheduler.plan() == plan
    world.scheduler.commit(plan, NEXT)
    assert world.scheduler.usage().in_flight == (NEXT,)


# ---- requests, handles and time -----------------------------------------------------------

SPEC_FIELDS = tuple(field.name for field in dataclasses.fields(RequestSpec))


@tried_in_worlds(st.sampled_from(SPEC_FIELDS), ANYTHING)
def test_any_field_of_a_request(name: str, odd: Any) -> None:
    """The error names the field; what is taken has its type, and can be admitted or refused."""
    world = world_after("ordinary", 5)
    fields: dict[str, Any] = {"prompt_tokens": 9, "max_output_tokens": 3, name: odd}
    made: list[RequestSpec] = []
    said = is_refused(world, InvalidRequestError, lambda: made.append(RequestSpec(**fields)))
    if said is not None:
        assert said.startswith(name)
        return
    (spec,) = made
    good = getattr(RequestSpec(prompt_tokens=9, max_output_tokens=3), name)
    is_number = name == "weight" and isinstance(odd, int | float) and type(odd) is not bool
    assert type(odd) is type(good) or is_number
    if is_refused(world, InvalidRequestError, lambda: world.scheduler.admit(spec)) is None:
        world.submit()
        world.finish_frame(publish=False)


HANDLE_CALLS: dict[str, Callable[[Scheduler, Any], Any]] = {
    "cancel": lambda scheduler, handle: scheduler.cancel(handle),
    "finish": lambda scheduler, handle: scheduler.finish(handle),
    "terminal_endpoint": lambda scheduler, handle: scheduler.terminal_endpoint(handle),
    "offer_terminal": lambda scheduler, handle: scheduler.offer_terminal(handle, b"key"),
    "supply_copies": lambda scheduler, handle: scheduler.supply_copies(handle, 1),
    "published_output": lambda scheduler, handle: scheduler.published_output(handle, Fence(1)),
    "phase_of": lambda scheduler, handle: scheduler.phase_of(handle),
    "output_count_of": lambda scheduler, handle: scheduler.output_count_of(handle),
}
PAIRS = st.one_of(
    ANYTHING,
    st.tuples(ODD, ODD),
    st.builds(RequestHandle, ODD, ODD),
    st.builds(RequestHandle, st.just(0), ODD),
)


@tried_in_worlds(st.sampled_from(sorted(HANDLE_CALLS)), PAIRS)
def test_any_handle(name: str, odd: Any) -> None:
    """A handle is a tuple of two plain integers of a request that was admitted."""
    world = world_after("ordinary", 8)
    call = HANDLE_CALLS[name]
    try:
        is_handle = type(odd) in (tuple, RequestHandle) and [*map(type, odd)] == [int, int]
        found = is_handle and odd in world.by_handle
    except TypeError:
        found = False
    if found:
        return
    said = is_refused(world, UnknownHandleError, lambda: call(world.scheduler, odd))
    assert said is not None
    assert "is no RequestHandle" in said or "no request was ever" in said or "the slot is" in said


@pytest.mark.parametrize("handle", [(0, 0.0), (False, 0), (0, False), (np.int64(0), 0), [0, 0]])
@pytest.mark.parametrize("name", sorted(HANDLE_CALLS))
def test_what_equals_a_handle_is_none(name: str, handle: Any) -> None:
    """Only a tuple of integers, which a plain one of them is, too."""
    world = World(TINY)
    assert world.admit("a") == (0, 0)
    assert world.scheduler.phase_of((0, 0)) is Phase.INITIALIZING  # type: ignore[arg-type]
    said = is_refused(
        world, UnknownHandleError, lambda: HANDLE_CALLS[name](world.scheduler, handle)
    )
    assert said == f"{handle!r} is no RequestHandle"


@tried_in_worlds(ANYTHING)
def test_any_time(odd: Any) -> None:
    """A plain integer that is no less than the last one."""
    world = world_after("ordinary", 5)
    said = is_refused(world, TimeError, lambda: world.scheduler.advance_to(odd))
    if said is None:
        assert type(odd) is int
        assert world.now_ns <= odd <= 2**62
        return
    assert said.startswith("now_ns must be") or "cannot go back" in said


@tried_in_worlds(ANYTHING)
def test_any_count_of_copies(odd: Any) -> None:
    """Before anything else is looked at of a catalog without programs that take copies."""
    world = world_after("ordinary", 8)
    handle = next(iter(world.by_handle))
    said = is_refused(
        world, InvalidRequestError, lambda: world.scheduler.supply_copies(handle, odd)
    )
    assert said is not None
    is_count = type(odd) is int and 0 <= odd <= 2**62
    assert said.startswith("copies: the catalog" if is_count else "copies must be an integer")


def seeds(value: Any) -> Sequence[dict[str, Any]]:
    """Return arguments of `seed_acceptance` with an odd value in each place."""
    good = {"survivals": [0.5], "weight": 4.0, "is_taught": False}
    return [
        {**good, "survivals": value},
        {**good, "survivals": [value]},
        {**good, "weight": value},
        {**good, "is_taught": value},
    ]


@tried_in_worlds(ANYTHING)
def test_any_seed_of_acceptance(odd: Any) -> None:
    """Numbers in range and a bool; the error names which."""
    for given_ in seeds(odd):
        world = World(ROUNDS, speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE))
        said = is_refused(
            world,
            InvalidRequestError,
            lambda each=given_, of=world: of.scheduler.seed_acceptance(
                ProposalSource.LEARNED, **each
            ),
        )
        if said is not None:
            assert said.startswith(("survivals", "weight", "is_taught"))
            continue
        survivals, weight = given_["survivals"], given_["weight"]
        assert all(isinstance(value, int | float) for value in survivals)
        assert all(type(value) is not bool and 0 <= value <= 1 for value in survivals)
        assert type(weight) is not bool
        assert 2 <= weight <= 128
        assert type(given_["is_taught"]) is bool


@pytest.mark.parametrize("kind", ["ordinary", "rounds"])
@pytest.mark.parametrize("name", ["handle", "tokens", "offered"])
def test_values_whose_comparison_raises_are_refused(kind: str, name: str) -> None:
    """A signalling NaN answers no comparison: of rank zero's records or of a peer's."""
    never = Decimal("sNaN")
    odd: Any = {"handle": (never, 0), "tokens": (never,), "offered": never}[name]
    for who in ("records", "peers"):
        world = world_after(kind, 6)
        done = outcome(world)
        records = list(done.records)
        records[0] = records[0]._replace(**{name: odd})
        call = (
            completing(world, done, records)
            if who == "records"
            else completing(world, done, done.records, peers=[records])
        )
        said = is_refused(world, CompletionError, call)
        assert said is not None
        assert f"fence {world.queue[0].fence}" in said
        completing(world, done, done.records)()


class Quarrelsome(int):
    """A number that answers no comparison at all."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("nobody compares me")

    __hash__ = int.__hash__


@tried_in_worlds(
    WORLDS, STEPS, st.integers(0, 9), st.sampled_from(CompletionRecord._fields), ANYTHING
)
def test_any_field_of_a_peers_record(
    kind: str, steps: int, place: int, name: str, odd: Any
) -> None:
    """It has to say what rank zero says, by values of the same types."""
    world = world_after(kind, steps)
    done = outcome(world)
    lane, theirs = place % len(done.records), list(done.records)
    good = getattr(theirs[lane], name)
    theirs[lane] = theirs[lane]._replace(**{name: odd})
    said = is_refused(world, CompletionError, completing(world, done, done.records, peers=[theirs]))
    if said is not None:
        assert f"rank 1, lane {lane}: {name} is" in said
        completing(world, done, done.records)()
        return
    ceiling = world_after(kind, steps).queue[0].plan.steps[lane].output_ceiling
    assert type(odd) is type(good) or (name == "handle" and type(odd) is tuple)
    assert odd == good or (name == "offered" and {odd, good} == {0, ceiling})


@pytest.mark.parametrize("kind", ["ordinary", "rounds"])
@pytest.mark.parametrize("who", ["records", "peers"])
def test_what_equals_a_handle_or_a_record_is_none(kind: str, who: str) -> None:
    """Types are looked at before anything is compared; a plain tuple is as good as a handle."""
    world = world_after(kind, 6)
    done = outcome(world)
    first = done.records[0]
    slot, generation = first.handle
    odd: list[Any] = [
        first._replace(handle=(float(slot), generation)),
        first._replace(handle=[slot, generation]),
        first._replace(handle=(Quarrelsome(slot), generation)),
        first._replace(handle=tuple.__new__(RequestHandle, (slot,))),
        first._replace(tokens=list(first.tokens)),
        first._replace(offered=Quarrelsome(first.offered)),
        tuple(first),
        tuple.__new__(CompletionRecord, first[:3]),
        tuple.__new__(CompletionRecord, (*first, 0)),
    ]

    def call(value: Any) -> Callable[[], list[Any]]:
        changed = [value, *done.records[1:]]
        if who == "records":
            return completing(world, done, changed)
        return completing(world, done, done.records, peers=[changed])

    for value in odd:
        said = is_refused(world, CompletionError, call(value))
        assert said is not None
        assert f"fence {world.queue[0].fence}, " in said
    call(first._replace(handle=tuple(first.handle)))()


@pytest.mark.parametrize("hidden", [float("nan"), 5.0, -3.0])
def test_a_masked_sidecar_is_refused(hidden: float) -> None:
    """8.6: what a mask hides would pass the checks and be learned all the same."""
    world = world_after("dealt", dealt_steps()[0])
    flight, done = world.queue[0], outcome(world)
    plain = world._sidecar(flight, done.confidence)
    masked = np.ma.masked_array(plain.copy(), mask=np.zeros(plain.shape, dtype=bool))
    masked.data[0, :, -1] = hidden
    masked.mask[0, :, -1] = True
    said = is_refused(
        world, CompletionError, completing(world, done, done.records, sidecars=[masked])
    )
    assert said is not None
    assert "must be a plain float32 array, not MaskedArray" in said
    completing(world, done, done.records)()
