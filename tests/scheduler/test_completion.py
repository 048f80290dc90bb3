"""Completions are checked whole before anything changes (docs/design/scheduling-runtime.md 2.4)."""

from __future__ import annotations

import dataclasses

import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    Phase,
    RequestHandle,
)
from tests.scheduler.loop import MS, Loop
from tests.support.snapshot import freeze

GOOD = ExecutionTiming(device_ns=(MS,), wall_ns=MS)


def prefilling() -> tuple[Loop, CompletionRecord]:
    """A finishing prefill in flight and the record that fits it."""
    loop = Loop()
    handle = loop.admit(prompt=10)
    loop.run_to(handle, Phase.PREFILL)
    plan = loop.submit()
    assert plan is not None
    return loop, loop.records(plan)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_tokens": 9},
        {"tokens": ()},
        {"tokens": (1, 2)},
        {"tokens": (), "terminated": True},
        {"handle": RequestHandle(0, 1)},
    ],
)
def test_a_record_that_contradicts_the_plan_changes_nothing(change: dict) -> None:
    """Handle, prompt extent, ceiling and silence are all checked (runtime 2.4, 2.5)."""
    loop, record = prefilling()
    before = freeze(loop.scheduler)
    with pytest.raises(CompletionError, match="fence 2"):
        loop.scheduler.complete(Fence(2), [record._replace(**change)], GOOD)
    assert freeze(loop.scheduler) == before
    assert len(loop.scheduler.complete(Fence(2), [record], GOOD)) == 1


@pytest.mark.parametrize("count", [0, 2])
def test_every_lane_needs_exactly_one_record(count: int) -> None:
    """A missing or an extra record is refused."""
    loop, record = prefilling()
    with pytest.raises(CompletionError, match="1 lanes"):
        loop.scheduler.complete(Fence(2), [record] * count, GOOD)


@pytest.mark.parametrize(
    ("field", "value"),
    [("wall_ns", -1), ("readiness_ns", -1), ("feedback_ns", -1), ("device_ns", (5, -1))],
)
def test_an_impossible_interval_is_refused(field: str, value: object) -> None:
    """No clock gives a negative interval; the message names the field."""
    loop, record = prefilling()
    before = freeze(loop.scheduler)
    timing = dataclasses.replace(GOOD, **{field: value})
    with pytest.raises(CompletionError, match=field):
        loop.scheduler.complete(Fence(2), [record], timing)
    assert freeze(loop.scheduler) == before


def test_a_token_after_the_end_token_is_refused() -> None:
    """A row that finished on the device stays silent (runtime 2.5)."""
    loop = Loop()
    handle = loop.admit(output=100)
    loop.run_to(handle, Phase.DECODE)
    for _ in range(4):
        loop.step()
    (one, first), (two, second) = loop.fill_window()
    loop.finish(first, loop.records(first, terminated=True), fence=one)
    with pytest.raises(CompletionError, match="after the request's end token"):
        loop.finish(second, fence=two)
    assert loop.finish(second, [CompletionRecord(handle, terminated=True)], fence=two) == []


def test_a_live_lane_may_not_be_silent() -> None:
    """A graph that advances nobody must not look like progress (field report 13)."""
    loop = Loop()
    handle = loop.admit()
    loop.run_to(handle, Phase.DECODE)
    plan = loop.submit()
    assert plan is not None
    with pytest.raises(CompletionError, match="nothing ended"):
        loop.finish(plan, [CompletionRecord(handle)])


def test_the_age_of_a_new_stream_starts_when_it_enters_decode() -> None:
    """Until something of it is published, a stream has waited since its prompt ended, not ever."""
    scores = []
    for start_ns in (0, 1000 * MS):
        loop = Loop()
        loop.scheduler.seed_costs({graph.name: MS for graph in loop.scheduler.catalog.graphs})
        loop.now_ns = start_ns
        handle = loop.admit()
        loop.run_to(handle, Phase.PREFILL)
        plan = loop.submit()
        assert plan is not None
        loop.now_ns += MS
        loop.scheduler.advance_to(loop.now_ns)
        loop.scheduler.complete(Fence(loop.fence), loop.records(plan), GOOD)
        loop.now_ns += 3 * MS
        loop.scheduler.advance_to(loop.now_ns)
        decode = loop.scheduler.plan()
        assert decode is not None
        assert decode.terms is not None
        scores.append(decode.terms.age_credit)
    assert scores[0] == scores[1] > 0.0
