"""One line per plan: format and parse are inverses (docs/design/scheduling-runtime.md 4.2)."""

from __future__ import annotations

import json

import pytest

from helios.scheduler import Fence, FenceError, Phase, format_trace, parse_trace
from tests.scheduler.loop import Loop


def test_every_plan_of_a_life_survives_the_round_trip() -> None:
    """Initialisation with its following graph, prefill, decode (queued too) and retirement."""
    loop = Loop()
    handle = loop.admit(prompt=70, output=12)
    seen = set()
    while loop.scheduler.phase_of(handle) is not Phase.RELEASED:
        flights = loop.fill_window()
        for fence, plan in flights:
            trace = loop.scheduler.trace_of(Fence(fence))
            line = format_trace(trace)
            assert "\n" not in line
            assert parse_trace(line) == trace
            assert trace.score == plan.terms
            seen.add((plan.graph.kind.name, trace.score.following is not None, trace.queued))
        for fence, plan in flights:
            loop.finish(plan, fence=fence)
    assert seen == {
        ("INITIALIZE", True, False),
        ("PREFILL", False, False),
        ("DECODE", False, False),
        ("DECODE", False, True),
        ("TERMINAL", False, False),
    }


def test_terms_add_up_to_the_score() -> None:
    """The four values over the time, less the waiting cost, are the value rate."""
    loop = Loop()
    handle = loop.admit(prompt=70, output=12)
    ordinary = 0
    while loop.scheduler.phase_of(handle) is not Phase.RELEASED:
        plan = loop.submit()
        assert plan is not None
        for score in loop.scheduler.explain():
            total = (
                score.service_value + score.delivery_value + score.age_credit + score.terminal_value
            )
            if score.reason.value == "ordinary":
                ordinary += 1
                total = total / (score.duration_ms + score.following_ms) - score.waiting_cost
            assert score.value_rate == pytest.approx(total, rel=1e-12)
        assert plan.terms == loop.scheduler.explain()[0]
        loop.finish(plan)
    assert ordinary >= 10


def test_only_frames_in_flight_have_a_trace() -> None:
    """A finished frame's plan is gone."""
    loop = Loop()
    loop.admit()
    loop.step()
    with pytest.raises(FenceError):
        loop.scheduler.trace_of(Fence(1))


@pytest.mark.parametrize("line", ["{}", "[1]", '{"score": {"reason": "whim"}}', "{"])
def test_what_is_not_a_trace_is_a_value_error(line: str) -> None:
    """A reader gets one kind of error for any damage."""
    with pytest.raises(ValueError, match=r".+"):
        parse_trace(line)


def test_a_missing_field_is_named() -> None:
    """The message helps to find what is wrong."""
    loop = Loop()
    loop.admit()
    loop.submit()
    document = json.loads(format_trace(loop.scheduler.trace_of(Fence(1))))
    del document["score"]["age_credit"]
    with pytest.raises(ValueError, match="age_credit"):
        parse_trace(json.dumps(document))
