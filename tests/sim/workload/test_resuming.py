"""Conversations on the production engine: the next turn resumes where its endpoints say."""

from __future__ import annotations

from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.workload.named import workload


def test_a_next_turn_resumes_from_the_answer_that_its_limit_ended() -> None:
    """All but the last token of the answer has been consumed, and that much is not computed again.

    The first answers come before the copy's cost is known, so a turn may find its anchor only.
    """
    talks = workload(
        "conversations",
        rate_per_s=0.5,
        duration_s=12.0,
        turns="3",
        message="40",
        answer="20",
        system="100",
        groups=1,
        think_s=1.0,
    )
    log = simulate(
        Setup(platform=platform("synthetic", snapshot_rows=64, states=True), workload=talks)
    )
    assert {entry.reason for entry in log.requests} == {"length"}
    followers = [entry for entry in log.requests if entry.request.follows is not None]
    assert len(followers) >= 6
    resumed = 0
    for entry in followers:
        endpoints = entry.request.endpoints
        assert entry.cached_prompt_tokens in (0, *endpoints)
        resumed += entry.cached_prompt_tokens == endpoints[-2]
    assert resumed >= len(followers) // 2
