"""Pages of growing requests: the budget of each state version, reservation, and preemption.

    every call that changes state: redraw the budget, evict for it, preempt if someone cannot grow
    plan:   the pages that the frame would take are the lowest free ones
    commit: they are taken, or the plan is stale

Without `ResourceConfig.page_growth` requests own all their pages and none of this runs. The rules
are those of docs/design/scheduling-runtime.md section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

from helios.scheduler.capture import give_back, keep_retired, publish_armed
from helios.scheduler.checkpoints import Checkpoint
from helios.scheduler.errors import StalePlanError
from helios.scheduler.growth import Lane, budget_of, pages_to_add
from helios.scheduler.images import first_image_from
from helios.scheduler.lifecycle import Event
from helios.scheduler.plan import ScheduledPlan, ScheduledStep
from helios.scheduler.preemption import Holding, preempted_of
from helios.scheduler.records import Phase
from helios.scheduler.requests import NO_PAGES, UNLIMITED, Request
from helios.scheduler.resources import Pages
from helios.scheduler.stages import BINDING_KINDS
from helios.scheduler.standing import Standing
from helios.scheduler.state import NO_VERSION, State

# The budget ---------------------------------------------------------------------------------------


def redraw(state: State) -> None:
    """Set how far each resident may grow now; preempt one when somebody cannot grow at all."""
    if not state.pool.config.page_growth or _draw_plenty(state):
        return
    while _draw(state):
        pass


def _draw_plenty(state: State) -> bool:
    """Draw the budget where pages are left for all that everybody needs; False where they are not.

    Nobody is cut then, so no order matters: it says what `_draw` says. It is the usual case, looked
    at two or three times per frame.
    """
    config = state.pool.config
    size, extent, widest = config.page_size_tokens, config.draft_extent_tokens, state.widest_lane
    decode = Phase.DECODE
    used = promised = prompt_pages = 0
    for request in state.table.resident:
        if request.phase is decode and not request.is_leaving:
            queued = request.queued_tokens
            left = request.max_output - request.output_count - queued
            if left > 0:
                request.reach = reach = widest if widest < left else left
                room = len(request.pages) * size - extent - request.position_after(queued)
                if room < reach:
                    used -= (room - reach) // size
                    promised += max(0, -((room - 1) // size))
        elif request.phase < decode and not request.is_leaving:
            lane = _prompt_lane(state, request)
            if lane.whole < lane.most:
                return False
            request.reach = lane.most
            promised += pages_to_add(lane.whole, lane, size, extent)
            prompt_pages = max(prompt_pages, pages_to_add(lane.most, lane, size, extent))
    if used + promised > state.pool.pages_available:
        return False
    state.store.make_room(used + prompt_pages)
    state.growth_pages = promised
    _void_standing(state)
    return True


def _void_standing(state: State) -> None:
    """Let the next standing be made anew; it takes over what holds for the same decoders."""
    state.memo = (NO_VERSION, state.memo[1])


def _draw(state: State) -> bool:
    """Draw the budget once; return whether somebody was preempted, so that it is void."""
    generating, prompts, is_waiting = _by_need(state)
    lanes = [_generating_lane(state, request) for request in generating]
    prompt_lanes = [_prompt_lane(state, request) for request in prompts]
    config, pool = state.pool.config, state.pool
    budget = budget_of(
        lanes,
        prompt_lanes,
        pool.pages_available,
        page_size=config.page_size_tokens,
        extent=config.draft_extent_tokens,
    )
    state.store.make_room(budget.pages_used)
    state.growth_pages = _promised_pages(state, [*lanes, *prompt_lanes])
    running = [*generating, *prompts]
    for request, tokens in zip(running, budget.tokens, strict=True):
        request.reach = tokens
    _void_standing(state)
    if not budget.pages_wanted or is_waiting:
        return False
    _preempt_one(state, running)
    return True


def _by_need(state: State) -> tuple[list[Request], list[Request], bool]:
    """Return the residents that generate, those with a prompt, and whether pages will come back."""
    generating, prompts, is_waiting = [], [], False
    for request in state.table.resident:
        if request.phase > Phase.DECODE or request.is_leaving:
            is_waiting = True
        elif request.phase is Phase.DECODE:
            if request.output_count + request.queued_tokens < request.max_output:
                generating.append(request)
            else:
                # Its last lane is in flight: it is about to end.
                is_waiting = True
        else:
            prompts.append(request)
    generating.sort(key=_least_recently_served)
    # Prompts stay in the order in which they became resident: who has begun goes on.
    return generating, prompts, is_waiting


def _least_recently_served(request: Request) -> tuple[int, int]:
    return (request.last_used, request.arrival)


def _generating_lane(state: State, request: Request) -> Lane:
    position = request.position_after(request.queued_tokens)
    left = request.max_output - request.output_count - request.queued_tokens
    return Lane(position, len(request.pages), 1, min(state.widest_lane, left))


def _prompt_lane(state: State, request: Request) -> Lane:
    least, images = 1, request.spec.images
    if images:
        index = first_image_from(images, request.prompt_done)
        if index < len(images) and images[index].start == request.prompt_done:
            least = images[index].tokens
    most = max(least, min(request.remaining_prompt, state.longest_chunk))
    whole = request.remaining_prompt + (request.output_count < request.max_output)
    return Lane(request.prompt_done, len(request.pages), least, most, whole)


def _promised_pages(state: State, lanes: Sequence[Lane]) -> int:
    """Return the pages that no newcomer may have: all of every prompt, a step of the others."""
    config = state.pool.config
    return sum(
        pages_to_add(
            max(lane.least, lane.whole), lane, config.page_size_tokens, config.draft_extent_tokens
        )
        for lane in lanes
    )


# Seating ------------------------------------------------------------------------------------------


def pages_to_seat(state: State, request: Request, resumed_tokens: int) -> int:
    """Return how many pages a request owns when it becomes resident, shared ones included.

    A request that was preempted comes back only with its whole replay and a token's room, so that
    it does not lose the same pages again before it has produced anything.
    """
    config = state.pool.config
    if not config.page_growth:
        return state.pool.pages_of(request.spec)
    if request.preemptions:
        tokens = request.prompt_tokens + 1
    else:
        left = request.prompt_tokens - resumed_tokens
        tokens = resumed_tokens + min(left, state.longest_chunk)
    whole = state.pool.pages_of(request.spec)
    return min(whole, config.pages_for(tokens + config.draft_extent_tokens))


def fits(state: State, source: Checkpoint | None, page_count: int, resumed_tokens: int) -> bool:
    """Tell whether the pages are within reach and promised to no resident.

    The newcomer's own later pages are not asked for: with its first chunk it stands in the order of
    the prompts, so that nobody who comes later can keep it from them.
    """
    shared: Pages = ()
    if source is not None:
        shared = source.pages[: resumed_tokens // state.pool.config.page_size_tokens]
    available = state.pool.pages_available - state.pool.idle_pages(shared)
    return page_count - len(shared) + state.growth_pages <= available


def leave_row(state: State, request: Request) -> None:
    """Give back the row, the pages and the private row of a resident request."""
    state.pool.release(request.row, request.pages)
    request.pages = NO_PAGES
    if request.snapshot_row >= 0:
        state.pool.free_snapshot(request.snapshot_row)
        request.snapshot_row = -1
    state.table.resident.remove(request)


# Plans and frames ---------------------------------------------------------------------------------


def _added(state: State, step: ScheduledStep, held: int) -> int:
    config = state.pool.config
    size, extent = config.page_size_tokens, config.draft_extent_tokens
    tokens = max(step.prompt_tokens, step.output_ceiling)
    if not tokens or step.position + tokens + extent <= held * size:
        # Nearly every lane: what it holds is enough.
        return 0
    return pages_to_add(tokens, Lane(step.position, held, tokens, tokens), size, extent)


def with_pages(state: State, steps: tuple[ScheduledStep, ...]) -> tuple[ScheduledStep, ...]:
    """Return the lanes with the pages that they would write, without taking any."""
    if not state.pool.config.page_growth:
        return steps
    counts = [_added(state, step, len(step.pages)) for step in steps]
    if not any(counts):
        return steps
    pages = state.pool.lowest_pages(sum(counts))
    grown, start = [], 0
    for step, count in zip(steps, counts, strict=True):
        added = pages[start : start + count]
        grown.append(step._replace(pages=step.pages + added) if added else step)
        start += count
    return tuple(grown)


def check_pages(state: State, plan: ScheduledPlan, requests: Sequence[Request]) -> None:
    """Raise StalePlanError unless every lane owns its pages, or would get them now."""
    added: list[int] = []
    for step, request in zip(plan.steps, requests, strict=True):
        if request.pages is step.pages:
            continue
        held = len(request.pages)
        if not state.pool.config.page_growth or step.pages[:held] != request.pages:
            raise StalePlanError(f"{step.handle} does not own what the plan gives it")
        added += step.pages[held:]
    if added and (
        len(added) > state.pool.pages_free or state.pool.lowest_pages(len(added)) != tuple(added)
    ):
        raise StalePlanError("the pages that the plan gives its lanes are no longer free")


def take_pages(state: State, plan: ScheduledPlan, requests: Sequence[Request]) -> None:
    """Let the lanes of a checked plan own their pages, through the frame and beyond."""
    if not state.pool.config.page_growth:
        return
    for step, request in zip(plan.steps, requests, strict=True):
        if step.pages is request.pages:
            continue
        held = len(request.pages)
        if len(step.pages) > held:
            added: Pages = state.pool.take_pages(len(step.pages) - held)
            assert step.pages[held:] == added
            request.pages = step.pages


# Preemption ---------------------------------------------------------------------------------------


def _preempt_one(state: State, running: Sequence[Request]) -> None:
    """Begin to retire the running request with the lowest value rate per page.

    One that replays more than a chunk after an earlier preemption is left alone while there is
    another: it owns the pages of its next token, and would be thrown away again and again.
    """
    rates = _value_rates(state, running)
    sole = state.pool.sole_pages
    eligible = [request for request in running if not _replays_long(state, request)]
    arrival = preempted_of(
        Holding(request.arrival, rates.get(request), sole(request.pages))
        for request in eligible or running
    )
    request = next(request for request in running if request.arrival == arrival)
    request.is_leaving = True
    request.leaving_since_ns = state.now_ns
    request.epoch = state.version
    if request.queued == 0:
        begin_retirement(state, request)


def _replays_long(state: State, request: Request) -> bool:
    is_replaying = request.preemptions > 0 and request.phase is not Phase.DECODE
    return is_replaying and request.prompt_tokens > state.longest_chunk


def _value_rates(state: State, running: Sequence[Request]) -> dict[Request, float]:
    """Return what each request is worth per ms at its own reference rate; absent: unmeasured."""
    drawn = [request.reach for request in running]
    for request in running:
        request.reach = UNLIMITED
    standing = Standing(state.shapes, state.costs, running)
    for request, tokens in zip(running, drawn, strict=True):
        # The budget stays in force: whoever was cut to zero must not be planned meanwhile.
        request.reach = tokens
    policy = state.policy
    rates: dict[Request, float] = {}
    interval_ms = standing.interval_ms
    for request in standing.decoders:
        if interval_ms is None:
            break
        delivery = request.delivery_price
        visible = interval_ms if delivery is None else delivery
        value = policy.output_token_value + _priced(policy.token_fairness, request)
        value += policy.delivery_fairness * request.weight * visible
        rates[request] = value / interval_ms
    count = max(1, len(standing.machine_rates))
    for request, machine in standing.machine_rates.items():
        if machine is not None:
            rates[request] = (1.0 + _priced(policy.token_fairness, request)) * machine / count
    for request, tokens in zip(running, drawn, strict=True):
        if tokens == 0 and request.phase is not Phase.DECODE:
            # A prompt that waits for pages earns nothing with those that it holds meanwhile.
            rates[request] = 0.0
    return rates


def _priced(coefficient: float, request: Request) -> float:
    price = request.account.token_price
    return coefficient * request.weight * price if price else 0.0


def begin_retirement(state: State, request: Request) -> None:
    """Send a leaving request, which no submitted frame holds, through the terminal path.

    Its retirement age starts when preemption was decided. A row that was never bound holds no
    state, so nothing has to run for it: then it is back in its line at once.
    """
    is_bound = request.phase is not Phase.INITIALIZING or request.stages[0] not in BINDING_KINDS
    request.move(Event.PREEMPT, state.version)
    request.terminal_since_ns = request.leaving_since_ns
    state.preemptions += 1
    request.preemptions += 1
    if not is_bound:
        requeue(state, request)
        return
    keep_retired(state, request)
    request.stages = ()


def requeue(state: State, request: Request) -> None:
    """Put a retired request whose response goes on at the head of its tenant's line.

    What it has produced becomes part of the prompt that it replays; prices, counters and estimates
    stay.
    """
    publish_armed(state, request)
    give_back(state, request)
    request.saved = state.history.take(request.row)
    leave_row(state, request)
    request.move(Event.REQUEUE, state.version)
    request.is_leaving = False
    request.prompt_tokens = request.spec.prompt_tokens + request.output_count
    request.prompt_done = 0
    request.window = None
    request.stops = request.spec.boundaries
    state.table.waiting.push_front(request)
