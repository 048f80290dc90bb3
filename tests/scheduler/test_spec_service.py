"""The design's section on service accounting and publication, one test per clause."""

from __future__ import annotations

import pytest

from helios.scheduler import (
    ExecutionTiming,
    Fence,
    RequestHandle,
    SchedulerError,
)
from tests.scheduler.oracles.price_flow import integrate
from tests.support.catalogs import NS_PER_MS as MS
from tests.support.catalogs import modelled
from tests.support.snapshot import freeze
from tests.support.solo import POLICY, SOLO, prices_of, run_one, solo, timed
from tests.support.world import World, measure_all, measured_world


def flow(price: float, served: int, interval_ms: float, sigma_ms: float = 3.0) -> float:
    """The price after an interval, by integration; a lone decoder's reference rate is 1/sigma."""
    return integrate(
        price,
        reference=1 / sigma_ms,
        service=served,
        interval_ms=interval_ms,
        adaptation_ms=POLICY.adaptation_ms,
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


def test_decoders_without_any_price_stand_at_their_share() -> None:
    """No rate is invented: what no prefill timing priced, the decode family prices (utility 2.5).

    Two decoders whose prefill never reported a device interval: N = K = 2, sigma = 2 * 3 / 2.
    """
    model = modelled(
        {"initialize-b2": 0.25, "prefill-c64": 4.0, "decode-b2": 3.0, "terminal-b2": 0.25}
    )
    world = World(model, rows=2)
    world.timing_of = lambda inner, flight: timed(0.0 if "prefill" in flight.name else 3.0)
    for name in "ab":
        world.admit(name, 16, 900, needs_feedback=True)
    while any(not stream.tokens for stream in world.streams.values()):
        world.step()
    unpriced = world.plan()
    assert unpriced is not None
    assert unpriced.terms is not None
    while world.log[-1].name != "decode-b2" or world.queue:
        world.step()
    price = POLICY.arrival_shares * 2 / (2 / 3.0)
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    assert len(plan.steps) == 2
    expected = 2 * (POLICY.output_token_value + POLICY.token_fairness * price)
    assert plan.terms.service_value == pytest.approx(expected)
