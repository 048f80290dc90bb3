"""An interval's effect on prices (docs/design/scheduling-utility.md section 2)."""

from __future__ import annotations

import math

import pytest

from helios.scheduler import Fence, RequestHandle, RequestSpec
from helios.scheduler.accounting import Share, last_interval, settle
from helios.scheduler.requests import Request
from helios.scheduler.service import PRICE_CEILING, PRICE_FLOOR, flow_over

TAU_MS = 100.0


def request_at(slot: int, token: float | None, delivery: float | None) -> Request:
    spec = RequestSpec(prompt_tokens=4, max_output_tokens=9)
    request = Request(RequestHandle(slot, 0), spec, slot, 0)
    request.token_price, request.delivery_price = token, delivery
    return request


def test_served_and_unserved_participants_move_by_their_own_service() -> None:
    """Unselected participants receive zero service over the interval (2.3)."""
    served, idle, prompt = (request_at(slot, 10.0, 30.0) for slot in range(3))
    prompt.delivery_price = None
    shares = [Share((served, idle), 0.2, 0.05), Share((prompt,), 4.0, None)]
    settle(shares, {served: 1, prompt: 64}, 20.0, TAU_MS)
    keep = math.exp(-1 / (0.2 * TAU_MS))
    assert served.token_price == pytest.approx(10.0 * keep + 20.0 * (1 - keep))
    assert idle.token_price == pytest.approx(10.0 + 20.0 / (TAU_MS * 0.2))
    keep = math.exp(-64 / (4.0 * TAU_MS))
    assert prompt.token_price == pytest.approx(10.0 * keep + 20.0 / 64 * (1 - keep))
    assert served.delivery_price == idle.delivery_price == pytest.approx(30.0 + 20.0 / 5.0)
    assert prompt.delivery_price is None


def test_a_coordinate_without_a_measured_rate_is_left_alone() -> None:
    """While nothing applicable is measured, prices stay (2.4)."""
    request = request_at(0, 10.0, 30.0)
    settle([Share((request,), None, None)], {request: 5}, 20.0, TAU_MS)
    assert (request.token_price, request.delivery_price) == (10.0, 30.0)
    unpriced = request_at(1, None, None)
    settle([Share((unpriced,), 0.2, 0.2)], {unpriced: 1}, 20.0, TAU_MS)
    assert (unpriced.token_price, unpriced.delivery_price) == (None, None)


def test_a_publication_replaces_the_interval_once() -> None:
    """Later tokens of the burst do not count again; the update starts before the interval (2.6)."""
    request = request_at(0, 10.0, 30.0)
    shares = [Share((request,), 0.2, 0.05)]
    interval = last_interval(Fence(3), shares, {request: 30.0}, 20.0, TAU_MS)
    settle(shares, {request: 1}, 20.0, TAU_MS)
    for _ in range(3):
        interval.deliver(request)
        assert request.delivery_price == flow_over(1.0, 20.0, 0.05, TAU_MS).apply(30.0)


def test_a_frame_without_an_interval_delivers_nothing() -> None:
    """No device interval charges nothing (2.7)."""
    request = request_at(0, 10.0, None)
    shares = [Share((request,), 0.2, 0.05)]
    last_interval(Fence(3), shares, {request: None}, 0.0, TAU_MS).deliver(request)
    assert request.delivery_price is None


@pytest.mark.parametrize("served", [0, 1])
def test_absurd_intervals_keep_prices_inside_their_range(served: int) -> None:
    """Prices are positive and finite whatever the history (2.2)."""
    request = request_at(0, 1.0, 1.0)
    shares = [Share((request,), 1e-300, 1e-300)]
    for interval_ms in (1e-300, 1e300):
        settle(shares, {request: served}, interval_ms, 1e-300)
        assert request.token_price is not None
        assert request.delivery_price is not None
        assert PRICE_FLOOR <= request.token_price <= PRICE_CEILING
        assert PRICE_FLOOR <= request.delivery_price <= PRICE_CEILING
