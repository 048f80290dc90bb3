"""The design's section on planning and the execution queue, one test per clause."""

from __future__ import annotations

import dataclasses

import pytest

from helios.scheduler import (
    CompletionRecord,
    Fence,
    FenceError,
    GraphKind,
    Phase,
    PhaseError,
    SchedulerError,
    StalePlanError,
    TimeError,
)
from tests.support.catalogs import TINY, gpu_like, modelled
from tests.support.decisions import decoding
from tests.support.device import token_of
from tests.support.snapshot import freeze
from tests.support.world import World, measure_directly, measured_world

DRAINING_KINDS = {
    GraphKind.INITIALIZE,
    GraphKind.PREFILL,
    GraphKind.SCORED_PREFILL,
    GraphKind.TERMINAL,
}


def streaming_world(names: str = "ab", **fields: object) -> World:
    """Return an idle window over measured programs with the named requests decoding."""
    world = measured_world(rows=4)
    for name in names:
        world.admit(name, 32, **fields)
    while any(len(world.streams[name].tokens) < 3 for name in names):
        assert world.step()
    while world.queue:
        world.finish_frame()
    return world


def test_plan_is_pure() -> None:
    """Planning twice gives the same plan and changes nothing (decisions, section 8)."""
    world = streaming_world()
    world.scheduler.advance_to(world.now_ns)
    before = freeze(world.scheduler)
    first = world.scheduler.plan()
    second = world.scheduler.plan()
    assert first == second
    assert freeze(world.scheduler) == before


def test_a_plan_is_immutable() -> None:
    """A plan freezes shape, lanes, epochs, duration and score (Planning and the queue)."""
    world = streaming_world()
    plan = world.plan()
    assert plan is not None
    for frozen, field in ((plan, "steps"), (plan, "value_rate"), (plan.steps[0], "position")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frozen, field, None)


def test_explain_ranks_the_candidates_best_first() -> None:
    """explain returns the candidates of the last decision, the plan's own first (decisions, 8)."""
    world = streaming_world("abc")
    world.admit("p", 5000)
    while world.queue:
        world.finish_frame()
    plan = world.plan()
    assert plan is not None
    ranked = world.scheduler.explain()
    assert ranked[0] == plan.terms
    assert len(ranked) > 3
    rates = [score.value_rate for score in ranked]
    assert rates == sorted(rates, reverse=True)
    world.commit(plan)
    world.finish_frame()
    assert world.scheduler.explain() == ranked, "a later completion changed what was decided"


@pytest.mark.parametrize("asked", [False, True])
def test_a_decision_is_explained_as_it_was_taken(asked: bool) -> None:
    """Costs that were measured since do not enter: without asking in time the plan's is left."""
    world = World(TINY, rows=2)
    world.admit("a", 40)
    plan = world.plan()
    assert plan is not None
    assert plan.terms is not None
    world.commit(plan)
    in_time = world.scheduler.explain() if asked else (plan.terms,)
    world.finish_frame()
    assert world.scheduler.explain() == in_time
    assert {score.duration_ms for score in in_time} == {0.0}


def test_two_decode_frames_fit_and_a_third_does_not() -> None:
    """The transport has two frame slots (Planning and the execution queue)."""
    world = streaming_world()
    world.submit()
    assert [flight.plan.graph.kind for flight in world.queue] == [GraphKind.DECODE] * 2
    before = freeze(world.scheduler)
    assert world.scheduler.plan() is None
    assert freeze(world.scheduler) == before


def test_a_saved_plan_cannot_take_a_third_slot() -> None:
    """Commit checks the window again: a saved plan may be old (same section)."""
    world = streaming_world("abcd")
    saved = world.plan()
    assert saved is not None
    world.submit()
    before = freeze(world.scheduler)
    with pytest.raises(SchedulerError):
        world.scheduler.commit(saved, Fence(10_000))
    assert freeze(world.scheduler) == before


def test_only_decode_shares_the_window() -> None:
    """Prefill, scored prefill and state operations drain the window (same section)."""
    world = measured_world(rows=4, prefills=(64, 512))
    for index in range(12):
        world.admit(f"r{index}", 40 + 90 * (index % 5), 6 + index % 7, ends_at=5 + index % 4)
    world.run_until_idle()
    assert any(flight.queued for flight in world.log)
    for earlier, flight in zip(world.log, world.log[1:], strict=False):
        if flight.queued:
            assert earlier.plan.graph.kind is GraphKind.DECODE
            assert flight.plan.graph.kind is GraphKind.DECODE
        if flight.plan.graph.kind in DRAINING_KINDS:
            assert flight.plan.needs_empty_queue


def test_a_lane_that_needs_feedback_never_runs_ahead() -> None:
    """Grammar and host stops require completion feedback (same section)."""
    world = streaming_world("ab", needs_feedback=True)
    for _ in range(30):
        world.submit()
        assert len(world.queue) == 1 or not (set(world.queue[0].lanes) & set(world.queue[1].lanes))
        world.finish_frame()


def test_a_finishing_prefill_exposes_its_decoder_only_after_completion() -> None:
    """Nothing is planned for a request whose last chunk is in flight (same section)."""
    world = measured_world(rows=4)
    handle = world.admit("a", 32)
    world.step()
    world.submit()
    assert world.queue[0].name == "prefill-c64"
    assert world.scheduler.phase_of(handle) is Phase.PREFILL
    assert world.plan() is None
    world.finish_frame()
    assert world.scheduler.phase_of(handle) is Phase.DECODE
    plan = world.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.DECODE


def test_the_last_permitted_output_is_not_exceeded_by_a_queued_frame() -> None:
    """Output limits account for what queued lanes may produce (same section)."""
    world = measured_world(rows=4)
    world.admit("a", 32, 4)
    world.run_until_idle()
    assert [token.token for token in world.streams["a"].tokens] == [
        token_of("a", index) for index in range(4)
    ]
    assert [token.is_last for token in world.streams["a"].tokens] == [False] * 3 + [True]


def test_lower_value_work_does_not_displace_a_winner_that_must_wait() -> None:
    """When the winner needs an empty window, nothing is submitted before (same section)."""
    world = streaming_world("ab")
    first = world.plan()
    assert first is not None
    world.commit(first)
    assert world.plan() is not None, "another decode frame could be queued now"
    world.admit("urgent", 64, weight=1e4)
    assert world.plan() is None, "the newcomer's initialisation wins and waits"
    world.finish_frame()
    plan = world.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.INITIALIZE


def test_an_overrun_suspends_queueing_until_feedback() -> None:
    """An overrun suspends further queueing; later decisions may use the graph (same section)."""
    world = streaming_world("ab")
    first = world.plan()
    assert first is not None
    flight = world.commit(first)
    expected_ns = world.now_ns + first.estimated_duration_ns
    world.advance_to(expected_ns - 1)
    assert world.plan() is not None
    world.advance_to(expected_ns + 1)
    assert world.plan() is None
    assert flight is world.queue[0]
    world.finish_frame()
    again = world.plan()
    assert again is not None
    assert again.graph_index == first.graph_index


def test_no_millisecond_cap_on_a_frame() -> None:
    """Neither one frame nor the sum of both is capped in ms (same section)."""
    world = streaming_world("ab")
    slow = world.model.scaled(1000)
    slow_world = World(slow, rows=4)
    for name in "ab":
        slow_world.admit(name, 32, 400)
    slow_world.run(60)
    assert any(flight.queued for flight in slow_world.log)


def test_queueing_projects_service_and_age() -> None:
    """A queued delivery moves the projected age: others come next (same section)."""
    world = measured_world(rows=4, policy=None)
    for name in "abc":
        world.admit(name, 32)
    while any(len(world.streams[name].tokens) < 3 for name in "abc"):
        world.step()
    counts = {name: len(world.streams[name].tokens) for name in "abc"}
    world.run(60)
    grown = [len(world.streams[name].tokens) - counts[name] for name in "abc"]
    assert max(grown) - min(grown) <= 2


def test_an_appended_frame_is_planned_from_the_expected_end() -> None:
    """Selection uses ages at the queue's expected end; nobody was served meanwhile (same section).

    Two streams and one row: sigma = 2 * 3 / 1, and the stream that waits is served next.
    """
    model = modelled(
        {"initialize-b2": 0.25, "prefill-c64": 4.0, "decode-b1": 3.0, "terminal-b2": 0.25}
    )
    world = World(model, rows=2)
    measure_directly(world)
    decoding(world, "a", "b")
    first = world.plan()
    assert first is not None
    flight = world.commit(first)
    (waiting,) = {"a", "b"} - set(flight.lanes)
    second = world.plan()
    assert second is not None
    assert second.terms is not None
    assert [step.handle for step in second.steps] == [world.streams[waiting].handle]
    begin_ns = world.now_ns + first.estimated_duration_ns
    age_ms = (begin_ns - world.streams[waiting].visible_ns[-1]) / 1e6
    price = world.policy.decode_age_price
    assert age_ms >= 3.0, "the running frame is in its age already"
    assert second.terms.age_credit == pytest.approx(price * 6.0 * (age_ms + 3.0))


def test_a_queued_expected_delivery_starts_the_age_again() -> None:
    """A projected age counts from the expected delivery and not from the last one (same section).

    Until it is published the visible age stays as it was.
    """
    world = streaming_world("a")
    for expected_age_ms in (None, 0.0):
        plan = world.plan()
        assert plan is not None
        assert plan.terms is not None
        age_ms = (world.now_ns - world.streams["a"].visible_ns[-1]) / 1e6
        if expected_age_ms is not None:
            age_ms = expected_age_ms
        price = world.policy.decode_age_price
        assert plan.terms.age_credit == pytest.approx(price * 3.0 * (age_ms + 3.0))
        world.commit(plan)
        world.advance(1.5)
    request = world.scheduler._state.table.find(world.streams["a"].handle)
    assert request.visible_ns == world.streams["a"].visible_ns[-1]


def test_projection_commits_nothing() -> None:
    """Projection never publishes tokens, moves history or resets a visible age (same section)."""
    world = streaming_world("ab")
    requests = [world.scheduler._state.table.find(world.streams[name].handle) for name in "ab"]

    def observed() -> list[tuple[object, ...]]:
        return [
            (r.account.token_price, r.delivery_price, r.visible_ns, r.output_count)
            for r in requests
        ]

    before = observed()
    world.submit()
    assert len(world.queue) == 2
    world.plan()
    world.scheduler.explain()
    assert observed() == before, "queued service was observed before its completion"
    produced = {name: len(world.streams[name].tokens) for name in "ab"}
    tokens = world.finish_frame()
    assert all(
        token.output_index == produced[world.by_handle[token.handle].name] for token in tokens
    )
    assert all(new != old for new, old in zip(observed(), before, strict=True))


def test_positions_are_projected_for_queued_lanes() -> None:
    """Continuation positions account for the queued frame (same section)."""
    world = streaming_world("a")
    world.submit()
    first, second = world.queue
    assert second.plan.steps[0].position == first.plan.steps[0].position + 1


def test_reserved_pages_cover_every_ceiling() -> None:
    """Page reservations cover the full execution ceiling of queued work (same section)."""
    world = World(gpu_like(rows=4, prefills=(64,)), rows=4, pages=64, page_size=16)
    for index in range(9):
        world.admit(f"r{index}", 30 + 17 * index, 20)
    while world.step():
        for flight in world.queue:
            for step in flight.plan.steps:
                reach = step.position + max(step.prompt_tokens, step.output_ceiling)
                assert len(step.pages) * 16 >= reach


def test_commit_refuses_a_plan_of_a_cancelled_request() -> None:
    """Commit checks ownership; cancellation stops selection immediately (same section)."""
    world = streaming_world("ab")
    plan = world.plan()
    assert plan is not None
    world.cancel("a")
    before = freeze(world.scheduler)
    with pytest.raises(StalePlanError):
        world.scheduler.commit(plan, Fence(10_000))
    assert freeze(world.scheduler) == before
    fresh = world.plan()
    assert fresh is not None
    assert [step.handle for step in fresh.steps] == [world.streams["b"].handle]


def test_commit_refuses_the_same_plan_twice() -> None:
    """A plan freezes request epochs; committing it moves them (same section)."""
    world = streaming_world("ab")
    plan = world.plan()
    assert plan is not None
    world.commit(plan)
    before = freeze(world.scheduler)
    with pytest.raises(SchedulerError):
        world.scheduler.commit(plan, Fence(10_000))
    assert freeze(world.scheduler) == before


def test_unrelated_events_do_not_invalidate_a_plan() -> None:
    """Accounting changes do not invalidate unrelated immutable plans (Service accounting)."""
    world = streaming_world("a")
    world.submit()
    world.finish_frame(publish=False)
    plan = world.plan()
    while plan is None:
        world.finish_frame(publish=False)
        plan = world.plan()
    last = world.streams["a"].tokens[-1]
    world.scheduler.published_output(last.handle, last.fence)
    world.admit("later", 32)
    assert world.commit(plan).plan is plan


@pytest.mark.parametrize("fence", [0, -1, "used"])
def test_fences_strictly_increase(fence: int | str) -> None:
    """A fence is never reused and never goes back (decisions, section 5)."""
    world = streaming_world("ab")
    plan = world.plan()
    assert plan is not None
    used = world.log[-1].fence
    before = freeze(world.scheduler)
    with pytest.raises(FenceError):
        world.scheduler.commit(plan, used if fence == "used" else Fence(int(fence)))
    assert freeze(world.scheduler) == before


def test_completions_come_in_submission_order() -> None:
    """Frames complete in the order of their fences (same section)."""
    world = streaming_world("ab")
    world.submit()
    second = world.queue[1]
    records = [CompletionRecord(step.handle, tokens=(1,)) for step in second.plan.steps]
    before = freeze(world.scheduler)
    with pytest.raises(FenceError):
        world.scheduler.complete(second.fence, records, world.timing_of(world, second))
    assert freeze(world.scheduler) == before


def test_time_never_runs_backwards() -> None:
    """advance_to refuses an earlier moment and keeps the later one (style 4.5)."""
    world = streaming_world("a")
    before = freeze(world.scheduler)
    with pytest.raises(TimeError):
        world.scheduler.advance_to(world.now_ns - 1)
    assert freeze(world.scheduler) == before


def test_cancelled_resources_stay_owned_through_the_last_fence() -> None:
    """Pages and rows remain owned through the last submitted fence (same section).

    Of four rows two are taken: the third newcomer waits for the one that drains.
    """
    world = streaming_world("ab")
    handle = world.streams["a"].handle
    world.submit()
    assert all("a" in flight.lanes for flight in world.queue)
    (held,) = [step for step in world.queue[0].plan.steps if step.handle == handle]
    world.cancel("a")
    world.finish_frame()
    for name in "cde":
        world.admit(name, 32)
    assert world.scheduler.phase_of(handle) is Phase.DRAINING
    assert world.scheduler.usage().waiting == 1
    others = [r for r in world.scheduler._state.table.resident if r.handle != handle]
    assert len(others) == 3
    assert held.row not in {request.row for request in others}
    assert not set(held.pages) & {page for request in others for page in request.pages}
    world.finish_frame()
    assert world.scheduler.phase_of(handle) is Phase.RELEASED
    last = world.scheduler._state.table.find(world.streams["e"].handle)
    assert last.row == held.row
    assert set(held.pages) & set(last.pages)


def test_a_cancelled_frame_yields_no_token_of_the_cancelled() -> None:
    """Cancellation suppresses publication of what was in flight (Funded timing refresh)."""
    world = streaming_world("ab")
    world.submit()
    world.cancel("a")
    for _ in range(2):
        names = {world.by_handle[token.handle].name for token in world.finish_frame()}
        assert names == {"b"}


def test_publication_is_refused_after_the_next_completion() -> None:
    """A publication must be reported before another completion (Service accounting)."""
    world = streaming_world("ab")
    world.submit()
    (token, *_) = world.finish_frame(publish=False)
    world.finish_frame(publish=False)
    before = freeze(world.scheduler)
    with pytest.raises((FenceError, PhaseError)):
        world.scheduler.published_output(token.handle, token.fence)
    assert freeze(world.scheduler) == before
