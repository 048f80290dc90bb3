"""Page growth and preemption end to end (runtime section 6)."""

from __future__ import annotations

from typing import Any

import pytest

from helios.scheduler import (
    DecodeMode,
    Endpoint,
    Fence,
    GraphKind,
    InvalidRequestError,
    Phase,
    RequestSpec,
    SpeculationConfig,
    StalePlanError,
    paging,
)
from helios.scheduler.requests import Request
from helios.scheduler.state import State
from tests.support.catalogs import Recipe, modelled, recipe
from tests.support.checkers import Checker
from tests.support.device import Always, Chance
from tests.support.ownership import assert_ownership
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.world import Flight, Observer, World, measure_directly

MODEL = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c8": 4.0,
        "prefill-c32": 9.0,
        "decode-b1": 3.0,
        "decode-b4": 3.5,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
        "restore-b1": 0.25,
        "snapshot-b1": 0.25,
    }
)


def growing(*, pages: int, rows: int = 4, page_size: int = 8, **more: Any) -> World:
    """A world of growing requests whose programs all have stale costs."""
    world = World(
        MODEL,
        rows=rows,
        pages=pages,
        page_size=page_size,
        seeded=tuple(MODEL.duration_ns),
        more={"page_growth": True, **more},
    )
    Checker.watch(world)
    return world


def run_and_check(world: World, limit: int = 2_000) -> None:
    for _ in range(limit):
        if not world.step():
            break
        assert_usage_adds_up(world)
    assert_everything_is_back(world)


def test_a_request_is_seated_with_its_first_chunk_and_grows_by_frames() -> None:
    """Pages follow position, ceiling and draft extent of each committed frame (6.1, 6.2)."""
    world = growing(pages=64, draft_extent_tokens=3)
    world.admit("a", 70, 40)
    assert world.scheduler.usage().pages_in_use == -(-(32 + 3) // 8)
    held = 5
    while not world.step() or world.streams["a"].tokens == []:
        pass
    while len(world.streams["a"].tokens) < 40:
        plan = world.plan()
        if plan is not None:
            step = plan.steps[0]
            reach = step.position + max(step.prompt_tokens, step.output_ceiling) + 3
            assert len(step.pages) == max(held, -(-reach // 8))
            before = freeze(world.scheduler)
            assert world.plan() == plan
            assert freeze(world.scheduler) == before, "plan takes nothing"
            world.commit(plan)
            held = len(step.pages)
        else:
            world.finish_frame()
    run_and_check(world)
    assert world.scheduler.usage().preemptions == 0


@pytest.mark.parametrize(("pages", "extent"), [(12, 0), (21, 3), (40, 3), (90, 0)])
def test_a_budget_that_cuts_nobody_is_the_whole_budget(
    pages: int, extent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reach, promised pages and evictions of the short way, each drawn again the long way (6.3)."""
    ways = []

    def drawn_twice(state: State) -> bool:
        is_plenty = short_way(state)
        ways.append(is_plenty)
        if is_plenty:
            found = [request.reach for request in state.table.resident]
            promised, free = state.growth_pages, state.pool.pages_free
            assert not paging._draw(state)
            assert [request.reach for request in state.table.resident] == found
            assert (state.growth_pages, state.pool.pages_free) == (promised, free)
        return is_plenty

    short_way = paging._draw_plenty
    monkeypatch.setattr(paging, "_draw_plenty", drawn_twice)
    world = growing(pages=pages, draft_extent_tokens=extent)
    for place, name in enumerate("abcdef"):
        world.admit(name, 5 + 9 * place, 30 - place)
    run_and_check(world)
    assert True in ways
    assert (False in ways) is (pages < 40)


def test_more_requests_run_than_whole_reservation_admits() -> None:
    """Twelve pages hold one whole request of ten pages, and three growing ones that end early."""
    world = growing(pages=12)
    for name in "abc":
        world.admit(name, 16, 60, ends_at=8)
    assert world.scheduler.usage().resident == 3
    run_and_check(world)
    assert world.scheduler.usage().preemptions == 0


def test_what_cannot_grow_is_preempted_and_goes_on_where_it_stopped() -> None:
    """Every token of every response comes once, in order, whatever was replayed (6.5 to 6.7)."""
    world = growing(pages=12)
    handles = {name: world.admit(name, 16, 60) for name in "abc"}
    away: list[str] = []
    while world.step():
        assert_usage_adds_up(world)
        for name, handle in handles.items():
            if handle in world.scheduler.preempted() and name not in away:
                away.append(name)
    assert away
    assert world.scheduler.usage().preemptions >= 2
    for name in "abc":
        indices = [token.output_index for token in world.streams[name].tokens]
        assert indices == list(range(60))
    assert_everything_is_back(world)


def test_a_value_rate_is_priced_service_at_the_reference_rate() -> None:
    """Per ms of the interval in which everybody gets a token, and per prompt token that the machine
    consumes, which prompts share (6.5): whoever has the least of it per page goes first."""
    world = growing(pages=64)
    for name in "abcd":
        world.admit(name, 8 if name in "ab" else 64, 40)
    while min(len(world.streams[name].tokens) for name in "ab") < 1:
        world.step()
    state, policy = world.scheduler._state, world.policy
    running = state.table.resident
    generating = [request.phase is Phase.DECODE for request in running]
    assert generating == [True, True, False, False]
    # Batches of one take 2 * 3 ms for both, one of four 3.5 ms; 32 prompt tokens take 9 ms.
    interval_ms, token_rate = 3.5, 32 / 9
    rates = paging._value_rates(state, running)
    for request in running:
        fairness = policy.token_fairness * (request.account.token_price or 0.0)
        if request.phase is not Phase.DECODE:
            assert rates[request] == pytest.approx((1.0 + fairness) * token_rate / 2)
            continue
        visible = request.delivery_price
        if visible is None:
            visible = interval_ms
        value = policy.output_token_value + fairness + policy.delivery_fairness * visible
        assert rates[request] == pytest.approx(value / interval_ms)


@pytest.mark.parametrize(("prompt", "expected"), [(14, 2), (15, 2), (16, 3)])
def test_who_was_preempted_needs_its_replay_and_one_token_more(prompt: int, expected: int) -> None:
    """Pages of eight tokens for all that it has to compute again and for its next token (6.8)."""
    world = growing(pages=64)
    world.admit("a", prompt, 40)
    state = world.scheduler._state
    (request,) = state.table.resident
    request.preemptions = 1
    assert paging.pages_to_seat(state, request, 0) == expected


def test_a_preempted_request_keeps_handle_prices_and_counters() -> None:
    """It waits at the head of the line, and nothing about it has been forgotten (6.7)."""
    world = growing(pages=12)
    for name in "abc":
        world.admit(name, 16, 60)
    while not (waiting := [r for r in world.scheduler._state.table.waiting if r.preemptions]):
        world.step()
    request = waiting[0]
    later = world.admit("later", 8, 4)
    assert world.scheduler.phase_of(later) is Phase.WAITING
    assert next(iter(world.scheduler._state.table.waiting)) is request
    produced, price = request.output_count, request.account.token_price
    delivery = request.delivery_price
    assert produced > 0
    assert request.prompt_tokens == 16 + produced
    assert price is not None
    assert delivery is not None
    while request.phase is Phase.WAITING:
        assert request.output_count == produced
        assert request.delivery_price == delivery
        world.step()
    assert request.account.token_price == price, "no newcomer's price"
    request.account.token_price = price = 1e-6
    while request.prompt_done == 0 and request.preemptions == 1:
        assert request.account.token_price < 0.2, "its own price, however low it was"
        world.submit()
        world.finish_frame()
    assert world.by_handle[request.handle].spec is request.spec
    run_and_check(world)


def test_the_retirement_age_starts_when_preemption_was_decided() -> None:
    """A request in flight is retired after its frames; its age counts from the decision (6.6)."""
    world = growing(pages=12)
    for name in "abc":
        world.admit(name, 16, 60)
    decided = {}
    retired = 0
    while world.step():
        for request in world.scheduler._state.table.resident:
            if request.is_leaving:
                decided.setdefault((request.arrival, request.preemptions), world.now_ns)
                if request.phase is Phase.TERMINAL:
                    assert request.terminal_since_ns == request.leaving_since_ns <= world.now_ns
                    retired += 1
    assert retired


def test_the_response_of_a_preempted_request_is_not_completed() -> None:
    """No token says that it is the last before the output limit is reached."""
    world = growing(pages=12)
    for name in "abc":
        world.admit(name, 16, 60)
    run_and_check(world)
    for name in "abc":
        assert [token.is_last for token in world.streams[name].tokens] == [False] * 59 + [True]


def test_one_that_cannot_grow_does_not_stop_the_others() -> None:
    """Field report 5: a failed allocation ends no selection; whoever fits runs (6.3)."""
    world = growing(pages=6, rows=3)
    world.admit("small", 8, 8)
    world.admit("large", 24, 24)
    while not world.streams["small"].tokens:
        assert world.step()
    run_and_check(world)


ROUNDS = modelled(
    {
        "initialize-b4": 0.3,
        "prefill-c32": 9.0,
        "speculative-b4-d0-w1": 3.5,
        "speculative-b4-d3-w4": 4.0,
        "mixed-b4-d3-w4-c64": 12.0,
        "terminal-b4": 0.3,
    }
)


@pytest.mark.parametrize("pages", [60, 73, 90, 130])
@pytest.mark.parametrize(
    "speculation",
    [
        SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=4),
    ],
)
def test_rounds_and_chunks_never_want_more_pages_than_there_are(
    pages: int, speculation: SpeculationConfig
) -> None:
    """Long lanes and prompt chunks are shortened to what the budget gives their rows (6.2)."""
    world = World(
        ROUNDS,
        rows=4,
        pages=pages,
        page_size=1,
        speculation=speculation,
        seeded=tuple(ROUNDS.duration_ns),
        more={"page_growth": True},
    )
    for index, prompt in enumerate((3, 50, 7, 40)):
        world.admit(f"{index}", prompt, 9, acceptance=Always(3))
    shortened = 0
    while world.submit() or world.queue:
        for step in world.queue[-1].plan.steps:
            written = max(step.prompt_tokens, step.output_ceiling)
            assert step.position + written <= len(step.pages) or not written
        requests = world.scheduler._state.table.resident
        shortened += sum(0 < request.reach < 4 for request in requests)
        world.finish_frame()
    assert shortened
    assert_everything_is_back(world)
    assert all(len(stream.tokens) == 9 for stream in world.streams.values())


def test_what_could_never_fit_is_refused_with_both_numbers() -> None:
    """Growth admits what fits alone, and nothing else (1.3)."""
    world = growing(pages=6)
    before = freeze(world.scheduler)
    with pytest.raises(InvalidRequestError, match="7 pages and 6 exist"):
        world.scheduler.admit(RequestSpec(prompt_tokens=16, max_output_tokens=33))
    assert freeze(world.scheduler) == before
    world.admit("whole", 16, 32)
    run_and_check(world)
    assert len(world.streams["whole"].tokens) == 32


def test_a_plan_whose_pages_went_elsewhere_is_stale() -> None:
    """Commit re-checks: the pages that the plan names must still be the lowest free ones (6.2)."""
    world = growing(pages=32)
    world.admit("a", 64, 8)
    world.step()
    plan = None
    while plan is None or len(plan.steps[0].pages) == len(
        world.scheduler._state.table.resident[0].pages
    ):
        if plan is not None:
            world.commit(plan)
            world.finish_frame()
        plan = world.plan()
    world.admit("b", 8, 4)
    before = freeze(world.scheduler)
    with pytest.raises(StalePlanError, match="no longer free"):
        world.scheduler.commit(plan, Fence(1_000))
    assert freeze(world.scheduler) == before
    run_and_check(world)


@pytest.mark.parametrize("how", ["cancel", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_preempted_request_may_end_wherever_it_stands(how: str) -> None:
    """While it is retired, while it waits, while it is set up again and replayed (6.9)."""
    world = growing(pages=12)
    for name in "abc":
        world.admit(name, 16, 60)
    seen: dict[Phase, int] = {}
    while world.step():
        chosen = [r for r in away_or_back(world) if seen.get(r.phase, 0) < 3]
        if chosen:
            phase = chosen[0].phase
            seen[phase] = seen.get(phase, 0) + 1
            fork = world.fork()
            getattr(fork, how)(fork.by_handle[chosen[0].handle].name)
            assert chosen[0].handle not in fork.scheduler.preempted()
            run_and_check(fork)
    assert sorted(seen) == [
        Phase.WAITING,
        Phase.INITIALIZING,
        Phase.PREFILL,
        Phase.DECODE,
        Phase.TERMINAL,
    ]


def away_or_back(world: World) -> list[Request]:
    """The requests that were preempted, or are about to be, and have not ended."""
    requests = [world.scheduler._state.table.find(handle) for handle in world.by_handle]
    return [
        request
        for request in requests
        if (request.preemptions or request.is_leaving)
        and request.phase <= Phase.TERMINAL
        and request.output_count < request.max_output
    ]


def test_shared_prefixes_make_room_before_anyone_is_preempted() -> None:
    """Victims of the cache go first; only when none is left is a request preempted (6.4, 6.5)."""
    world = growing(pages=12, page_prefixes=True)
    world.admit("first", 33, 1, endpoints=(Endpoint(32, b"x"),))
    world.run_until_idle()
    assert world.scheduler.checkpoint_stats().published == 1
    assert world.scheduler.usage().pages_kept == 4
    for name in "ab":
        world.admit(name, 16, 30)
    preempted_after = None
    while world.step():
        stats, usage = world.scheduler.checkpoint_stats(), world.scheduler.usage()
        if usage.preemptions and preempted_after is None:
            preempted_after = stats.published
    assert world.scheduler.checkpoint_stats().evictions >= 1
    assert preempted_after in (None, 0)
    assert_everything_is_back(world)


def test_without_growth_nothing_of_it_happens() -> None:
    """Whole reservation as in decision 0002."""
    world = World(MODEL, rows=4, pages=12, page_size=8, seeded=tuple(MODEL.duration_ns))
    Checker.watch(world)
    for name in "abc":
        world.admit(name, 16, 60)
    assert world.scheduler.usage().pages_in_use == 10
    run_and_check(world)
    assert world.scheduler.usage().preemptions == 0
    assert all(flight.plan.graph.kind is not GraphKind.SNAPSHOT for flight in world.log)


def test_a_preempted_state_is_copied_when_a_row_is_free() -> None:
    """It leaves by SNAPSHOT and comes back by RESTORE unless its pages were needed (6.6, 6.7)."""
    world = growing(pages=12, snapshot_rows=3)
    for name in "abc":
        world.admit(name, 16, 60)
    run_and_check(world)
    kinds = [flight.plan.graph.kind for flight in world.log]
    assert GraphKind.SNAPSHOT in kinds
    assert world.scheduler.usage().preemptions
    for name in "abc":
        assert [token.output_index for token in world.streams[name].tokens] == list(range(60))


def test_a_preempted_state_that_nobody_evicted_is_resumed() -> None:
    """Only one token is computed again before the response goes on (6.7)."""
    world = growing(pages=12, snapshot_rows=3)
    for name in "ab":
        world.admit(name, 16, 60)
    restored = []
    while world.step():
        flight = world.log[-1]
        if flight.plan.graph.kind is GraphKind.RESTORE:
            restored += [step.position for step in flight.plan.steps]
        # The other one leaves as soon as somebody was preempted, so that its pages are free.
        if world.scheduler.usage().preemptions == 1:
            running = [r for r in world.scheduler._state.table.resident if not r.is_leaving]
            if running and not any(r.preemptions for r in running):
                world.cancel(world.by_handle[running[0].handle].name)
    assert restored
    assert restored[0] > 16
    assert world.scheduler.checkpoint_stats().hits == 1
    assert_everything_is_back(world)


@pytest.mark.parametrize("device", [False, True])
def test_rounds_reserve_every_ceiling_and_the_draft_extent(device: bool) -> None:
    """Each lane owns the pages of its whole ceiling and the draft extent, two frames deep (6.1)."""
    choice = Recipe(rows=4, prefills=(64,), widths=(1, 2, 4), ragged=((3, 2),), device=device)
    world = World(
        recipe(choice),
        rows=4,
        pages=22,
        page_size=8,
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        more={"page_growth": True, "draft_extent_tokens": 5},
    )
    measure_directly(world)
    Checker.watch(world)
    for index, name in enumerate("abcd"):
        world.admit(name, 10 + index, 50, acceptance=Chance((0.7,)))
    widest = 0
    while world.step():
        assert_usage_adds_up(world)
        assert_ownership(world)
        for flight in world.queue:
            for step in flight.plan.steps:
                if step.output_ceiling and not step.prompt_tokens:
                    widest = max(widest, step.output_ceiling)
                    assert len(step.pages) * 8 >= step.position + step.output_ceiling + 5
    assert widest > 1
    assert world.scheduler.usage().preemptions > 0
    for name in "abcd":
        indices = [token.output_index for token in world.streams[name].tokens]
        assert indices == list(range(50))
    assert_everything_is_back(world)


class WidestLanes(Observer):
    """Looks at the pages of every generating lane when it is submitted; keeps the widest."""

    def __init__(self, world: World, extent_tokens: int) -> None:
        self.page_size = world.resources.page_size_tokens
        self.extent_tokens = extent_tokens
        self.of: dict[GraphKind, int] = {}
        world.observers.append(self)

    def on_commit(self, flight: Flight) -> None:
        kind = flight.plan.graph.kind
        for step in flight.plan.steps:
            if step.output_ceiling and not step.prompt_tokens:
                self.of[kind] = max(self.of.get(kind, 0), step.output_ceiling)
                needed = step.position + step.output_ceiling + self.extent_tokens
                assert len(step.pages) * self.page_size >= needed


@pytest.mark.parametrize("is_drawn", [False, True], ids=["as it is", "drawn one by one"])
@pytest.mark.parametrize("pages", [22, 200], ids=["few", "plenty"])
def test_pages_cover_the_lanes_of_wider_mixed_programs(
    pages: int, is_drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of two rows beside mixed programs of four: pages follow the four (M19).

    Where pages are left for everybody a shorter way gives the same budget; both know the width.
    """
    if is_drawn:
        monkeypatch.setattr(paging, "_draw_plenty", lambda state: False)
    model = recipe(Recipe(rows=4, prefills=(64,), widths=(1, 2), mixed=((4, 64),)))
    for name in ("mixed-b2-d3-w4-c64", "mixed-b4-d3-w4-c64"):
        model = model.with_duration(name, 5.5)
    world = World(
        model,
        rows=4,
        pages=pages,
        page_size=8,
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        more={"page_growth": True, "draft_extent_tokens": 5},
    )
    measure_directly(world)
    Checker.watch(world)
    widest = WidestLanes(world, extent_tokens=5)
    for index in range(12):
        world.admit(f"r{index}", 20 + index, 24, acceptance=Always(3))
    world.run_until_idle()
    assert widest.of == {GraphKind.SPECULATIVE: 2, GraphKind.MIXED: 4}
    assert (world.scheduler.usage().preemptions > 0) == (pages == 22)
    assert_everything_is_back(world)


def test_acceptance_estimates_survive_a_preemption() -> None:
    """The row changes, what was learned of the request does not (6.7)."""
    choice = Recipe(rows=4, prefills=(64,), widths=(1, 2, 4))
    world = World(
        recipe(choice),
        rows=4,
        pages=12,
        page_size=8,
        speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        more={"page_growth": True},
    )
    measure_directly(world)
    for name in "abc":
        world.admit(name, 16, 60, acceptance=Always(3))
    table = world.scheduler._state.table
    fresh = world.scheduler._state.history.acceptance.take(3).tolist()
    seen = {}
    checked = 0
    while world.step():
        for request in table.waiting:
            if request.preemptions and request.saved is not None:
                seen[request] = request.saved.acceptance
        for request in table.resident:
            if request in seen:
                back = world.scheduler._state.history.acceptance.take(request.row)
                kept = seen.pop(request)
                assert back.tolist() == kept.tolist()
                checked += kept.tolist() != fresh
    assert checked


def test_a_replayed_stream_has_waited_since_its_last_visible_output() -> None:
    """Entering decode again does not reset its output age."""
    world = growing(pages=12)
    for name in "abc":
        world.admit(name, 16, 60)
    while not (waiting := [r for r in world.scheduler._state.table.waiting if r.preemptions]):
        world.step()
    request = waiting[0]
    visible_ns = request.visible_ns
    assert visible_ns > 0
    while request.phase is not Phase.DECODE:
        if not world.submit():
            world.finish_frame(publish=False)
    assert request.visible_ns == visible_ns
    run_and_check(world)
