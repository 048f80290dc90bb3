"""Image requests end to end: windows, drains, endings in every stage (runtime section 7)."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from helios.scheduler import (
    CompletionError,
    Endpoint,
    GraphKind,
    ImageSpan,
    InvalidRequestError,
    Phase,
    PhaseError,
)
from tests.support.catalogs import STATES, modelled
from tests.support.checkers import Checker
from tests.support.image_device import ImageDevice
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back
from tests.support.workload import phase_of
from tests.support.world import Flight, World

STAGES = (GraphKind.INITIALIZE, GraphKind.VISION, GraphKind.SNAPSHOT, GraphKind.RESTORE)
THREE = (ImageSpan(10, 8, 40), ImageSpan(30, 8, 24), ImageSpan(50, 20, 64))
"""Two images fill a window of 64 feature rows, the third one another."""


def image_world(*, rows: int = 4, snapshot_rows: int = 1, **options: Any) -> World:
    """A world whose programs all have stale costs, with storage for windows of 64 rows."""
    more = {"feature_rows": 64, "snapshot_rows": snapshot_rows, **options.pop("more", {})}
    known = {"pages": 64, "page_size": 16, "seeded": tuple(STATES.duration_ns)}
    world = World(STATES, rows=rows, more=more, **{**known, **options})
    Checker.watch(world)
    return world


def kinds_of(world: World, name: str) -> list[str]:
    """The programs that held a request, in order, decode left out."""
    return [
        flight.name.split("-")[0]
        for flight in world.log
        if name in flight.lanes and flight.plan.graph.kind is not GraphKind.DECODE
    ]


def test_three_images_over_two_windows_among_decoders() -> None:
    """Vision fills the window, prefill stops, snapshot, restore, vision again (7.4 to 7.8)."""
    world = image_world()
    device = ImageDevice.watch(world)
    for name in ("a", "b"):
        world.admit(name, 16, 400)
    while not all(world.streams[name].tokens for name in "ab"):
        assert world.step()
    world.admit("pictures", 90, 3, images=THREE)
    while len(world.streams["pictures"].tokens) < 3:
        assert world.step()
    assert device.encoded == [("pictures", 0, 0), ("pictures", 1, 40), ("pictures", 2, 0)]
    assert device.restored == [("pictures", 50)]
    assert world.streams["pictures"].consumed == 90
    kinds = kinds_of(world, "pictures")
    boundary = kinds.index("snapshot")
    assert kinds[:3] == ["initialize", "vision", "vision"]
    assert set(kinds[3:boundary]) == {"prefill"}
    assert kinds[boundary : boundary + 3] == ["snapshot", "restore", "vision"]
    assert set(kinds[boundary + 3 :]) == {"prefill"}
    assert [token.output_index for token in world.streams["pictures"].tokens] == [0, 1, 2]
    for name in "ab":
        assert len(world.streams[name].tokens) > 5, "the decoders went on meanwhile"
    world.run_until_idle()
    assert_everything_is_back(world)


def rows_kept(world: World) -> int:
    """Snapshot rows that somebody owns."""
    free = world.scheduler._state.pool.snapshots_free
    return world.resources.snapshot_rows - free


def until(world: World, kind: GraphKind, count: int = 1) -> Flight:
    """Run until the `count`-th frame of a kind is in flight."""
    for _ in range(200):
        world.submit()
        seen = [flight for flight in world.log if flight.plan.graph.kind is kind]
        if len(seen) >= count:
            return seen[count - 1]
        world.finish_frame()
    raise AssertionError(f"no frame {count} of {kind.name}")


# ---- windows and prerequisites ----------------------------------------------------------------


def test_the_smallest_vision_graph_that_holds_an_image_runs() -> None:
    """A larger one does the same work with more padding and never competes (7.9)."""
    world = image_world()
    world.admit("pictures", 90, 1, images=THREE)
    world.run_until_idle()
    vision = [f.name for f in world.log if f.plan.graph.kind is GraphKind.VISION]
    assert vision == ["vision-c64", "vision-c32", "vision-c64"]


def test_one_window_needs_no_snapshot_row() -> None:
    """Images that fit the storage together are encoded once and never snapshotted (7.6)."""
    world = image_world(snapshot_rows=0)
    ImageDevice.watch(world)
    world.admit("pictures", 90, 2, images=THREE[:2])
    world.run_until_idle()
    assert kinds_of(world, "pictures")[:3] == ["initialize", "vision", "vision"]
    assert "snapshot" not in kinds_of(world, "pictures")
    assert_everything_is_back(world)


def test_the_private_row_is_reserved_while_the_request_is_resident() -> None:
    """Exactly one row, from seating to release; the next such request waits for it (7.6)."""
    world = image_world(snapshot_rows=1)
    world.admit("first", 90, 1, images=THREE)
    assert rows_kept(world) == 1
    world.admit("second", 90, 1, images=THREE)
    assert rows_kept(world) == 1
    assert phase_of(world, "second") is Phase.WAITING, "a row and pages are free, no private row"
    while phase_of(world, "first") is not Phase.RELEASED:
        world.step()
    assert phase_of(world, "second") is Phase.INITIALIZING
    world.run_until_idle()
    assert rows_kept(world) == 0
    assert_everything_is_back(world)


def test_the_logical_request_survives_its_windows() -> None:
    """Handle, limits, counters, prices and service history stay over a boundary (7.7)."""
    world = image_world()
    handle = world.admit("pictures", 90, 3, images=THREE, weight=2.0)
    until(world, GraphKind.SNAPSHOT)
    request = world.scheduler._state.table.find(handle)
    before = (request.spec, request.weight, request.prompt_done, request.token_price)
    pages, row = request.pages, request.row
    assert request.incarnation == 1
    until(world, GraphKind.VISION, 3)
    assert request.incarnation == 2
    assert (request.spec, request.weight, request.prompt_done) == before[:3]
    assert request.token_price is not None
    assert before[3] is not None
    assert request.token_price >= before[3], "it was not served, and kept its history"
    assert (request.pages, request.row, request.prompt_done) == (pages, row, 50)
    world.run_until_idle()
    assert len(world.streams["pictures"].tokens) == 3


def test_a_boundary_position_is_not_rounded_to_a_page() -> None:
    """Snapshot and restore carry the exact position, partial page included (7.7)."""
    world = image_world(page_size=16)
    world.admit("pictures", 90, 1, images=THREE)
    snapshot = until(world, GraphKind.SNAPSHOT).plan.steps[0]
    restore = until(world, GraphKind.RESTORE).plan.steps[0]
    assert snapshot.position == restore.position == 50
    assert 50 % world.resources.page_size_tokens
    assert snapshot.pages is restore.pages
    assert (snapshot.snapshot_row, restore.snapshot_row) == (0, 0)
    assert restore.incarnation == snapshot.incarnation + 1


def test_state_work_drains_the_window() -> None:
    """Vision, snapshot and restore run alone: nothing before them, nothing behind (7.9)."""
    world = image_world()
    for name in ("a", "b"):
        world.admit(name, 16, 60)
    world.admit("pictures", 90, 2, images=THREE)
    alone = 0
    while world.step():
        for flight in world.queue:
            if flight.plan.graph.kind in STAGES:
                assert len(world.queue) == 1
        if world.log[-1].plan.graph.kind in STAGES:
            alone += 1
            assert not world.log[-1].queued
            assert world.log[-1].plan.needs_empty_queue
    assert alone >= 6


def test_setup_earns_nothing() -> None:
    """Stages commit no token, and no service enters any price history for them (7.9)."""
    world = image_world()
    handle = world.admit("pictures", 90, 2, images=THREE)
    request = world.scheduler._state.table.find(handle)
    while request.phase < Phase.DECODE:
        world.submit()
        flight, done = world.queue[0], request.prompt_done
        tokens = world.finish_frame()
        if flight.plan.graph.kind in STAGES:
            assert tokens == []
            assert request.prompt_done == done
            assert flight.plan.terms is not None
            assert flight.plan.terms.delivery_value == 0.0


def test_a_stage_lane_may_produce_nothing() -> None:
    """A record with tokens in a vision frame is refused and changes nothing (7.9)."""
    world = image_world()
    world.admit("pictures", 90, 2, images=THREE)
    flight = until(world, GraphKind.VISION)
    good = world._execute(flight.plan.steps[0].handle, flight)
    before = freeze(world.scheduler)
    for fields in ({"tokens": (1,)}, {"prompt_tokens": 1}, {"terminated": True}):
        record = good._replace(**fields)
        timing = world.timing_of(world, flight)
        with pytest.raises(CompletionError):
            world.scheduler.complete(flight.fence, [record], timing)
        assert freeze(world.scheduler) == before


def test_scored_prompts_have_windows_too() -> None:
    """A scored request of several windows consumes its whole prompt in scored graphs."""
    names = {**{n: ns / 1e6 for n, ns in STATES.duration_ns.items()}, "scored-prefill-c64": 10.0}
    world = World(
        modelled(names),
        rows=2,
        pages=64,
        page_size=16,
        more={"feature_rows": 64, "snapshot_rows": 1},
        seeded=tuple(names),
    )
    Checker.watch(world)
    device = ImageDevice.watch(world)
    world.admit("pictures", 90, 0, images=THREE, scored=True)
    world.run_until_idle()
    assert world.streams["pictures"].consumed == 90
    assert len(device.encoded) == 3
    assert_everything_is_back(world)


def test_a_prompt_that_ends_with_its_images_and_one_that_starts_with_them() -> None:
    """Windows at the edges of the prompt need no text around them."""
    images = (ImageSpan(0, 10, 64), ImageSpan(10, 10, 64), ImageSpan(20, 10, 64))
    world = image_world()
    device = ImageDevice.watch(world)
    world.admit("pictures", 30, 1, images=images)
    world.run_until_idle()
    assert device.restored == [("pictures", 10), ("pictures", 20)]
    assert len(world.streams["pictures"].tokens) == 1
    assert_everything_is_back(world)


def test_boundaries_stop_chunks() -> None:
    """No chunk crosses a system boundary, with images or without (7.2)."""
    world = image_world()
    world.admit("text", 100, 1, boundaries=(20, 70))
    world.admit("pictures", 90, 1, images=THREE[:2], boundaries=(25,))
    world.run_until_idle()
    ends = {"text": [], "pictures": []}
    for flight in world.log:
        for step, name in zip(flight.plan.steps, flight.lanes, strict=True):
            if step.prompt_tokens:
                ends[name].append(step.position + step.prompt_tokens)
    assert {20, 70, 100} <= set(ends["text"])
    assert {25, 90} <= set(ends["pictures"])


def test_unmeasured_programs_are_discovered_along_the_chain() -> None:
    """Without any cost the whole life runs, and every stage program used is measured after it."""
    world = image_world(seeded=None)
    device = ImageDevice.watch(world)
    world.admit("pictures", 90, 2, images=THREE)
    world.run_until_idle()
    assert len(device.encoded) == 3
    for flight in world.log:
        assert world.scheduler._state.costs.estimates_ns[flight.plan.graph_index] > 0
    assert_everything_is_back(world)


def test_a_stage_is_planned_at_its_own_duration() -> None:
    """What follows a stage ranks it and enters neither its timing nor its estimate (7.9)."""
    world = image_world()
    world.admit("pictures", 90, 2, images=THREE)
    for kind in (GraphKind.INITIALIZE, GraphKind.VISION, GraphKind.VISION):
        plan = world.plan()
        assert plan is not None
        assert plan.graph.kind is kind
        assert plan.estimated_duration_ns == STATES.duration_ns[plan.graph.name]
        world.run(1)
        assert (
            world.scheduler._state.costs.estimates_ns[plan.graph_index]
            == (STATES.duration_ns[plan.graph.name])
        )


# ---- endings ----------------------------------------------------------------------------------

MOMENTS = [
    (GraphKind.INITIALIZE, 1),
    (GraphKind.VISION, 1),
    (GraphKind.VISION, 2),
    (GraphKind.PREFILL, 1),
    (GraphKind.SNAPSHOT, 1),
    (GraphKind.RESTORE, 1),
    (GraphKind.VISION, 3),
    (GraphKind.DECODE, 1),
    (GraphKind.TERMINAL, 1),
]


@pytest.mark.parametrize(("kind", "count"), MOMENTS)
@pytest.mark.parametrize("ending", ["cancel", "cancel-after", "cancel-twice", "fail"])
def test_every_ending_in_every_stage_gives_everything_back(
    kind: GraphKind, count: int, ending: str
) -> None:
    """Cancelled before or after a frame of each stage, or with it failing: rows, pages and the
    private row stay owned through the last frame and are back behind it (7.10)."""
    world = image_world()
    handle = world.admit("pictures", 90, 3, images=THREE)
    flight = until(world, kind, count)
    assert world.queue[-1] is flight
    row = world.scheduler._state.table.find(handle).snapshot_row
    assert row == 0
    if ending.startswith("cancel") and ending != "cancel-after":
        for _ in range(1 + (ending == "cancel-twice")):
            world.cancel("pictures")
        assert phase_of(world, "pictures") is Phase.DRAINING
        assert rows_kept(world) == 1, "owned through the last submitted frame"
    if ending == "fail":
        while world.queue:
            failed = world.queue.popleft()
            world.scheduler.fail(failed.fence)
    else:
        while world.queue:
            world.finish_frame()
    if ending == "cancel-after" and phase_of(world, "pictures") is not Phase.RELEASED:
        world.cancel("pictures")
    assert phase_of(world, "pictures") is Phase.RELEASED
    assert rows_kept(world) == 0
    assert_everything_is_back(world)
    world.admit("next", 90, 1, images=THREE)
    world.run_until_idle()
    assert_everything_is_back(world)


@pytest.mark.parametrize(("kind", "count"), MOMENTS[:7])
def test_a_stop_is_refused_before_output(kind: GraphKind, count: int) -> None:
    """`finish` and `published_output` need output: before it they change nothing (7.11)."""
    world = image_world()
    handle = world.admit("pictures", 90, 3, images=THREE)
    flight = until(world, kind, count)
    before = freeze(world.scheduler)
    with pytest.raises(PhaseError):
        world.scheduler.finish(handle)
    with pytest.raises(PhaseError):
        world.scheduler.published_output(handle, flight.fence)
    assert freeze(world.scheduler) == before


# ---- admission --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": (ImageSpan(0, 65, 4),)}, "needs 65 tokens in one chunk"),
        ({"images": (ImageSpan(0, 4, 65),)}, "needs 65 feature rows"),
    ],
)
def test_a_refused_image_request_changes_nothing(fields: dict[str, Any], message: str) -> None:
    """Refused at admission, the state is as before bit for bit (7.1)."""
    world = image_world()
    world.admit("a", 16, 4)
    before = freeze(world.scheduler)
    with pytest.raises(InvalidRequestError, match=message):
        world.admit("pictures", 90, 3, **fields)
    assert freeze(world.scheduler) == before


def test_several_windows_without_a_snapshot_row_are_refused() -> None:
    """Where no snapshot row exists a second window can never begin (7.6)."""
    world = image_world(snapshot_rows=0)
    before = freeze(world.scheduler)
    with pytest.raises(InvalidRequestError, match="one snapshot row is needed and 0 exist"):
        world.admit("pictures", 90, 3, images=THREE)
    assert freeze(world.scheduler) == before


# ---- any mixture --------------------------------------------------------------------------------


PROMPTS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 24), st.integers(1, 64)), max_size=3
)
"""Text before each image, its tokens, its feature rows."""


def spec_of(
    shape: list[tuple[int, int, int]], tail: int, stops: list[int], name: str
) -> dict[str, Any]:
    """A prompt with images, and boundaries and endpoints near the given positions.

    Equal prompts have equal keys, so that one may resume from what another left.
    """
    images, at = [], 0
    for text, tokens, features in shape:
        images.append(ImageSpan(at + text, tokens, features))
        at = images[-1].end
    length = max(1, at + tail)
    legal = sorted(
        {s for s in stops if s <= length and not any(i.start < s < i.end for i in images)}
    )
    return {
        "prompt": length,
        "images": tuple(images),
        "boundaries": tuple(legal[1::2]),
        "endpoints": tuple(Endpoint(s, f"{name} {s}".encode()) for s in legal[::2]),
    }


@pytest.mark.slow
@hypothesis.settings(
    max_examples=80, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(
    shapes=st.lists(
        st.tuples(PROMPTS, st.integers(0, 30), st.lists(st.integers(1, 90), max_size=6)),
        min_size=1,
        max_size=3,
    ),
    asked=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=1, max_size=6),
    snapshot_rows=st.integers(1, 3),
    growth=st.booleans(),
    seeded=st.booleans(),
    events=st.lists(st.tuples(st.sampled_from("cfsss"), st.integers(0, 5)), max_size=12),
)
def test_any_mixture_makes_progress_and_gives_everything_back(
    shapes: list[tuple[list[tuple[int, int, int]], int, list[int]]],
    asked: list[tuple[int, int]],
    snapshot_rows: int,
    growth: bool,
    seeded: bool,
    events: list[tuple[str, int]],
) -> None:
    """Whatever images, boundaries, checkpoints, preemptions, cancellations and failures: the
    checker finds a plan for every runnable request, the device finds every step sensible, every
    other request ends with all its output, and in the end everything is back (7.3, 7.10)."""
    world = image_world(
        rows=3,
        pages=13 if growth else 64,
        snapshot_rows=snapshot_rows,
        seeded=tuple(STATES.duration_ns) if seeded else None,
        more={"page_growth": growth},
    )
    ImageDevice.watch(world)
    for index, (pick, output) in enumerate(asked):
        shape, tail, stops = shapes[pick % len(shapes)]
        fields = spec_of(shape, tail, stops, str(pick % len(shapes)))
        world.admit(f"r{index}", output=output, **fields)
        world.step()
    ended = []
    for event, pick in events:
        name = f"r{pick % len(asked)}"
        if event == "c" and phase_of(world, name) is not Phase.RELEASED:
            world.cancel(name)
            ended.append(name)
        elif event == "f" and world.queue:
            failed = world.queue.popleft()
            ended += failed.lanes
            world.scheduler.fail(failed.fence)
        else:
            world.step()
    world.run_until_idle(3_000)
    assert world.scheduler.usage().resident == 0
    world.scheduler.drop_checkpoints()
    assert rows_kept(world) == 0
    assert_everything_is_back(world)
    for index, (_, output) in enumerate(asked):
        if f"r{index}" not in ended:
            assert len(world.streams[f"r{index}"].tokens) == output


# ---- beside checkpoints -------------------------------------------------------------------------


def test_private_window_snapshots_publish_nothing() -> None:
    """A window's copy is in no cache, whether or not anything may be kept (7.6)."""
    for endpoints in ((), (Endpoint(90, b"end", ends_message=False),)):
        world = image_world(snapshot_rows=3)
        world.admit("pictures", 90, 1, images=THREE, endpoints=endpoints)
        until(world, GraphKind.VISION, 3)
        stats = world.scheduler.checkpoint_stats()
        assert (stats.published, stats.captures) == (0, 0)
        assert rows_kept(world) == 1, "the private row, and nothing else is kept yet"
        world.run_until_idle()
        assert world.scheduler.checkpoint_stats().captures == len(endpoints)


def test_a_checkpoint_at_a_window_boundary_comes_before_it() -> None:
    """Both copies of the same position are made, each into its own row, and both are usable."""
    world = image_world(snapshot_rows=3)
    device = ImageDevice.watch(world)
    endpoints = (Endpoint(50, b"before the third"), Endpoint(90, b"end", ends_message=False))
    world.admit("first", 90, 1, images=THREE, endpoints=endpoints)
    world.run_until_idle()
    copies = [f for f in world.log if f.plan.graph.kind is GraphKind.SNAPSHOT]
    rows = [(f.plan.steps[0].position, f.plan.steps[0].snapshot_row) for f in copies]
    assert [position for position, _ in rows[:2]] == [50, 50]
    assert rows[0][1] != rows[1][1]
    world.admit("second", 90, 1, images=THREE, endpoints=endpoints)
    world.run_until_idle()
    assert device.restored == [("first", 50), ("second", 50)]
    assert device.encoded[3:] == [("second", 2, 0)], "images in the kept prefix are not encoded"
    assert_all_released(world)


def assert_all_released(world: World) -> None:
    """Every request is gone, and what is left belongs to checkpoints alone."""
    world.scheduler.drop_checkpoints()
    assert rows_kept(world) == 0
    assert_everything_is_back(world)


@pytest.mark.parametrize("endpoints", [(), (Endpoint(38, b"two images"),)])
def test_preempted_image_requests_come_back(endpoints: tuple[Endpoint, ...]) -> None:
    """Preempted while pages are short, an image request replays its windows in fresh generations,
    from the start or from what is kept of it, and ends with all its output (7.7)."""
    world = image_world(pages=14, snapshot_rows=4, more={"page_growth": True})
    device = ImageDevice.watch(world)
    for name in "abc":
        world.admit(name, 90, 60, images=THREE, endpoints=endpoints)
    preempted = {}
    while world.step():
        for handle in world.scheduler.preempted():
            preempted[world.by_handle[handle].name] = len(device.encoded)
    assert preempted, "three requests do not fit together"
    for name in preempted:
        images = [image for owner, image, _ in device.encoded if owner == name]
        assert images[:3] == [0, 1, 2]
        assert images[-1] == 2
        assert len(images) > 3, "what is not kept is encoded again"
    assert all(len(world.streams[name].tokens) == 60 for name in "abc")
    assert_all_released(world)
