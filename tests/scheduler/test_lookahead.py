"""Initialisation priced with the prefill it enables (docs/design/scheduling-utility.md 5.4)."""

from __future__ import annotations

import pytest

from helios.scheduler import GraphKind, Phase
from tests.scheduler.loop import Loop


def warmed(loop: Loop) -> Loop:
    """Measure every graph that a single 70-token request uses, and init of two and four rows."""
    for count in (1, 2, 4):
        handles = [loop.admit(prompt=70, output=1) for _ in range(count)]
        for handle in handles:
            loop.run_to(handle, Phase.RELEASED)
    return loop


def test_spare_rows_advance_other_requests_in_admission_order() -> None:
    """Equal rates prefer advancing more requests; all graphs here take the same time."""
    loop = warmed(Loop())
    handles = [loop.admit(prompt=20, output=2) for _ in range(3)]
    plan = loop.scheduler.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.INITIALIZE
    assert [step.handle for step in plan.steps] == handles
    assert plan.graph.batch_capacity == 4


def test_the_pair_is_scored_over_both_durations_and_submitted_with_the_first() -> None:
    """V/L over L = T + F; the plan carries T alone."""
    loop = warmed(Loop())
    loop.admit(prompt=64, output=2)
    plan = loop.scheduler.plan()
    assert plan is not None
    score = loop.scheduler.explain()[0]
    assert (score.graph, score.following) == ("initialize-b1", "prefill-c64")
    assert score.duration_ms == score.following_ms == 1.0
    assert plan.estimated_duration_ns == 1_000_000
    assert score.value_rate == pytest.approx(score.service_value / 2.0)


def test_a_following_graph_that_has_nothing_more_to_consume_is_not_compared() -> None:
    """Dominance holds for the second stage too (5.3)."""
    loop = warmed(Loop())
    loop.admit(prompt=16, output=2)
    loop.scheduler.plan()
    assert {score.following for score in loop.scheduler.explain()} == {"prefill-c16"}


def test_a_scored_request_is_followed_by_a_scored_graph() -> None:
    """Only scored graphs consume its prompt (5.2)."""
    loop = warmed(Loop())
    loop.admit(prompt=16, output=0, scored=True)
    loop.scheduler.plan()
    assert {score.following for score in loop.scheduler.explain()} == {"scored-prefill-c16"}
