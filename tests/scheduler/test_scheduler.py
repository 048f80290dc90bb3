"""The facade: admission, endings, failures, resources (docs/design/scheduling-runtime.md)."""

from __future__ import annotations

import pytest

from helios.scheduler import (
    CompletionRecord,
    Fence,
    FenceError,
    GraphKind,
    InvalidRequestError,
    Phase,
    PhaseError,
    PolicyConfig,
    QueueFullError,
    RequestSpec,
    ResourceConfig,
    Scheduler,
    SelectionReason,
    StalePlanError,
    TimeError,
    UnknownHandleError,
)
from tests.scheduler.loop import Loop, small_catalog


def decoding(loop: Loop, count: int = 2) -> list:
    """Admit requests and run until all decode and every graph they need is measured."""
    handles = [loop.admit(output=100) for _ in range(count)]
    for handle in handles:
        loop.run_to(handle, Phase.DECODE)
    for _ in range(8):
        loop.step()
    return handles


def test_a_request_goes_from_admission_to_release() -> None:
    """Initialize, prefill, decode, terminal; everything it owned is back (runtime 1.2, 2.6)."""
    loop = Loop()
    handle = loop.admit(prompt=70, output=3)
    assert loop.scheduler.usage().pages_in_use == 5
    kinds, tokens = [], []
    while loop.scheduler.usage().resident:
        plan = loop.submit()
        assert plan is not None
        kinds.append(plan.graph.kind)
        tokens += loop.finish(plan)
    kind = GraphKind
    assert kinds == [kind.INITIALIZE, *[kind.PREFILL] * 2, *[kind.DECODE] * 2, kind.TERMINAL]
    assert [(token.output_index, token.is_last) for token in tokens] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert loop.scheduler.phase_of(handle) is Phase.RELEASED
    assert loop.scheduler.output_count_of(handle) == 3
    usage = loop.scheduler.usage()
    assert (usage.pages_in_use, usage.rows_in_use, usage.in_flight) == (0, 0, ())
    counts = loop.scheduler.executions()
    assert sum(entry.count for entry in counts.values()) == len(kinds)
    assert counts[SelectionReason.DISCOVERY].duration_ns > 0


def test_a_scored_prompt_without_output_goes_straight_to_retirement() -> None:
    """Only scored graphs consume it, and it never decodes (utility 5.2)."""
    loop = Loop()
    handle = loop.admit(prompt=20, output=0, scored=True)
    kinds = []
    while loop.scheduler.usage().resident:
        plan = loop.submit()
        assert plan is not None
        kinds.append(plan.graph.kind)
        assert loop.finish(plan) == []
    assert set(kinds) == {GraphKind.INITIALIZE, GraphKind.SCORED_PREFILL, GraphKind.TERMINAL}
    assert loop.scheduler.phase_of(handle) is Phase.RELEASED


def test_scored_is_refused_without_a_scored_graph() -> None:
    """What is admitted is always covered by the catalog (field report 10)."""
    scheduler = Scheduler(
        catalog=small_catalog(scored=False),
        resources=ResourceConfig(
            row_count=1, page_count=4, page_size_tokens=16, context_length_tokens=64
        ),
    )
    with pytest.raises(InvalidRequestError, match="scored"):
        scheduler.admit(RequestSpec(prompt_tokens=4, max_output_tokens=0, scored=True))
    assert scheduler.usage().waiting == 0


def test_the_waiting_line_is_bounded_and_in_order() -> None:
    """One more than the limit is refused; the head is never overtaken (runtime 1.3, 1.4)."""
    loop = Loop(rows=2, pages=4, waiting=2)
    first = loop.admit(prompt=30, output=18)
    large = loop.admit(prompt=40, output=8)
    small = loop.admit(prompt=4, output=8)
    phases = [loop.scheduler.phase_of(handle) for handle in (first, large, small)]
    assert phases == [Phase.INITIALIZING, Phase.WAITING, Phase.WAITING]
    with pytest.raises(QueueFullError, match="2"):
        loop.admit(prompt=4, output=8)
    loop.scheduler.cancel(first)
    assert loop.scheduler.phase_of(large) is Phase.INITIALIZING
    assert loop.scheduler.phase_of(small) is Phase.INITIALIZING


def test_a_cancelled_waiting_request_never_runs() -> None:
    """Dropped before its first dispatch (field report 15)."""
    loop = Loop(rows=1)
    running, waiting = loop.admit(), loop.admit()
    loop.scheduler.cancel(waiting)
    assert loop.scheduler.phase_of(waiting) is Phase.RELEASED
    served = set()
    while loop.scheduler.usage().resident:
        plan = loop.submit()
        assert plan is not None
        served |= {step.handle for step in plan.steps}
        loop.finish(plan)
    assert served == {running}


def test_a_cancelled_request_owns_its_pages_through_its_last_frame() -> None:
    """Cancel works while frames are in flight, twice if need be (runtime 1.6, field report 17)."""
    loop = Loop(rows=2)
    first, second = decoding(loop)
    flights = loop.fill_window()
    assert len(flights) == 2
    loop.scheduler.cancel(first)
    loop.scheduler.cancel(first)
    assert loop.scheduler.phase_of(first) is Phase.DRAINING
    newcomer = loop.admit()
    assert loop.scheduler.phase_of(newcomer) is Phase.WAITING
    for index, (fence, plan) in enumerate(flights):
        tokens = loop.finish(plan, fence=fence)
        assert first not in {token.handle for token in tokens}
        ended = all(
            first != step.handle for _, later in flights[index + 1 :] for step in later.steps
        )
        assert (loop.scheduler.phase_of(newcomer) is Phase.INITIALIZING) == ended
    with pytest.raises(UnknownHandleError):
        loop.scheduler.cancel(first)
    assert loop.scheduler.phase_of(second) is Phase.DECODE


def test_a_late_cancel_does_not_touch_the_next_user_of_the_slot() -> None:
    """Handles are checked by generation (field report 16)."""
    loop = Loop(rows=1)
    old = loop.admit()
    loop.scheduler.cancel(old)
    new = loop.admit()
    assert new.slot == old.slot
    for call in (loop.scheduler.cancel, loop.scheduler.finish, loop.scheduler.phase_of):
        with pytest.raises(UnknownHandleError):
            call(old)
    assert loop.scheduler.phase_of(new) is Phase.INITIALIZING


def test_a_host_stop_drops_what_is_still_in_flight() -> None:
    """Tokens of submitted lanes are accepted and dropped (runtime 1.5, field report 19)."""
    loop = Loop()
    first, _ = decoding(loop)
    flights = loop.fill_window()
    count = loop.scheduler.output_count_of(first)
    loop.scheduler.finish(first)
    loop.scheduler.finish(first)
    for fence, plan in flights:
        assert first not in {token.handle for token in loop.finish(plan, fence=fence)}
    assert loop.scheduler.output_count_of(first) == count
    loop.run_to(first, Phase.RELEASED)


def test_an_end_token_silences_the_queued_lane() -> None:
    """The second frame's lane completes with zero tokens (runtime 2.5)."""
    loop = Loop()
    (handle,) = decoding(loop, 1)
    (one, first), (two, second) = loop.fill_window()
    (token,) = loop.finish(first, loop.records(first, terminated=True), fence=one)
    assert token.is_last
    assert loop.finish(second, [CompletionRecord(handle)], fence=two) == []
    loop.run_to(handle, Phase.RELEASED)


def test_a_failed_frame_drops_its_requests_and_teaches_nothing() -> None:
    """Nothing is learned; resources come back at the last frame (runtime 2.7)."""
    loop = Loop(rows=3)
    first, second = decoding(loop)
    bystander = loop.admit()
    counts = loop.scheduler.executions()
    plan = loop.submit()
    assert plan is not None
    hit = tuple(step.handle for step in plan.steps)
    with pytest.raises(FenceError):
        loop.scheduler.fail(Fence(loop.fence + 1))
    assert loop.scheduler.fail(Fence(loop.fence)) == hit
    assert loop.scheduler.executions() == counts
    assert all(loop.scheduler.phase_of(handle) is Phase.RELEASED for handle in hit)
    for handle in {first, second, bystander} - set(hit):
        loop.run_to(handle, Phase.RELEASED)
    assert loop.scheduler.usage().pages_in_use == 0


def test_only_the_head_can_fail_and_its_lanes_drain_through_the_second_frame() -> None:
    """Frames complete in order, failed ones too."""
    loop = Loop()
    decoding(loop)
    (one, first), (two, second) = loop.fill_window()
    dropped = loop.scheduler.fail(Fence(one))
    held = {step.handle for step in second.steps}
    for handle in dropped:
        expected = Phase.DRAINING if handle in held else Phase.RELEASED
        assert loop.scheduler.phase_of(handle) is expected
    loop.finish(second, fence=two)
    assert all(loop.scheduler.phase_of(handle) is Phase.RELEASED for handle in dropped)
    assert first.steps


def test_policy_and_seeds_come_before_the_first_admission() -> None:
    """Preferences are frozen while requests exist."""
    loop = Loop()
    loop.scheduler.configure_policy(PolicyConfig.throughput())
    loop.scheduler.seed_costs({"decode-b1": 5})
    assert loop.scheduler.policy == PolicyConfig.throughput()
    loop.admit()
    with pytest.raises(PhaseError, match="configure_policy"):
        loop.scheduler.configure_policy(PolicyConfig())
    with pytest.raises(PhaseError, match="seed_costs"):
        loop.scheduler.seed_costs({"decode-b1": 6})


def test_fences_and_time_only_rise() -> None:
    """Both are refused before anything changes (runtime 2.2, 2.9)."""
    loop = Loop()
    loop.admit()
    loop.scheduler.advance_to(5)
    with pytest.raises(TimeError, match=r"5 ns.*4 ns"):
        loop.scheduler.advance_to(4)
    plan = loop.scheduler.plan()
    assert plan is not None
    loop.scheduler.commit(plan, Fence(7))
    loop.fence = 7
    loop.now_ns = 5
    loop.finish(plan)
    following = loop.scheduler.plan()
    assert following is not None
    for fence in (7, 6):
        with pytest.raises(FenceError):
            loop.scheduler.commit(following, Fence(fence))
    with pytest.raises(StalePlanError):
        loop.scheduler.commit(plan, Fence(8))
    with pytest.raises(FenceError, match="nothing is"):
        loop.finish(following)


def test_a_plan_of_another_scheduler_is_refused() -> None:
    """Equal handles are not ownership."""
    ours, theirs = Loop(), Loop()
    ours.admit()
    theirs.admit()
    plan = theirs.scheduler.plan()
    assert plan is not None
    with pytest.raises(StalePlanError):
        ours.scheduler.commit(plan, Fence(1))
    assert ours.scheduler.usage().in_flight == ()
