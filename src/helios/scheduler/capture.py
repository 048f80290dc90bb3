"""Keeping states of requests and resuming from them: what seating and settlement do about it.

    seat: resume from the deepest state | prefill to the next cut | SNAPSHOT | ... | decode | retire
                                                                   `- publish        `- terminal
Functions over `State`; the rules are those of docs/design/scheduling-runtime.md section 5.
"""

from __future__ import annotations

from helios.scheduler.catalog import GraphKind
from helios.scheduler.checkpoints import NO_ROW, Checkpoint, CheckpointState, Role
from helios.scheduler.images import index_around
from helios.scheduler.lifecycle import Event
from helios.scheduler.records import Endpoint, Phase
from helios.scheduler.requests import Request
from helios.scheduler.retention import Cut, Keeping, MeasuredShape, PrefillWork, choose_cuts
from helios.scheduler.stages import begin_boundary, is_at_boundary, prefill_kind
from helios.scheduler.state import State

# Resuming -----------------------------------------------------------------------------------------


def note_demand(state: State, endpoints: tuple[Endpoint, ...]) -> None:
    """Note that a request asks for these prefixes now."""
    if endpoints:
        state.store.demand(endpoints, state.now_ns)


def source_of(state: State, request: Request) -> Checkpoint | None:
    """Return the state that a request about to be seated resumes from; None for a fresh start.

    A scored prompt is consumed whole, because the log-probability of every token is wanted.
    """
    if request.spec.scored:
        return None
    found = state.store.deepest(request.spec.endpoints, request.prompt_tokens)
    own = request.retired_state
    if (
        own is not None
        and own.state is CheckpointState.PUBLISHED
        and (found is None or state.store.resume_at(found) <= state.store.resume_at(own))
    ):
        found = own
    if found is None or resume_point(state, request, found) == 0:
        return None
    return found


def resume_point(state: State, request: Request, source: Checkpoint) -> int:
    """Return how many tokens of the request need not be computed after resuming from `source`.

    A page may end inside an image, which one chunk must consume whole: then an earlier page counts.
    """
    point = state.store.resume_at(source)
    if source.snapshot_row != NO_ROW:
        return point
    size, images = state.pool.config.page_size_tokens, request.spec.images
    while (inside := index_around(images, point)) is not None:
        point = images[inside].start // size * size
    return point


def begin(state: State, request: Request, source: Checkpoint | None) -> None:
    """Bind a seated request to the state that it resumes from, and choose what to keep of it."""
    point = 0 if source is None else resume_point(state, request, source)
    request.prompt_done = request.resumed_tokens = point
    if source is not None and source.snapshot_row != NO_ROW:
        request.transfer_row = source.snapshot_row
    if not request.spec.endpoints and source is None:
        return
    keeping = request.keeping = request.keeping or Keeping()
    keeping.demand_ns = state.now_ns
    if source is None:
        state.store.misses += 1
    else:
        state.store.hits += 1
        state.store.restored_tokens += point
        if source.snapshot_row != NO_ROW:
            state.store.pin(source)
            keeping.source = source
    keeping.cuts = _chosen_cuts(state, request)
    if any(cut.role is Role.ANCHOR for cut in keeping.cuts) and state.keeps_rows:
        keeping.guard = state.store.guard()
    set_stops(state, request)


def _chosen_cuts(state: State, request: Request) -> tuple[Cut, ...]:
    if not (state.keeps_rows or state.pool.config.page_prefixes):
        return ()
    return choose_cuts(
        request.spec.endpoints,
        prompt_tokens=request.prompt_tokens,
        resumed_tokens=request.prompt_done,
        is_known=state.store.is_known,
        work=PrefillWork(_measured_prefills(state, request)),
        copy_ms=copy_ms(state, request.prompt_tokens),
        fraction=state.policy.checkpoint_extra_work_fraction,
        is_free=state.pool.config.page_prefixes,
    )


def _measured_prefills(state: State, request: Request) -> list[MeasuredShape]:
    costs, cached = state.costs, float(request.prompt_done)
    return [
        (capacity, costs.durations_ms[costs.entry_of(index, cached)])
        for index, capacity in state.shapes.by_kind[prefill_kind(request)]
    ]


def copy_ms(state: State, tokens: int) -> float:
    """Return the shortest fresh estimate of a snapshot of a state of that many tokens.

    Zero while none is known and fresh.
    """
    costs, now_ns = state.costs, state.now_ns
    shapes = state.shapes.by_kind[GraphKind.SNAPSHOT]
    entries = [costs.entry_of(index, float(tokens)) for index, _ in shapes]
    return min(
        (
            costs.durations_ms[entry]
            for entry in entries
            if costs.durations_ms[entry] > 0.0 and costs.is_fresh(entry, now_ns)
        ),
        default=0.0,
    )


# Cuts ---------------------------------------------------------------------------------------------


def set_stops(state: State, request: Request) -> None:
    """Let prefill stop at the request's boundaries and at the cuts that can still be kept.

    An extra cut stays only while a destination for its copy is within reach and its cost is known.
    """
    keeping = request.keeping
    if keeping is None or state.pool.config.page_prefixes:
        return
    kept = tuple(cut for cut in keeping.cuts if _is_wanted(state, request, cut))
    state.store.skipped += len(keeping.cuts) - len(kept)
    keeping.cuts = kept
    cuts = [cut.tokens for cut in kept if cut.tokens < request.prompt_tokens]
    # A dict keeps each position once and needs no hash order: positions are sorted right after.
    request.stops = tuple(sorted(dict.fromkeys([*request.spec.boundaries, *cuts])))


def _is_wanted(state: State, request: Request, cut: Cut) -> bool:
    keeping = request.keeping
    assert keeping is not None
    if not cut.role.is_extra:
        return True
    rank = state.store.rank_of(cut.role, cut.tokens, keeping.demand_ns)
    return copy_ms(state, cut.tokens) > 0.0 and state.store.can_obtain(rank)


def after_progress(state: State, request: Request) -> None:
    """Start the capture of a request whose completed frame ended at one of its cuts."""
    keeping = request.keeping
    if keeping is None or not keeping.cuts or request.stages:
        return
    if state.pool.config.page_prefixes:
        _publish_passed(state, request, keeping)
        return
    cut, *later = keeping.cuts
    if request.prompt_done >= cut.tokens:
        keeping.cuts = tuple(later)
        if request.prompt_done == cut.tokens:
            _start_capture(state, request, keeping, cut)
    if not request.stages and request.phase is Phase.PREFILL:
        set_stops(state, request)


def _publish_passed(state: State, request: Request, keeping: Keeping) -> None:
    """Publish what pages alone hold: no cut and no copy are needed, so it costs nothing."""
    size = state.pool.config.page_size_tokens
    passed = [cut for cut in keeping.cuts if cut.tokens <= request.prompt_done]
    keeping.cuts = keeping.cuts[len(passed) :]
    for cut in passed:
        if cut.tokens >= size and not state.store.is_known(cut.key):
            made = state.store.arm(
                cut.key, cut.tokens, cut.role, snapshot_row=NO_ROW, demand_ns=keeping.demand_ns
            )
            state.store.publish(made, request.pages[: cut.tokens // size])


def _start_capture(state: State, request: Request, keeping: Keeping, cut: Cut) -> None:
    """Arm a destination and let the copy come before the request's next inference.

    An extra whose cost has expired since its cut was dispatched is skipped, split or not.
    """
    guard = keeping.guard if cut.role is Role.ANCHOR else None
    row = None
    if not state.store.is_known(cut.key) and (
        not cut.role.is_extra or copy_ms(state, cut.tokens) > 0.0
    ):
        rank = state.store.rank_of(cut.role, cut.tokens, keeping.demand_ns)
        row = state.store.obtain(rank, guard)
    if guard is not None:
        state.store.unguard(guard)
        keeping.guard = None
    if row is None:
        state.store.skipped += 1
        return
    _arm(state, request, keeping, cut, row)
    if request.phase is Phase.TERMINAL:
        return
    if is_at_boundary(request):
        # The window's own copy and what follows it come right behind this one.
        begin_boundary(request, state.pool.config.feature_rows)
    request.stages = (GraphKind.SNAPSHOT, *request.stages)
    if request.phase is Phase.PREFILL:
        request.move(Event.BOUNDARY, state.version)


def _arm(state: State, request: Request, keeping: Keeping, cut: Cut, row: int) -> None:
    keeping.armed = state.store.arm(
        cut.key, cut.tokens, cut.role, snapshot_row=row, demand_ns=keeping.demand_ns
    )
    request.transfer_row = row


# Endings ------------------------------------------------------------------------------------------


def terminal_tokens(request: Request) -> int:
    """Return the tokens in the cache of an ended request; its last output token was never fed."""
    return request.spec.prompt_tokens + max(0, request.output_count - 1)


def offer_terminal(state: State, request: Request, key: bytes) -> bool:
    """Arm the capture of an ended request's state; see `Scheduler.offer_terminal`."""
    keeping, tokens = request.keeping, terminal_tokens(request)
    if keeping is None or keeping.armed is not None or keeping.overran or request.queued:
        return False
    if state.store.is_known(key) or request.is_leaving or not request.output_count:
        return False
    row: int | None = NO_ROW
    state.version += 1
    # The conversation was active until now: what is kept of it is wanted, its end like its anchor.
    keeping.demand_ns = state.now_ns
    state.store.demand(request.spec.endpoints, state.now_ns)
    if not state.pool.config.page_prefixes:
        cost_ms = copy_ms(state, tokens)
        if 0.0 < cost_ms <= keeping.credit_ms:
            row = state.store.obtain(state.store.rank_of(Role.TERMINAL, tokens, state.now_ns))
        else:
            row = None
    if row is None:
        state.store.skipped += 1
        return False
    _arm(state, request, keeping, Cut(tokens, key, Role.TERMINAL, 0.0), row)
    # A retirement planned before this moment would lose the state.
    request.epoch = state.version
    return True


def keep_retired(state: State, request: Request) -> None:
    """Arm a private copy of a preempted request's state, if that costs no eviction.

    A capture of its own that was already under way serves as well: it is found again by its key.
    """
    keeping = request.keeping = request.keeping or Keeping()
    if keeping.armed is not None:
        return
    row = NO_ROW
    if not state.pool.config.page_prefixes:
        if not (state.keeps_rows and state.pool.snapshots_free):
            return
        row = state.pool.take_snapshot()
    keeping.demand_ns = state.now_ns
    tokens = request.position_after(0)
    key = (f"preempted {request.arrival}", request.preemptions)
    _arm(state, request, keeping, Cut(tokens, key, Role.PREEMPTED, 0.0), row)
    request.retired_state = keeping.armed


def finish_copy(state: State, request: Request, kind: GraphKind) -> None:
    """Settle a completed RESTORE or SNAPSHOT of a checkpoint; window snapshots are not ours."""
    keeping = request.keeping
    if keeping is None or request.transfer_row == NO_ROW:
        return
    request.transfer_row = NO_ROW
    if kind is GraphKind.RESTORE and keeping.source is not None:
        state.store.unpin(keeping.source)
        keeping.source = None
    elif kind is GraphKind.SNAPSHOT:
        publish_armed(state, request)


def publish_armed(state: State, request: Request) -> None:
    """Let the state that a request's copy has filled be found, before anyone else is seated."""
    keeping = request.keeping
    if keeping is not None and keeping.armed is not None:
        armed, keeping.armed = keeping.armed, None
        size = state.pool.config.page_size_tokens
        state.store.publish(armed, request.pages[: armed.tokens // size])


def give_back(state: State, request: Request) -> None:
    """Give back what a departing request holds of the store: guard, pin and unfinished copy."""
    keeping = request.keeping
    request.transfer_row = NO_ROW
    if keeping is None:
        return
    if keeping.armed is not None:
        state.store.disarm(keeping.armed)
    if keeping.source is not None:
        state.store.unpin(keeping.source)
    if keeping.guard is not None:
        state.store.unguard(keeping.guard)
    keeping.armed = keeping.source = keeping.guard = None
    keeping.cuts = ()


def forget_retired(state: State, request: Request) -> None:
    """Drop the private state of a preempted request that will not come back for it."""
    if request.retired_state is not None:
        state.store.drop(request.retired_state)
        request.retired_state = None


def earn(state: State, requests: list[Request], interval_ms: float) -> None:
    """Let the requests that a decode frame served earn its share towards a terminal capture.

    They divide the frame, so that what all of them may spend stays the same fraction of the time.
    """
    if not state.keeps_rows or not requests:
        return
    share_ms = state.policy.checkpoint_extra_work_fraction * interval_ms / len(requests)
    for request in requests:
        if request.keeping is not None:
            request.keeping.credit_ms += share_ms
