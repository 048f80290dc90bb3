"""Lanes that are made when asked for compare like the lanes that they stand for."""

from __future__ import annotations

from helios.scheduler import RequestHandle, RequestSpec
from helios.scheduler.lanes import DeferredLanes, LaterLanes
from helios.scheduler.requests import Request
from helios.scheduler.utility import Lane


def lane(arrival: int) -> Lane:
    spec = RequestSpec(prompt_tokens=1, max_output_tokens=2)
    request = Request(RequestHandle(arrival, 0), spec, arrival, 0)
    return Lane(-1.0, 0, -1, arrival, request, 1.0, 0.0, 0.0, 0, 1)


def deferred(lanes: list[Lane]) -> DeferredLanes:
    requests = [each.request for each in lanes]
    return DeferredLanes(requests, [1] * len(lanes), [1.0] * len(lanes), lambda: lanes)


def test_deferred_lanes_equal_what_they_stand_for_and_nothing_else() -> None:
    """The candidates of two decisions are compared by them, bit for bit (utility 5.5)."""
    both = [lane(0), lane(1)]
    assert deferred(both) == both
    assert deferred(both) == tuple(both)
    assert deferred(both) == deferred([*both])
    assert deferred(both) != both[:1]
    assert deferred(both) != deferred(both[::-1])
    assert deferred(both) != 2


def test_later_lanes_have_their_prompt_row_first() -> None:
    """Whom a following graph is expected to serve; equal to another such cohort alone (10.1)."""
    prompt, stream = lane(2), lane(0)
    both = LaterLanes([1], prompt, lambda: [stream])
    assert both.all_lanes() == [prompt, stream]
    assert both == LaterLanes([1], prompt, lambda: [stream])
    assert both != LaterLanes([1], None, lambda: [stream])
    assert both != [prompt, stream]
