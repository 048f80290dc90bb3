"""The two-frame window and its projection (docs/design/scheduling-runtime.md section 3)."""

from __future__ import annotations

import pytest

from helios.scheduler import Fence, GraphKind, Phase, RequestHandle, StalePlanError
from tests.scheduler.loop import MS, Loop


def decoding(loop: Loop, count: int, **fields: bool) -> list[RequestHandle]:
    handles = [loop.admit(output=100, **fields) for _ in range(count)]
    for handle in handles:
        loop.run_to(handle, Phase.DECODE)
    for _ in range(8):
        loop.step()
    return handles


def test_only_decode_fills_both_places_and_positions_are_projected() -> None:
    """A queued lane stands one token further (3.1, 3.4)."""
    loop = Loop()
    decoding(loop, 1)
    (_, first), (_, second) = loop.fill_window()
    assert first.graph.kind is second.graph.kind is GraphKind.DECODE
    assert second.steps[0].position == first.steps[0].position + 1
    assert loop.scheduler.plan() is None
    trace = loop.scheduler.trace_of(Fence(loop.fence))
    assert trace.queued
    assert trace.expected_end_ns == loop.now_ns + 2 * MS


def test_a_lane_never_runs_past_its_output_limit_in_the_queue() -> None:
    """A decoder whose queued lane reaches the limit is no decoder of the view (3.4)."""
    loop = Loop()
    ending, other = loop.admit(output=12), loop.admit(output=200)
    loop.run_to(ending, Phase.DECODE)
    while loop.scheduler.output_count_of(ending) < 11:
        loop.step()
    flights = loop.fill_window()
    assert len(flights) == 2
    lanes = [step.handle for _, plan in flights for step in plan.steps]
    assert lanes.count(ending) == 1
    assert lanes.count(other) == 2


def test_feedback_lanes_drain_the_window() -> None:
    """Each step of a request with host stops waits for the one before (3.2)."""
    loop = Loop()
    decoding(loop, 2, needs_feedback=True)
    ((_, plan),) = loop.fill_window()
    assert plan.needs_empty_queue
    assert len(plan.steps) == 2


def test_an_overrun_suspends_queueing_until_the_completion() -> None:
    """Past the running frame's expected end nothing is appended (3.5)."""
    loop = Loop()
    decoding(loop, 1)
    first = loop.submit()
    assert first is not None
    loop.scheduler.advance_to(loop.now_ns + MS)
    late = loop.scheduler.plan()
    assert late is not None
    loop.scheduler.advance_to(loop.now_ns + MS + 1)
    assert loop.scheduler.plan() is None
    with pytest.raises(StalePlanError, match="completion"):
        loop.scheduler.commit(late, Fence(loop.fence + 1))
    loop.now_ns += MS + 1
    loop.finish(first)
    assert loop.scheduler.plan() is not None


def test_the_second_frame_counts_from_the_first_ones_completion() -> None:
    """A late first frame does not make the second one late (3.5)."""
    loop = Loop()
    decoding(loop, 1)
    (one, first), (two, _) = loop.fill_window()
    loop.now_ns += 7 * MS
    loop.finish(first, fence=one)
    assert loop.scheduler.trace_of(Fence(two)).expected_end_ns == loop.now_ns + MS
    assert loop.scheduler.plan() is not None


def test_a_winner_that_needs_an_empty_window_is_not_displaced() -> None:
    """Queueable work of lower value waits with it (3.3)."""
    loop = Loop()
    decoding(loop, 1)
    first = loop.submit()
    assert first is not None
    newcomer = loop.admit(prompt=60)
    assert loop.scheduler.plan() is None
    best = loop.scheduler.explain()[0]
    assert best.handles == (newcomer,)
    assert best.needs_empty_queue
    assert any(not score.needs_empty_queue for score in loop.scheduler.explain())
    loop.finish(first)
    following = loop.submit()
    assert following is not None
    assert following.graph.kind is GraphKind.INITIALIZE


def test_a_plan_saved_from_an_empty_window_may_still_be_queued() -> None:
    """Changes that do not touch its lanes do not invalidate a plan (2.2, 2.3)."""
    loop = Loop()
    handles = decoding(loop, 2)
    saved = loop.scheduler.plan()
    assert saved is not None
    assert len(saved.steps) == len(handles)
    loop.admit()
    loop.fence += 1
    loop.scheduler.commit(saved, Fence(loop.fence))
    with pytest.raises(StalePlanError, match="changed since"):
        loop.scheduler.commit(saved, Fence(loop.fence + 1))
