"""Checkpoints end to end: kept at cuts, resumed from, given up (runtime section 5)."""

from __future__ import annotations

from typing import Any

import pytest

from helios.scheduler import (
    Endpoint,
    GraphKind,
    ImageSpan,
    InvalidRequestError,
    Phase,
    PhaseError,
    PolicyConfig,
    UnknownHandleError,
)
from helios.scheduler.requests import Request
from tests.support.catalogs import ModelledCatalog, modelled
from tests.support.checkers import Checker
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.world import World, measure_directly

DURATIONS = {
    "initialize-b1": 0.25,
    "initialize-b4": 0.3,
    "prefill-c16": 4.0,
    "prefill-c64": 9.0,
    "scored-prefill-c64": 11.0,
    "decode-b1": 3.0,
    "decode-b4": 3.5,
    "terminal-b1": 0.25,
    "terminal-b4": 0.3,
    "vision-c64": 8.0,
    "snapshot-b1": 0.25,
    "snapshot-b4": 0.3,
    "restore-b1": 0.2,
    "restore-b4": 0.25,
}
MODEL = modelled(DURATIONS)


def keeping(
    *, snapshot_rows: int = 4, pages: int = 64, model: ModelledCatalog = MODEL, **options: Any
) -> World:
    """A world that keeps states and knows every cost."""
    more = {"snapshot_rows": snapshot_rows, "feature_rows": 64, **options.pop("more", {})}
    world = World(model, rows=4, pages=pages, page_size=16, more=more, **options)
    measure_directly(world)
    Checker.watch(world)
    return world


def paged(**options: Any) -> World:
    """A world whose states are in pages alone."""
    return keeping(snapshot_rows=0, more={"page_prefixes": True}, **options)


def chat(*messages: int, end: int = 0) -> tuple[Endpoint, ...]:
    """Endpoints of one conversation; equal positions have equal keys."""
    found = [Endpoint(tokens, b"m%d" % tokens) for tokens in messages]
    if end:
        found.append(Endpoint(end, b"e%d" % end, ends_message=False))
    return tuple(found)


def request_of(world: World, name: str) -> Request:
    return world.scheduler._state.table.find(world.streams[name].handle)


def kinds_of(world: World, name: str) -> list[str]:
    """The programs that held a request before it decoded."""
    return [
        flight.name
        for flight in world.log
        if name in flight.lanes and flight.plan.graph.kind is not GraphKind.DECODE
    ]


def prompt_of(world: World, name: str) -> list[tuple[int, int]]:
    """Position and tokens of every prompt lane of a request."""
    return [
        (step.position, step.prompt_tokens)
        for flight in world.log
        for step in flight.plan.steps
        if step.prompt_tokens and world.by_handle[step.handle].name == name
    ]


def finish_all(world: World) -> None:
    while world.step():
        assert_usage_adds_up(world)


# Keeping and resuming ---------------------------------------------------------------------------


def test_a_second_turn_resumes_from_the_anchor_and_replays_the_rest() -> None:
    """Prefill stops at the anchor, it is copied, the next prompt starts behind it (5.3 to 5.7)."""
    world = keeping()
    world.admit("one", 90, 3, endpoints=chat(50))
    finish_all(world)
    ends = [position + tokens for position, tokens in prompt_of(world, "one")]
    assert 50 in ends
    assert ends[-1] == 90
    assert world.scheduler.checkpoint_stats().captures == 1
    world.admit("two", 130, 3, endpoints=chat(50, 110))
    finish_all(world)
    assert kinds_of(world, "two")[0].startswith("restore")
    assert prompt_of(world, "two")[0][0] == 50
    assert sum(tokens for _, tokens in prompt_of(world, "two")) == 80
    stats = world.scheduler.checkpoint_stats()
    assert (stats.hits, stats.restored_tokens, stats.published) == (1, 50, 2)
    assert_everything_is_back(world)


def test_restored_history_earns_no_service() -> None:
    """Only tokens that were computed count as service and as value (5.4)."""
    world = keeping()
    world.admit("one", 90, 3, endpoints=chat(80))
    finish_all(world)
    world.admit("two", 90, 3, endpoints=chat(80))
    plan = world.plan()
    assert plan is not None
    assert plan.graph.kind is GraphKind.RESTORE
    assert plan.steps[0].position == 80
    assert plan.steps[0].snapshot_row >= 0
    terms = plan.terms
    assert terms is not None
    policy, price = world.policy, world.scheduler._state.standing()
    request = request_of(world, "two")
    token = policy.token_fairness * (price.prompt_price(request, None, policy) or 0.0)
    assert terms.service_value == pytest.approx(
        10 * (1.0 + token) + policy.output_token_value + token
    )
    finish_all(world)
    assert_everything_is_back(world)


def test_the_copy_is_published_before_an_immediate_continuation_is_seated() -> None:
    """One row: whoever waits for it is seated in the call that publishes, and resumes (5.9)."""
    world = World(
        MODEL, rows=1, pages=64, page_size=16, more={"snapshot_rows": 2, "page_prefixes": True}
    )
    measure_directly(world)
    Checker.watch(world)
    world.admit("one", 40, 1, endpoints=chat(32))
    world.admit("two", 60, 1, endpoints=chat(32))
    while request_of(world, "two").phase is Phase.WAITING:
        assert world.step()
    assert request_of(world, "two").prompt_done == 32
    finish_all(world)
    assert_everything_is_back(world)


def test_an_armed_state_cannot_be_found_before_its_copy_is_done() -> None:
    """A request that is seated while the copy is in flight starts afresh (5.9)."""
    world = keeping()
    world.admit("one", 90, 3, endpoints=chat(50))
    while not (world.queue and world.queue[0].plan.graph.kind is GraphKind.SNAPSHOT):
        if not world.submit():
            world.finish_frame()
    world.admit("two", 90, 3, endpoints=chat(50))
    assert request_of(world, "two").prompt_done == 0
    world.finish_frame()
    world.admit("three", 90, 3, endpoints=chat(50))
    assert request_of(world, "three").prompt_done == 50
    finish_all(world)
    assert world.scheduler.checkpoint_stats().published == 1
    assert_everything_is_back(world)


def test_pages_are_shared_by_count_and_the_partial_page_is_the_row_s() -> None:
    """50 tokens fill three pages of 16; the fourth is copied with the row (5.1)."""
    world = keeping(pages=20)
    world.admit("one", 90, 3, endpoints=chat(50))
    finish_all(world)
    assert world.scheduler.usage().pages_kept == 3
    names = ["two", "three", "four"]
    for name in names:
        world.admit(name, 60, 4, endpoints=chat(50))
    requests = [request_of(world, name) for name in names]
    assert len({request.pages[:3] for request in requests}) == 1
    assert len({page for request in requests for page in request.pages}) == 3 + 3
    finish_all(world)
    assert_everything_is_back(world)


def test_a_missing_state_throws_away_no_more_than_it_must() -> None:
    """Field report 12: without the deepest state the next one is resumed (5.3)."""
    policy = PolicyConfig(checkpoint_extra_work_fraction=1.0)
    world = keeping(policy=policy)
    world.admit("one", 120, 1, endpoints=chat(32, 64, 96))
    finish_all(world)
    assert world.scheduler.checkpoint_stats().published == 3
    store = world.scheduler._state.store
    deepest = store.deepest(chat(32, 64, 96), 120)
    assert deepest is not None
    store.drop(deepest)
    world.admit("two", 120, 1, endpoints=chat(32, 64, 96))
    assert request_of(world, "two").prompt_done == 64
    finish_all(world)
    assert_everything_is_back(world)


def test_a_scored_prompt_resumes_nothing() -> None:
    """Every one of its tokens needs its log-probability (5.3)."""
    world = keeping()
    world.admit("one", 64, 1, endpoints=chat(50))
    finish_all(world)
    world.admit("two", 64, 1, scored=True, endpoints=chat(50))
    assert request_of(world, "two").prompt_done == 0
    finish_all(world)
    assert_everything_is_back(world)


# Page granularity -------------------------------------------------------------------------------


def test_pages_alone_need_neither_cut_nor_copy() -> None:
    """Endpoints are published as prefill passes them; resumption is at the last full page (5.9)."""
    world = paged()
    world.admit("one", 90, 2, endpoints=chat(10, 40, end=90))
    finish_all(world)
    assert [n for _, n in prompt_of(world, "one")] == [64, 26]
    assert all(f.plan.graph.kind is not GraphKind.SNAPSHOT for f in world.log)
    assert world.scheduler.checkpoint_stats().published == 2, "the first fills no page"
    world.admit("two", 90, 2, endpoints=chat(10, 40, end=90))
    assert request_of(world, "two").prompt_done == 80
    finish_all(world)
    assert kinds_of(world, "two")[0].startswith("initialize")
    assert prompt_of(world, "two")[0] == (80, 10)
    assert_everything_is_back(world)


def test_a_page_that_ends_in_an_image_does_not_count() -> None:
    """An image is consumed by one chunk, so resumption falls back to a page before it (5.3)."""
    world = paged()
    image = (ImageSpan(20, 20, 8),)
    for name in ("one", "two"):
        world.admit(name, 60, 1, images=image, endpoints=chat(41, 55))
        assert request_of(world, name).prompt_done == (48 if name == "two" else 0)
        finish_all(world)
    world.admit("three", 60, 1, images=image, endpoints=chat(41))
    assert request_of(world, "three").prompt_done == 16
    finish_all(world)
    assert_everything_is_back(world)


# What is kept -----------------------------------------------------------------------------------


def test_unknown_costs_disable_extras_but_not_the_anchor() -> None:
    """Before the first snapshot ran its cost is unknown: the anchor alone is kept (5.5, 5.6)."""
    known = tuple(name for name in DURATIONS if not name.startswith("snapshot"))
    world = World(MODEL, rows=4, pages=64, page_size=16, seeded=known, more={"snapshot_rows": 4})
    Checker.watch(world)
    world.admit("one", 200, 1, endpoints=chat(64, 128, 192))
    finish_all(world)
    ends = [position + tokens for position, tokens in prompt_of(world, "one")]
    assert 192 in ends
    assert world.scheduler.checkpoint_stats().captures == 1
    assert_everything_is_back(world)


def test_extras_are_kept_within_the_allowance() -> None:
    """Copies of 0.25 ms against 5 % of the prefill work; cuts on chunk borders split nothing."""
    for fraction, captures in ((0.0, 1), (0.01, 2), (0.05, 4)):
        world = keeping(policy=PolicyConfig(checkpoint_extra_work_fraction=fraction))
        world.admit("one", 256, 1, endpoints=chat(64, 128, 192))
        finish_all(world)
        expected = min(captures, 3)
        assert world.scheduler.checkpoint_stats().captures == expected, fraction
        assert_everything_is_back(world)


def test_an_extra_whose_cost_expires_after_dispatch_is_skipped_although_it_was_split() -> None:
    """The split stands, the copy does not happen (5.7)."""
    policy = PolicyConfig(checkpoint_extra_work_fraction=1.0)
    world = keeping(policy=policy)
    world.admit("one", 120, 1, endpoints=chat(30, 100))
    assert request_of(world, "one").stops == (30, 100)
    while True:
        world.submit()
        step = world.queue[0].plan.steps[0]
        if step.prompt_tokens and step.position + step.prompt_tokens == 30:
            break
        world.finish_frame()
    late_ms = policy.estimate_ttl_ns / 1e6 + 1.0
    world.finish_frame(late_ms=late_ms)
    assert request_of(world, "one").phase is Phase.PREFILL
    assert request_of(world, "one").prompt_done == 30
    assert world.scheduler.checkpoint_stats().skipped == 1
    finish_all(world)
    assert world.scheduler.checkpoint_stats().captures == 1, "the anchor is kept all the same"
    assert_everything_is_back(world)


def test_an_extra_is_cut_only_with_a_destination() -> None:
    """The only row is guarded for the anchor: the earlier message is not even cut (5.7, 5.12)."""
    policy = PolicyConfig(checkpoint_extra_work_fraction=1.0)
    world = keeping(snapshot_rows=1, policy=policy)
    world.admit("one", 120, 1, endpoints=chat(30, 100))
    assert request_of(world, "one").stops == (100,)
    finish_all(world)
    assert world.scheduler._state.store.is_known(b"m100")
    assert not world.scheduler._state.store.is_known(b"m30")
    assert_everything_is_back(world)


def test_a_window_s_private_row_revokes_the_guard_of_an_anchor() -> None:
    """Execution cannot do without it; the anchor is only best effort (5.12)."""
    world = keeping(snapshot_rows=1)
    world.admit("one", 120, 1, endpoints=chat(100))
    assert request_of(world, "one").keeping.guard.held
    two_windows = (ImageSpan(10, 8, 40), ImageSpan(30, 8, 40))
    world.admit("pictures", 60, 1, images=two_windows)
    guard = request_of(world, "one").keeping.guard
    assert not guard.held
    assert request_of(world, "pictures").snapshot_row == 0
    finish_all(world)
    assert_everything_is_back(world)


def test_window_snapshots_publish_nothing_and_need_no_endpoints() -> None:
    """A private row is given back with the request (5.9)."""
    world = keeping(snapshot_rows=1)
    world.admit("pictures", 60, 1, images=(ImageSpan(10, 8, 40), ImageSpan(30, 8, 40)))
    finish_all(world)
    assert "snapshot" in "".join(kinds_of(world, "pictures"))
    assert world.scheduler.checkpoint_stats().captures == 0
    assert_everything_is_back(world)


def test_images_and_checkpoints_together() -> None:
    """A cut before the second window's images, and the window's own snapshot, both happen."""
    world = keeping(snapshot_rows=3)
    images = (ImageSpan(10, 8, 40), ImageSpan(30, 8, 40))
    world.admit("one", 60, 1, images=images, endpoints=chat(30))
    finish_all(world)
    assert world.scheduler._state.store.is_known(b"m30")
    world.admit("two", 60, 1, images=images, endpoints=chat(30))
    assert request_of(world, "two").prompt_done == 30
    finish_all(world)
    assert kinds_of(world, "two")[:2] == ["restore-b1", "vision-c64"]
    assert_everything_is_back(world)


# Cancellation and failure -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_an_armed_row_is_owned_through_completion_and_then_free(how: str) -> None:
    """Cancelled with its copy in flight: the row is nobody else's until the frame is done (5.9)."""
    world = keeping(snapshot_rows=1)
    world.admit("one", 90, 3, endpoints=chat(50))
    while not (world.queue and world.queue[0].plan.graph.kind is GraphKind.SNAPSHOT):
        if not world.submit():
            world.finish_frame()
    if how == "cancel":
        world.cancel("one")
        assert world.scheduler.usage().snapshot_rows_in_use == 1
        assert request_of(world, "one").phase is Phase.DRAINING
        world.finish_frame()
    else:
        flight = world.queue.popleft()
        world.scheduler.fail(flight.fence)
    assert world.scheduler.usage().snapshot_rows_in_use == 0
    assert world.scheduler.checkpoint_stats().published == 0
    assert_everything_is_back(world)


def test_a_source_is_pinned_until_it_has_been_copied_out() -> None:
    """Nobody takes the row that a RESTORE is about to read, cancelled or not (5.11)."""
    world = keeping(snapshot_rows=1)
    world.admit("one", 90, 1, endpoints=chat(50))
    finish_all(world)
    world.admit("two", 90, 1, endpoints=chat(50))
    store = world.scheduler._state.store
    assert store.obtain_mandatory() is None
    assert world.scheduler.drop_checkpoints() == 0
    world.submit()
    world.cancel("two")
    assert store.obtain_mandatory() is None
    world.finish_frame()
    assert world.scheduler.drop_checkpoints() == 1
    assert_everything_is_back(world)


def test_a_request_that_dies_in_line_leaves_the_checkpoints_alone() -> None:
    """A demand is all that it was."""
    world = keeping(pages=8)
    world.admit("one", 90, 1, endpoints=chat(50))
    world.admit("two", 90, 1, endpoints=chat(50))
    world.cancel("two")
    finish_all(world)
    assert world.scheduler.checkpoint_stats().hits == 0
    assert_everything_is_back(world)


# The facade -------------------------------------------------------------------------------------


def test_offers_are_refused_before_the_end_and_change_nothing() -> None:
    """Only an ended request has a terminal state."""
    world = keeping()
    handle = world.admit("one", 20, 8, endpoints=chat(10))
    before = freeze(world.scheduler)
    with pytest.raises(PhaseError):
        world.scheduler.offer_terminal(handle, b"x")
    with pytest.raises(PhaseError):
        world.scheduler.terminal_endpoint(handle)
    with pytest.raises(InvalidRequestError, match="key"):
        world.scheduler.offer_terminal(handle, b"")
    assert freeze(world.scheduler) == before
    finish_all(world)
    with pytest.raises(UnknownHandleError):
        world.scheduler.offer_terminal(handle, b"x")


def test_a_terminal_state_in_pages_is_kept_for_the_next_turn() -> None:
    """Its endpoint is prompt and output without the last, unfed token (5.8)."""
    world = paged()
    handle = world.admit("one", 20, 30, endpoints=chat(16))
    while world.scheduler.phase_of(handle) is not Phase.TERMINAL:
        world.step()
    assert world.scheduler.terminal_endpoint(handle) == 49
    assert world.scheduler.offer_terminal(handle, b"m49")
    assert not world.scheduler.offer_terminal(handle, b"m49"), "it is known"
    finish_all(world)
    world.admit("two", 70, 1, endpoints=chat(16, 49))
    assert request_of(world, "two").prompt_done == 48
    finish_all(world)
    assert_everything_is_back(world)


def test_a_state_beyond_the_committed_output_is_not_kept() -> None:
    """The host stopped it while a further lane was in flight: the device went on (5.8)."""
    world = paged()
    handle = world.admit("one", 20, 30, endpoints=chat(16))
    while not (len(world.queue) == 2 and world.streams["one"].tokens):
        if not world.submit():
            world.finish_frame()
    world.stop("one")
    assert not world.scheduler.offer_terminal(handle, b"x")
    while world.queue:
        world.finish_frame()
    assert not world.scheduler.offer_terminal(handle, b"x")
    finish_all(world)
    assert_everything_is_back(world)


# Behind the prompt ------------------------------------------------------------------------------


def test_the_prompt_s_end_is_the_anchor_of_a_first_turn() -> None:
    """Without a message the end substitutes: it is copied before the first decode step (5.5)."""
    world = keeping()
    world.admit("one", 40, 4, endpoints=chat(end=40))
    world.admit("other", 20, 30)
    finish_all(world)
    kinds = kinds_of(world, "one")
    assert kinds[-2].startswith("snapshot")
    assert kinds[-1].startswith("terminal")
    assert world.scheduler._state.store.is_known(b"e40")
    assert [token.output_index for token in world.streams["one"].tokens] == [0, 1, 2, 3]
    world.admit("two", 60, 2, endpoints=(Endpoint(40, b"e40"),))
    assert request_of(world, "two").prompt_done == 40
    finish_all(world)
    assert_everything_is_back(world)


def test_completed_decode_earns_a_terminal_capture() -> None:
    """The copy of 0.25 ms needs 5 ms of the request's share at 5 %; less earns none (5.8)."""
    for outputs, is_kept in ((2, False), (3, True), (8, True)):
        world = keeping()
        handle = world.admit("one", 20, outputs, endpoints=chat(10))
        while world.scheduler.phase_of(handle) is not Phase.TERMINAL:
            world.step()
        kept = request_of(world, "one").keeping
        assert kept.credit_ms == pytest.approx(0.05 * 3.0 * (outputs - 1))
        assert world.scheduler.offer_terminal(handle, b"end") is is_kept
        finish_all(world)
        assert world.scheduler._state.store.is_known(b"end") is is_kept
        last = kinds_of(world, "one")[-1]
        assert last.startswith("snapshot" if is_kept else "terminal")
        assert_everything_is_back(world)


def test_lanes_of_one_frame_divide_what_it_earns() -> None:
    """Four streams together earn what one alone would: the same fraction of the time (5.8)."""
    world = keeping()
    names = ["a", "b", "c", "d"]
    for name in names:
        world.admit(name, 10, 40, endpoints=chat(5))
    while min(len(world.streams[name].tokens) for name in names) < 30:
        world.step()
    decode_ns = sum(
        world.model.duration_ns[f.name] for f in world.log if f.name.startswith("decode")
    ) - sum(world.model.duration_ns[f.name] for f in world.queue)
    earned_ms = sum(request_of(world, name).keeping.credit_ms for name in names)
    assert earned_ms == pytest.approx(0.05 * decode_ns / 1e6)
    finish_all(world)
    assert_everything_is_back(world)


def test_a_terminal_capture_needs_a_known_cost_and_a_row() -> None:
    """An expired cost, or rows that rank above it, refuse the offer (5.8, 5.10)."""
    for spoil in ("cost", "row"):
        world = keeping(snapshot_rows=1)
        handle = world.admit("one", 20, 30, endpoints=chat(10))
        while world.scheduler.phase_of(handle) is not Phase.TERMINAL:
            world.step()
        if spoil == "cost":
            world.advance(31_000.0)
        else:
            store = world.scheduler._state.store
            kept = store.deepest(chat(10), 20)
            assert kept is not None
            store.pin(kept)
        assert not world.scheduler.offer_terminal(handle, b"end")
        if spoil == "row":
            store.unpin(kept)
        finish_all(world)
        assert kinds_of(world, "one")[-1].startswith("terminal")
        assert_everything_is_back(world)


def test_a_terminal_capture_never_costs_its_own_anchor() -> None:
    """One row: the anchor of the same conversation ranks above the response's end (5.10)."""
    world = keeping(snapshot_rows=1)
    handle = world.admit("one", 20, 30, endpoints=chat(10))
    while world.scheduler.phase_of(handle) is not Phase.TERMINAL:
        world.step()
    assert not world.scheduler.offer_terminal(handle, b"end")
    assert world.scheduler._state.store.is_known(b"m10")
    finish_all(world)
    assert_everything_is_back(world)


def test_an_ended_row_may_ride_along_in_another_s_snapshot() -> None:
    """It is retired by it; its state is kept only if that was armed."""
    world = keeping(
        model=MODEL.with_duration("terminal-b1", 50.0).with_duration("terminal-b4", 60.0)
    )
    world.admit("ends", 10, 1)
    while request_of(world, "ends").phase is not Phase.TERMINAL:
        world.step()
    world.admit("one", 40, 4, endpoints=chat(20))
    finish_all(world)
    assert kinds_of(world, "ends")[-1].startswith("snapshot")
    assert world.scheduler.checkpoint_stats().captures == 1
    assert_everything_is_back(world)


@pytest.mark.parametrize("how", ["cancel", "fail", "stop"])
def test_a_stream_whose_state_is_being_copied_may_end(how: str) -> None:
    """The armed row is owned through the frame, and is free or published afterwards (5.9)."""
    world = keeping(snapshot_rows=1)
    world.admit("one", 40, 30, endpoints=chat(end=40))
    while not (world.queue and world.queue[0].plan.graph.kind is GraphKind.SNAPSHOT):
        if not world.submit():
            world.finish_frame()
    assert request_of(world, "one").phase is Phase.DECODE
    if how == "fail":
        world.scheduler.fail(world.queue.popleft().fence)
    else:
        getattr(world, how)("one")
        assert world.scheduler.usage().snapshot_rows_in_use == 1
        world.finish_frame()
    kept = world.scheduler.checkpoint_stats().published
    assert kept == (1 if how == "stop" else 0)
    finish_all(world)
    assert_everything_is_back(world)


@pytest.mark.parametrize("talks", [1, 4])
def test_no_count_and_no_share_limits_captures(talks: int) -> None:
    """Rows and the request's own allowance are all that counts, however many requests there are.

    One conversation of 24 places passes a share of its rows, which would be six, and small counts.
    """
    policy = PolicyConfig(checkpoint_extra_work_fraction=1.0)
    places = tuple(range(16, 16 * 25, 16)) if talks == 1 else tuple(range(16, 129, 16))
    rows = len(places) * talks
    world = keeping(snapshot_rows=rows, policy=policy, pages=128)
    for talk in range(talks):
        endpoints = tuple(Endpoint(tokens, b"%d/%d" % (talk, tokens)) for tokens in places)
        world.admit(f"r{talk}", places[-1] + 12, 1, endpoints=endpoints)
    finish_all(world)
    assert world.scheduler.checkpoint_stats().captures == rows
    assert_everything_is_back(world)


def test_one_request_takes_every_row() -> None:
    """Eight state rows, four request rows: a share by concurrency would be two (C7)."""
    policy = PolicyConfig(checkpoint_extra_work_fraction=1.0)
    world = keeping(snapshot_rows=8, policy=policy, pages=128)
    world.admit("other", 30, 1)
    endpoints = tuple(Endpoint(tokens, b"%d" % tokens) for tokens in range(16, 129, 16))
    world.admit("one", 140, 1, endpoints=endpoints)
    finish_all(world)
    stats = world.scheduler.checkpoint_stats()
    assert (stats.captures, stats.published) == (8, 8)
    assert_everything_is_back(world)


def test_only_endpoints_that_were_named_are_kept() -> None:
    """A request without endpoints keeps nothing, and a key is found under its own count alone."""
    world = keeping()
    world.admit("one", 90, 3)
    finish_all(world)
    world.admit("two", 90, 3, endpoints=chat(50))
    finish_all(world)
    assert [c.tokens for c in world.scheduler._state.store._by_key.values()] == [50]
    world.admit("three", 90, 3, endpoints=(Endpoint(51, b"m50"),))
    assert request_of(world, "three").prompt_done == 0
    finish_all(world)
    assert_everything_is_back(world)
