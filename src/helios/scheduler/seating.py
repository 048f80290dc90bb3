"""Who is resident: seating waiting requests, dropping them, and giving back what they owned."""

from __future__ import annotations

from helios.scheduler.catalog import ProposalSource
from helios.scheduler.errors import InvalidRequestError, PhaseError
from helios.scheduler.lifecycle import Event, next_phase
from helios.scheduler.records import Phase, RequestHandle
from helios.scheduler.requests import NO_PAGES, Request
from helios.scheduler.stages import begin_stages, needs_private_row
from helios.scheduler.state import State


def seat_waiting(state: State) -> None:
    """Make requests resident, tenant by tenant in turn, while a first one in line fits."""
    waiting, pool = state.table.waiting, state.pool

    def fits(request: Request) -> bool:
        return _can_seat(state, request)

    while waiting and pool.rows_free and (request := waiting.take(fits)) is not None:
        request.row, request.pages = pool.reserve(pool.pages_of(request.spec))
        state.history.reset(request.row)
        if needs_private_row(request.spec, pool.config):
            request.snapshot_row = pool.take_snapshot()
        request.move(Event.SEAT, state.version)
        begin_stages(request, pool.config.feature_rows)
        request.served_ns = state.now_ns
        state.table.resident.append(request)


def _can_seat(state: State, request: Request) -> bool:
    pool, spec = state.pool, request.spec
    if not pool.can_reserve(pool.pages_of(spec)):
        return False
    return pool.snapshots_free > 0 or not needs_private_row(spec, pool.config)


def finish(state: State, handle: RequestHandle) -> None:
    """End a decoding request that met a stop string; see `Scheduler.finish`."""
    request = state.table.live(handle)
    if next_phase(request.phase, Event.FINISH) is request.phase:
        return
    state.version += 1
    request.move(Event.FINISH, state.version)
    request.terminal_since_ns = state.now_ns


def supply_copies(state: State, handle: RequestHandle, count: int) -> None:
    """Note how long a prefix the host can copy; see `Scheduler.supply_copies`."""
    request = state.table.live(handle)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidRequestError(f"copies must be a nonnegative integer, not {count!r}")
    if not any(graph.source is ProposalSource.COPY for graph in state.catalog.graphs):
        raise InvalidRequestError("copies: the catalog has no graph that takes copied proposals")
    if request.phase is not Phase.DECODE:
        raise PhaseError(f"{handle}: copies follow a pending token, not phase {request.phase.name}")
    if request.queued:
        raise PhaseError(f"{handle}: its pending token is unknown while a frame of it is in flight")
    if request.copies == count:
        return
    state.version += 1
    request.copies = count
    # A plan with a longer prefix than is left must not be submitted any more.
    request.epoch = state.version


def cancel(state: State, handle: RequestHandle) -> None:
    """Drop a request; see `Scheduler.cancel`."""
    request = state.table.live(handle)
    if next_phase(request.phase, Event.CANCEL) is request.phase:
        return
    state.version += 1
    if request.phase is Phase.WAITING:
        state.table.waiting.remove(request)
        request.move(Event.CANCEL, state.version)
        state.table.free_slot(request)
    else:
        request.move(Event.CANCEL, state.version)
        release_drained(state, request)
    seat_waiting(state)


def release_drained(state: State, request: Request) -> None:
    """Release a cancelled request that no submitted frame holds any more."""
    if request.phase is Phase.DRAINING and request.queued == 0:
        release(state, request, Event.DRAINED)


def release(state: State, request: Request, event: Event) -> None:
    """Give back the row and pages of a request and let its slot be issued again."""
    request.move(event, state.version)
    state.pool.release(request.row, request.pages)
    request.pages = NO_PAGES
    if request.snapshot_row >= 0:
        state.pool.free_snapshot(request.snapshot_row)
        request.snapshot_row = -1
    state.table.resident.remove(request)
    state.table.free_slot(request)
