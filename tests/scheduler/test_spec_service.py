"""The design's sections on service accounting and completion, one test per clause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
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
from tests.scheduler.oracles.price_flow import integrate
from tests.support.catalogs import TINY, modelled
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back
from tests.support.world import Flight, World, measure_all, measured_world

MS = 1_000_000
POLICY = PolicyConfig()
TAU = POLICY.adaptation_ms
SOLO = modelled({"initialize-b1": 0.25, "prefill-c64": 4.0, "decode-b1": 3.0, "terminal-b1": 0.25})


def solo() -> World:
    """Return a world in which one request decodes alone, one frame at a time."""
    world = World(SOLO, rows=1)
    measure_all(world, prompt=64)
    world.admit("a", 16, 900, needs_feedback=True)
    while len(world.streams["a"].tokens) < 3:
        world.step()
    return world


def prices_of(world: World) -> tuple[float, float]:
    """Token and delivery price of the only decoder, recovered from its priced service."""
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    assert plan.graph.kind is GraphKind.DECODE
    token = (plan.terms.service_value - POLICY.output_token_value) / POLICY.token_fairness
    return token, plan.terms.delivery_value / POLICY.delivery_fairness


def run_one(world: World, timing: ExecutionTiming, *, publish: bool = True) -> None:
    """Run one frame with this timing."""
    honest, world.timing_of = world.timing_of, lambda inner, flight: timing
    world.submit()
    world.finish_frame(publish=publish)
    world.timing_of = honest


def flow(price: float, served: int, interval_ms: float, sigma_ms: float = 3.0) -> float:
    """The price after an interval, by integration; a lone decoder's reference rate is 1/sigma."""
    return integrate(
        price, reference=1 / sigma_ms, service=served, interval_ms=interval_ms, adaptation_ms=TAU
    )


def timed(device_ms: float, wall_ms: float = 0.0, *, readiness_ms: float = 0.0) -> ExecutionTiming:
    return ExecutionTiming(
        device_ns=(round(device_ms * MS),),
        wall_ns=round(wall_ms * MS),
        readiness_ns=round(readiness_ms * MS),
    )


# ---- intervals ----------------------------------------------------------------------------


def test_an_isolated_frame_is_charged_the_larger_interval() -> None:
    """Isolated: the larger of device and host wall interval (Service accounting)."""
    for device_ms, wall_ms in ((3.0, 20.0), (20.0, 3.0)):
        world = solo()
        token, delivery = prices_of(world)
        run_one(world, timed(device_ms, wall_ms))
        expected = (flow(token, 1, 20.0), flow(delivery, 1, 20.0))
        assert prices_of(world) == pytest.approx(expected, rel=1e-6)


def test_a_queued_frame_is_charged_its_device_interval() -> None:
    """Queued: the maximum device interval alone, whatever the wall says (Service accounting)."""
    world = World(SOLO, rows=1)
    measure_all(world, prompt=64)
    world.admit("a", 16, 900)
    while len(world.streams["a"].tokens) < 3:
        world.step()
    while world.queue:
        world.finish_frame()
    token, delivery = prices_of(world)
    world.submit()
    assert [f.queued for f in world.queue] == [False, True]
    world.timing_of = lambda inner, flight: timed(3.0, 500.0 if flight.queued else 3.0)
    world.finish_frame()
    world.finish_frame()
    for _ in range(2):
        token, delivery = flow(token, 1, 3.0), flow(delivery, 1, 3.0)
    assert prices_of(world) == pytest.approx((token, delivery), rel=1e-6)


def test_the_longest_rank_is_charged() -> None:
    """The interval is the maximum rank-local device interval (Service accounting)."""
    world = solo()
    token, delivery = prices_of(world)
    run_one(world, ExecutionTiming(device_ns=(2 * MS, 0, 9 * MS), wall_ns=0))
    expected = (flow(token, 1, 9.0), flow(delivery, 1, 9.0))
    assert prices_of(world) == pytest.approx(expected, rel=1e-6)


def test_readiness_stays_in_the_charge() -> None:
    """Service charges use raw durations; readiness corrects costs alone (Duration estimates)."""
    world = solo()
    token, delivery = prices_of(world)
    run_one(world, timed(12.0, readiness_ms=9.0))
    expected = (flow(token, 1, 12.0), flow(delivery, 1, 12.0))
    assert prices_of(world) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("device_ns", [(), (0,), (0, 0)])
def test_a_frame_without_device_interval_moves_no_price(device_ns: tuple[int, ...]) -> None:
    """Only a positive device interval contributes a service interval (Service accounting)."""
    world = solo()
    before = prices_of(world)
    run_one(world, ExecutionTiming(device_ns=device_ns, wall_ns=50 * MS))
    assert prices_of(world) == before


def test_unselected_participants_receive_zero_service() -> None:
    """Whoever waits through an interval becomes dearer by d/tau in q (Service accounting)."""
    world = World(SOLO.with_duration("decode-b1", 4.0), rows=2)
    measure_all(world, prompt=64)
    for name in "ab":
        world.admit(name, 16, 900, needs_feedback=True)
    while any(len(stream.tokens) < 4 for stream in world.streams.values()):
        world.step()

    def price(name: str) -> float:
        # The lane of a stopped world is the dearer one; compare through a world in which only
        # this stream is left.
        alone = world.fork()
        alone.observers.clear()
        for other in "ab":
            if other != name:
                alone.cancel(other)
        return prices_of(alone)[0]

    before = {name: price(name) for name in "ab"}
    world.step()
    (served,) = world.log[-1].lanes
    idle = "b" if served == "a" else "a"
    # Two decoders and one row: sigma = 2 * 4 / 1.
    assert price(idle) == pytest.approx(flow(before[idle], 0, 4.0, 8.0), rel=1e-6)
    assert price(served) == pytest.approx(flow(before[served], 1, 4.0, 8.0), rel=1e-6)


# ---- publication --------------------------------------------------------------------------


def test_completion_counts_no_delivery_until_publication() -> None:
    """Completion records zero deliveries; publication replaces that by one (Service accounting)."""
    world = solo()
    token, delivery = prices_of(world)
    run_one(world, timed(3.0), publish=False)
    assert prices_of(world)[1] == pytest.approx(flow(delivery, 0, 3.0), rel=1e-6)
    last = world.streams["a"].tokens[-1]
    world.scheduler.published_output(last.handle, last.fence)
    expected = (flow(token, 1, 3.0), flow(delivery, 1, 3.0))
    assert prices_of(world) == pytest.approx(expected, rel=1e-6)


def test_a_second_publication_of_a_burst_changes_no_price() -> None:
    """Subsequent tokens of the burst do not change the count (Service accounting)."""
    world = solo()
    once = prices_of(world)
    last = world.streams["a"].tokens[-1]
    world.scheduler.published_output(last.handle, last.fence)
    assert prices_of(world) == once


def test_the_first_burst_initialises_the_history() -> None:
    """A missing history becomes one delivery over the measured frame duration (same section)."""
    world = World(SOLO, rows=1)
    measure_all(world, prompt=64)
    world.admit("a", 16, 900, needs_feedback=True)
    world.step()
    world.submit()
    world.finish_frame(publish=False)
    assert prices_of(world)[1] == pytest.approx(3.0), "before that: the reference interval"
    last = world.streams["a"].tokens[-1]
    world.scheduler.published_output(last.handle, last.fence)
    assert prices_of(world)[1] == pytest.approx(4.0)


def test_output_age_uses_the_publication_time() -> None:
    """Age runs from actual publication, not from completion (Service accounting)."""
    world = solo()
    run_one(world, timed(3.0), publish=False)
    last = world.streams["a"].tokens[-1]
    world.advance(7.0)
    world.scheduler.published_output(last.handle, last.fence)
    world.advance(2.0)
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    assert plan.terms.age_credit == pytest.approx(POLICY.decode_age_price * 3.0 * (2.0 + 3.0))


def test_buffered_output_keeps_ageing() -> None:
    """Stop buffering postpones visible output, and with it the delivery (Service accounting)."""
    world = solo()
    _, delivery = prices_of(world)
    visible_ns = world.streams["a"].visible_ns[-1]
    world.streams["a"].buffered = True
    for _ in range(3):
        run_one(world, timed(3.0))
        delivery = flow(delivery, 0, 3.0)
    assert prices_of(world)[1] == pytest.approx(delivery, rel=1e-6)
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    age_ms = (world.now_ns - visible_ns) / MS
    assert plan.terms.age_credit == pytest.approx(POLICY.decode_age_price * 3.0 * (age_ms + 3.0))


def test_publication_reports_are_checked() -> None:
    """A report names the last completed fence and a lane that committed output (decisions, 5)."""
    world = measured_world(rows=4)
    for name in "ab":
        world.admit(name, 32)
    while any(len(stream.tokens) < 2 for stream in world.streams.values()):
        world.step()
    world.stop("b")
    while world.queue:
        world.finish_frame()
    tokens = world.streams["a"].tokens
    for handle, fence in (
        (tokens[-1].handle, Fence(tokens[-1].fence + 1)),
        (tokens[-1].handle, Fence(tokens[-1].fence - 1)),
        (RequestHandle(40, 0), tokens[-1].fence),
    ):
        before = freeze(world.scheduler)
        with pytest.raises(SchedulerError):
            world.scheduler.published_output(handle, fence)
        assert freeze(world.scheduler) == before


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
        return [*records[:-1], dataclasses.replace(records[-1], **fields)]  # type: ignore[arg-type]

    return apply


BROKEN: dict[str, tuple[Break, tuple[GraphKind, ...]]] = {
    "a lane is missing": (lambda r: r[:-1], tuple(GraphKind)),
    "a lane too many": (lambda r: [*r, r[-1]], tuple(GraphKind)),
    "lanes in another order": (lambda r: r[::-1], (GraphKind.INITIALIZE, GraphKind.DECODE)),
    "another generation": (_change(handle=RequestHandle(0, 99)), tuple(GraphKind)),
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
