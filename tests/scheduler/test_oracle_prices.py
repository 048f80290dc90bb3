"""The price flow against a numerical integration of its equation, and its relations."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.scheduler import Fence, RequestHandle, RequestSpec
from helios.scheduler.accounting import Share, last_interval
from helios.scheduler.requests import Request
from helios.scheduler.service import (
    arrival_price,
    flow_over,
    machine_rate,
    reference_interval_ms,
)
from tests.scheduler.oracles.price_flow import integrate

prices = st.floats(1e-3, 1e4)
rates = st.floats(1e-3, 1e3)
intervals = st.floats(0.01, 500.0)
adaptations = st.floats(1.0, 10_000.0)


@pytest.mark.parametrize(
    ("price", "reference", "service", "interval_ms", "adaptation_ms"),
    [
        case
        for case in itertools.product(
            (0.02, 1.0, 300.0), (0.01, 0.5, 20.0), (0, 1, 64), (0.5, 5.0, 90.0), (10.0, 100.0)
        )
        if case[2] / (case[3] * case[1]) * case[3] / case[4] < 50
    ],
)
def test_solution_agrees_with_integration(
    price: float, reference: float, service: int, interval_ms: float, adaptation_ms: float
) -> None:
    """dq/dt = (1 - h q)/tau has the solution that the scheduler uses (decisions, section 1)."""
    exact = flow_over(service, interval_ms, reference, adaptation_ms).apply(price)
    stepped = integrate(
        price,
        reference=reference,
        service=service,
        interval_ms=interval_ms,
        adaptation_ms=adaptation_ms,
    )
    assert exact == pytest.approx(stepped, rel=1e-6)


@given(prices, rates, intervals, adaptations)
def test_an_unserved_price_grows_linearly(p: float, r: float, d: float, tau: float) -> None:
    """q grows by d/tau without service, so p grows by d/(tau r) (decisions, section 1)."""
    assert flow_over(0, d, r, tau).apply(p) == pytest.approx(p + d / tau / r, rel=1e-12)


@given(prices, rates, intervals, adaptations, st.integers(1, 4096))
def test_service_moves_a_price_towards_its_fixed_point(
    p: float, r: float, d: float, tau: float, served: int
) -> None:
    """The fixed point is p = d/s whatever r is; no step passes it (decisions, section 1)."""
    target = d / served
    after = flow_over(served, d, r, tau).apply(p)
    low, high = sorted((p, target))
    assert low * (1 - 1e-12) <= after <= high * (1 + 1e-12)
    assert flow_over(served, d, r, tau).apply(target) == pytest.approx(target, rel=1e-12)


@given(prices, rates, intervals, adaptations, st.integers(0, 64))
def test_two_halves_are_one_interval(p: float, r: float, d: float, tau: float, s: int) -> None:
    """The flow is exact, so halving an interval of uniform service changes nothing."""
    half = flow_over(s / 2, d / 2, r, tau)
    twice = half.apply(half.apply(p))
    assert twice == pytest.approx(flow_over(s, d, r, tau).apply(p), rel=1e-9)


@given(prices, rates, intervals, adaptations, st.integers(0, 64), st.floats(1e-3, 1e3))
def test_time_scaling(p: float, r: float, d: float, tau: float, s: int, k: float) -> None:
    """Slower time by k: prices in ms per unit scale with it (decisions, section 11, item 1)."""
    scaled = flow_over(s, d * k, r / k, tau * k).apply(p * k)
    assert scaled == pytest.approx(flow_over(s, d, r, tau).apply(p) * k, rel=1e-9)


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.floats(1e-9, 1e9), rates, st.floats(1e-6, 1e9)),
        max_size=40,
    )
)
def test_prices_stay_positive_and_finite(history: list[tuple[int, float, float, float]]) -> None:
    """Whatever the history, a price is positive and finite (decisions, section 11, item 1)."""
    price = 1.0
    for served, interval_ms, rate, adaptation_ms in history:
        price = flow_over(served, interval_ms, rate, adaptation_ms).apply(price)
        assert price > 0
        assert math.isfinite(price)


def delivered_price(
    before: float | None, rate: float | None, interval_ms: float, adaptation_ms: float
) -> float | None:
    """The delivery price of a stream after a completed interval and its publication."""
    spec = RequestSpec(prompt_tokens=1, max_output_tokens=1)
    request = Request(RequestHandle(0, 0), spec, 0, 0)
    request.delivery_price = before
    shares = [Share((request,), rate, rate)]
    last_interval(Fence(1), shares, {request: before}, interval_ms, adaptation_ms).deliver(request)
    return request.delivery_price


def test_a_first_burst_makes_a_history_of_one_delivery_per_frame() -> None:
    """The first published burst initialises the delivery history (Service accounting)."""
    assert delivered_price(None, 0.3, 7.5, 100.0) == 7.5
    assert delivered_price(None, None, 7.5, 100.0) == 7.5


@given(prices, rates, intervals)
def test_a_published_burst_is_one_delivery(p: float, r: float, d: float) -> None:
    """A burst counts once whatever its tokens (Useful service and selection)."""
    stepped = integrate(p, reference=r, service=1, interval_ms=d, adaptation_ms=100.0)
    if 1 / r / 100.0 < 50:
        assert delivered_price(p, r, d, 100.0) == pytest.approx(stepped, rel=1e-5)


def test_arrivals_start_at_their_share() -> None:
    """q0 = arrival_shares * N, as if served 1/N of the machine (decisions, section 1)."""
    assert arrival_price(1.0, 4, 0.5) == 8.0
    assert arrival_price(2.5, 4, 0.5) == 20.0


def test_reference_interval_is_the_fastest_batch_feasible_one() -> None:
    """sigma = K T / min(B, k) for the graph with the least T / min(B, k) (Useful service)."""
    shapes = [(1, 3.0), (4, 3.5), (16, 5.0)]
    for streams in range(1, 20):
        least = min(range(3), key=lambda i: shapes[i][1] / min(shapes[i][0], streams))
        batch, ms = shapes[least]
        expected = streams * ms / min(batch, streams)
        assert reference_interval_ms(streams, streams, shapes) == pytest.approx(expected)
    assert reference_interval_ms(3, 3, []) is None


def test_prefill_reference_counts_tokens_that_can_be_consumed() -> None:
    """The largest (tokens really consumed)/T; the standing divides it (decisions, section 1)."""
    shapes = [(64, 4.0), (512, 14.0), (4096, 90.0)]
    assert machine_rate(64, shapes) == 16.0
    assert machine_rate(300, shapes) == pytest.approx(300 / 14.0)
    assert machine_rate(10_000, shapes) == pytest.approx(4096 / 90.0)
    assert machine_rate(64, []) is None
