"""Completion, generations and rejected calls: checked whole before anything changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    Fence,
    GraphKind,
    InvalidCatalogError,
    InvalidRequestError,
    PhaseError,
    PolicyConfig,
    QueueFullError,
    RequestHandle,
    RequestSpec,
    SchedulerError,
    UnknownHandleError,
)
from tests.support.catalogs import NS_PER_MS as MS
from tests.support.catalogs import TINY, modelled
from tests.support.snapshot import freeze
from tests.support.solo import SOLO, prices_of, solo, timed
from tests.support.usage import assert_everything_is_back
from tests.support.world import Flight, World, measure_all, measured_world

# ---- completion ---------------------------------------------------------------------------


def in_flight(kind: GraphKind) -> tuple[World, Flight]:
    """Return a world with exactly one frame of the kind in flight, two lanes where possible."""
    model = modelled(
        {"initialize-b2": 0.25, "prefill-c64": 4.0, "decode-b2": 3.0, "terminal-b2": 0.25}
    )
    world = World(model, rows=2)
    for name in "ab":
        world.admit(name, 100, 900, needs_feedback=True)
    while True:
        if kind is GraphKind.TERMINAL and all(s.tokens for s in world.streams.values()):
            for name in "ab":
                world.stop(name)
        plan = world.plan()
        assert plan is not None
        flight = world.commit(plan)
        lanes = len(plan.steps)
        if plan.graph.kind is kind and lanes == (1 if kind is GraphKind.PREFILL else 2):
            return world, flight
        world.finish_frame()


Break = Callable[[list[CompletionRecord]], list[CompletionRecord]]


def _change(**fields: object) -> Break:
    def apply(records: list[CompletionRecord]) -> list[CompletionRecord]:
        return [*records[:-1], records[-1]._replace(**fields)]  # type: ignore[arg-type]

    return apply


PLAIN = (
    GraphKind.INITIALIZE,
    GraphKind.PREFILL,
    GraphKind.SCORED_PREFILL,
    GraphKind.DECODE,
    GraphKind.TERMINAL,
)
"""The kinds of this file's catalog."""
BROKEN: dict[str, tuple[Break, tuple[GraphKind, ...]]] = {
    "a lane is missing": (lambda r: r[:-1], PLAIN),
    "a lane too many": (lambda r: [*r, r[-1]], PLAIN),
    "lanes in another order": (lambda r: r[::-1], (GraphKind.INITIALIZE, GraphKind.DECODE)),
    "another generation": (_change(handle=RequestHandle(0, 99)), PLAIN),
    "prompt tokens out of nowhere": (
        _change(prompt_tokens=5),
        (GraphKind.INITIALIZE, GraphKind.PREFILL, GraphKind.DECODE, GraphKind.TERMINAL),
    ),
    "tokens where none fit": (
        _change(tokens=(1,)),
        (GraphKind.INITIALIZE, GraphKind.PREFILL, GraphKind.TERMINAL),
    ),
    "two tokens for one": (_change(tokens=(1, 2)), (GraphKind.DECODE,)),
    "no token from a running lane": (_change(tokens=()), (GraphKind.DECODE,)),
    "an end without a token": (_change(tokens=(), terminated=True), (GraphKind.DECODE,)),
    "an end in the middle of the prompt": (_change(terminated=True), (GraphKind.PREFILL,)),
}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (fault, kind)
        for fault, (_, kinds) in BROKEN.items()
        for kind in kinds
        if kind is not GraphKind.SCORED_PREFILL
    ],
)
def test_malformed_completions_change_nothing(fault: str, kind: GraphKind) -> None:
    """complete validates every lane before updating anything (Service accounting; 11.6)."""
    world, flight = in_flight(kind)
    world.advance_to(flight.finish_ns)
    good = [world._execute(step.handle, flight) for step in flight.plan.steps]
    timing = world.timing_of(world, flight)
    before = freeze(world.scheduler)
    with pytest.raises(CompletionError):
        world.scheduler.complete(flight.fence, BROKEN[fault][0](good), timing)
    assert freeze(world.scheduler) == before
    world.scheduler.complete(flight.fence, good, timing)


@pytest.mark.parametrize(
    "fields",
    [{"device_ns": (-1,)}, {"wall_ns": -5}, {"readiness_ns": -1}, {"device_ns": (5, -5)}],
)
def test_impossible_timings_change_nothing(fields: dict[str, object]) -> None:
    """No clock produces a negative interval; the frame stays in flight (decisions, 11.6)."""
    world, flight = in_flight(GraphKind.DECODE)
    world.advance_to(flight.finish_ns)
    good = [world._execute(step.handle, flight) for step in flight.plan.steps]
    timing = dataclasses.replace(world.timing_of(world, flight), **fields)  # type: ignore[arg-type]
    before = freeze(world.scheduler)
    with pytest.raises(CompletionError):
        world.scheduler.complete(flight.fence, good, timing)
    assert freeze(world.scheduler) == before


@pytest.mark.parametrize("ending", ["none", "stop", "cancel"])
@pytest.mark.parametrize("terminated", [False, True])
def test_a_queued_lane_is_silent_after_an_end_token(terminated: bool, ending: str) -> None:
    """The queued frame's lane of an ended request produces nothing, and nothing else is accepted.

    A device may report the lane as terminated or not. A token after the end contradicts it, also
    when the host stopped or cancelled the request while both frames were in flight.
    """
    world = measured_world(rows=2)
    world.admit("a", 32, 50, ends_at=4)
    world.admit("b", 32, 50)
    while any(len(stream.tokens) < 3 for stream in world.streams.values()):
        world.step()
    world.submit()
    assert len(world.queue) == 2
    {"none": lambda name: None, "stop": world.stop, "cancel": world.cancel}[ending]("a")
    world.finish_frame()
    assert world.streams["a"].produced == 4
    (flight,) = world.queue
    assert set(flight.lanes) == {"a", "b"}
    world.queue.clear()
    world.advance_to(flight.finish_ns)
    timing = timed(3.0)
    good = [world._execute(step.handle, flight) for step in flight.plan.steps]
    at = flight.lanes.index("a")
    assert good[at].tokens == ()
    good[at] = good[at]._replace(terminated=terminated)
    talking = list(good)
    talking[at] = good[at]._replace(tokens=(7,), terminated=False)
    before = freeze(world.scheduler)
    with pytest.raises(CompletionError):
        world.scheduler.complete(flight.fence, talking, timing)
    assert freeze(world.scheduler) == before
    tokens = world.scheduler.complete(flight.fence, good, timing)
    assert [world.by_handle[token.handle].name for token in tokens] == ["b"]


def test_setup_earns_no_tokens() -> None:
    """Setup never earns committed tokens (Prerequisites)."""
    world, flight = in_flight(GraphKind.INITIALIZE)
    assert world.finish_frame() == []
    for step in flight.plan.steps:
        assert world.scheduler.output_count_of(step.handle) == 0


# ---- generations and slots ----------------------------------------------------------------


def test_a_cancelled_handle_cannot_charge_its_successor() -> None:
    """A later request in the slot is not charged for the earlier one's frame (same section)."""

    def second_price(is_reused: bool) -> tuple[float, float]:
        world = World(SOLO, rows=1)
        measure_all(world, prompt=64)
        if is_reused:
            world.admit("a", 16, 900)
            while len(world.streams["a"].tokens) < 5:
                world.step()
            world.submit()
            world.cancel("a")
            while world.queue:
                world.finish_frame()
        handle = world.admit("b", 16, 900, needs_feedback=True)
        assert handle.slot == 0
        while not world.streams["b"].tokens:
            world.step()
        return prices_of(world)

    assert second_price(is_reused=True) == second_price(is_reused=False)


def test_requests_admitted_after_dispatch_are_outside_the_interval() -> None:
    """A request admitted while a frame runs does not pay for it (Service accounting)."""

    def first_value(frame_ms: float) -> float:
        world = measured_world(rows=4)
        world.admit("a", 32, needs_feedback=True)
        while len(world.streams["a"].tokens) < 3:
            world.step()
        world.submit()
        world.admit("b", 64)
        world.timing_of = lambda inner, flight: timed(frame_ms)
        world.finish_frame()
        world.plan()
        scores = world.scheduler.explain()
        return next(s for s in scores if s.following == "prefill-c64").service_value

    assert first_value(3.0) == first_value(300.0)


def test_everything_is_back_after_a_failed_frame() -> None:
    """Error paths preserve fenced ownership and give everything back (Prerequisites; 11.5)."""
    world = measured_world(rows=4)
    for name in "abc":
        world.admit(name, 32, 50)
    while any(len(stream.tokens) < 3 for stream in world.streams.values()):
        world.step()
    world.submit()
    assert len(world.queue) == 2
    head = world.queue.popleft()
    dropped = world.scheduler.fail(head.fence)
    assert set(dropped) == {world.streams[name].handle for name in head.lanes}
    assert world.scheduler.usage().pages_in_use > 0, "the queued frame still holds them"
    world.finish_frame()
    world.run_until_idle()
    assert_everything_is_back(world)


def test_a_failed_frame_teaches_nothing() -> None:
    """A frame without a valid outcome leaves estimates and prices alone (Duration estimates)."""
    world = solo()
    world.admit("next", 16, 5)
    before = world.plan()
    assert before is not None
    flight = world.commit(before)
    world.queue.clear()
    with pytest.raises(SchedulerError):
        world.scheduler.fail(Fence(flight.fence + 1))
    world.scheduler.fail(flight.fence)
    plan = world.plan()
    assert plan is not None
    assert plan.estimated_duration_ns == SOLO.duration_ns[plan.graph.name]


# ---- rejected calls -----------------------------------------------------------------------


REJECTED: dict[str, tuple[Callable[[World], object], type[SchedulerError]]] = {
    "prompt longer than the context": (
        lambda w: w.scheduler.admit(RequestSpec(prompt_tokens=500, max_output_tokens=20)),
        InvalidRequestError,
    ),
    "more pages than exist": (
        lambda w: w.scheduler.admit(RequestSpec(prompt_tokens=400, max_output_tokens=10)),
        InvalidRequestError,
    ),
    "scored without a scored graph": (
        lambda w: w.scheduler.admit(RequestSpec(prompt_tokens=4, max_output_tokens=1, scored=True)),
        InvalidRequestError,
    ),
    "policy after admission": (
        lambda w: w.scheduler.configure_policy(PolicyConfig.throughput()),
        PhaseError,
    ),
    "seeds after admission": (lambda w: w.scheduler.seed_costs({"decode-b1": 1}), PhaseError),
    "unknown handle": (lambda w: w.scheduler.cancel(RequestHandle(9, 0)), UnknownHandleError),
    "negative slot": (lambda w: w.scheduler.cancel(RequestHandle(-1, 0)), UnknownHandleError),
    "finish while waiting": (lambda w: w.scheduler.finish(w.streams["c"].handle), PhaseError),
    "unknown fence": (
        lambda w: w.scheduler.complete(Fence(77), [], timed(1.0)),
        SchedulerError,
    ),
    "fail an unknown fence": (lambda w: w.scheduler.fail(Fence(77)), SchedulerError),
    "full queue": (lambda w: w.admit("e", 16, 5), QueueFullError),
}


@pytest.mark.parametrize("call", REJECTED)
def test_a_rejected_call_changes_nothing(call: str) -> None:
    """A rejected call leaves the state as it was, bit for bit (decisions, 11.6)."""
    world = World(TINY, rows=2, pages=25, page_size=16, context=512, waiting=2)
    for name in "abcd":
        world.admit(name, 20, 5)
    world.run(2)
    before = freeze(world.scheduler)
    action, error = REJECTED[call]
    with pytest.raises(error):
        action(world)
    assert freeze(world.scheduler) == before
    world.run_until_idle()
    assert_everything_is_back(world)


@pytest.mark.parametrize(
    "seeds", [{"decode-b9": 5}, {"decode-b1": 0}, {"decode-b1": -3}, {"decode-b1": 1.5}]
)
def test_bad_seeds_change_nothing(seeds: dict[str, int]) -> None:
    """A cost cache of another package, or a nonsense duration, is refused whole (decisions, 10)."""
    world = World(TINY, rows=2)
    before = freeze(world.scheduler)
    with pytest.raises(InvalidCatalogError):
        world.scheduler.seed_costs({"prefill-c16": 4 * MS, **seeds})
    assert freeze(world.scheduler) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_tokens": 0},
        {"prompt_tokens": -1},
        {"max_output_tokens": 0},
        {"max_output_tokens": -1},
        {"max_output_tokens": -1, "scored": True},
        {"weight": 0.0},
        {"weight": float("nan")},
        {"weight": float("inf")},
        {"weight": -2.0},
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, object]) -> None:
    """A request names the field that makes it impossible (engine, bad input)."""
    values: dict[str, object] = {"prompt_tokens": 4, "max_output_tokens": 4, **fields}
    named = next(
        name for name in ("prompt_tokens", "max_output_tokens", "weight") if name in fields
    )
    with pytest.raises(InvalidRequestError, match=named):
        RequestSpec(**values)  # type: ignore[arg-type]
