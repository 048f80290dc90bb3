"""Who is resident: seating waiting requests, dropping them, and giving back what they owned."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from helios.scheduler.capture import (
    begin,
    forget_retired,
    give_back,
    note_demand,
    publish_armed,
    resume_point,
    source_of,
)
from helios.scheduler.catalog import ProposalSource
from helios.scheduler.checkpoints import Checkpoint
from helios.scheduler.checks import check_integer
from helios.scheduler.errors import InvalidRequestError, PhaseError
from helios.scheduler.lifecycle import Event, next_phase
from helios.scheduler.paging import fits, leave_row, pages_to_seat, redraw, requeue
from helios.scheduler.records import Phase, RequestHandle
from helios.scheduler.requests import NO_PAGES, Request
from helios.scheduler.stages import begin_stages, needs_private_row
from helios.scheduler.state import State


class Seat(NamedTuple):
    """What a waiting request would be seated with."""

    source: Checkpoint | None
    """The state that it resumes from."""
    page_count: int
    """Pages that it would own, those shared with its source included."""


def seat_waiting(state: State) -> None:
    """Make requests resident, tenant by tenant in turn, while a first one in line fits.

    It ends, because who fits sends nobody back: beside the pages it is seated with, the least of
    every generating request and the rest of every prompt are there (`paging.fits`), and the budget
    gives those before it lets anybody go further.
    """
    redraw(state)
    waiting = state.table.waiting

    while waiting and state.pool.rows_free:
        request = waiting.take(_turns(state))
        if request is None:
            return
        seat = seat_of(state, request)
        assert seat is not None
        _take_seat(state, request, seat)
        redraw(state)


def _turns(state: State) -> Callable[[Request], bool]:
    """Return what tells, first in turn first, whether a request fits and may have its turn.

    Behind a preempted request that does not fit nobody gets one, whatever the tenant: it needs the
    pages of its whole replay at once, and would never find them while others take each that is
    given back. A tenant that was served less is asked before it.
    """
    is_held = False

    def fits_now(request: Request) -> bool:
        nonlocal is_held
        if is_held:
            return False
        if seat_of(state, request) is not None:
            return True
        is_held = request.preemptions > 0
        return False

    return fits_now


def seat_of(state: State, request: Request) -> Seat | None:
    """Return what a waiting request is seated with now; None when it does not fit."""
    pool, source = state.pool, source_of(state, request)
    needs_row = needs_private_row(request.spec, pool.config)
    if needs_row:
        within_reach = state.store.rows_within_reach
        if within_reach == 0:
            return None
        if source is not None and source.snapshot_row >= 0 and not source.pins:
            # Its source may hold the only row that its windows could have; they come first.
            source = source if within_reach > 1 else None
    resumed = 0 if source is None else resume_point(state, request, source)
    seat = Seat(source, pages_to_seat(state, request, resumed))
    return seat if fits(state, seat.source, seat.page_count, resumed) else None


def _take_seat(state: State, request: Request, seat: Seat) -> None:
    pool, store, source = state.pool, state.store, seat.source
    begin(state, request, source)
    shared = NO_PAGES
    if source is not None:
        shared = source.pages[: request.resumed_tokens // pool.config.page_size_tokens]
    pool.use(shared)
    new_pages = seat.page_count - len(shared)
    store.make_room(new_pages)
    request.row, pages = pool.reserve(new_pages)
    request.pages = shared + pages if shared else pages
    if request.saved is None:
        state.history.reset(request.row)
    else:
        state.history.put(request.row, request.saved)
        request.saved = None
    if needs_private_row(request.spec, pool.config):
        row = store.obtain_mandatory()
        assert row is not None
        request.snapshot_row = row
    request.move(Event.SEAT, state.version)
    is_restored = source is not None and source.snapshot_row >= 0
    begin_stages(request, pool.config.feature_rows, is_restored=is_restored)
    note_demand(state, request.spec.endpoints)
    request.served_ns = state.now_ns
    state.table.resident.append(request)


def finish(state: State, handle: RequestHandle) -> None:
    """End a request that met a stop string; see `Scheduler.finish`."""
    request = state.table.live(handle)
    # A preempted request has produced output, whatever it waits for or replays now.
    event = Event.FINISH_PREEMPTED if request.preemptions else Event.FINISH
    if next_phase(request.phase, event) is request.phase and not request.is_leaving:
        return
    state.version += 1
    if request.phase is Phase.WAITING:
        _leave_line(state, request, event)
        seat_waiting(state)
        return
    if request.phase is not Phase.TERMINAL:
        request.terminal_since_ns = state.now_ns
    request.move(event, state.version)
    request.is_leaving = False
    request.stages = ()
    if request.keeping is not None:
        # What its submitted lanes still produce is dropped, but their state is in its row.
        request.keeping.overran = request.queued > 0
    redraw(state)


def supply_copies(state: State, handle: RequestHandle, count: int) -> None:
    """Note how long a prefix the host can copy; see `Scheduler.supply_copies`."""
    request = state.table.live(handle)
    check_integer(InvalidRequestError, "copies", count, least=0)
    if not any(graph.source is ProposalSource.COPY for graph in state.catalog.graphs):
        raise InvalidRequestError("copies: the catalog has no graph that takes copied proposals")
    if request.phase is not Phase.DECODE:
        raise PhaseError(f"{handle}: copies follow a pending token, not phase {request.phase.name}")
    if request.copies == count:
        return
    state.version += 1
    request.copies = count
    # A plan with a longer prefix than is left must not be submitted any more. A supply while a
    # frame of the request is in flight is a forecast: it makes programs with copies compete, and no
    # plan of theirs is submitted before that frame's completion has withdrawn it.
    request.epoch = state.version


def cancel(state: State, handle: RequestHandle) -> None:
    """Drop a request; see `Scheduler.cancel`."""
    request = state.table.live(handle)
    if next_phase(request.phase, Event.CANCEL) is request.phase:
        return
    state.version += 1
    if request.phase is Phase.WAITING:
        _leave_line(state, request, Event.CANCEL)
    else:
        request.is_leaving = False
        request.move(Event.CANCEL, state.version)
        release_drained(state, request)
    seat_waiting(state)


def release_drained(state: State, request: Request) -> None:
    """Release a cancelled request that no submitted frame holds any more."""
    if request.phase is Phase.DRAINING and request.queued == 0:
        release(state, request, Event.DRAINED)


def _leave_line(state: State, request: Request, event: Event) -> None:
    """Drop a request that waits, for the first time or after a preemption."""
    state.table.waiting.remove(request)
    request.move(event, state.version)
    forget_retired(state, request)
    state.table.free_slot(request)


def release(state: State, request: Request, event: Event) -> None:
    """Give back the row and pages of a request and let its slot be issued again."""
    request.move(event, state.version)
    if request.keeping is not None:
        give_back(state, request)
        forget_retired(state, request)
    leave_row(state, request)
    state.table.free_slot(request)


def retire(state: State, request: Request) -> None:
    """Settle a completed retirement: the request is over, or waits again after a preemption.

    A state that was to be kept has been copied by now, because its row leaves by SNAPSHOT alone.
    """
    if request.is_leaving:
        requeue(state, request)
        return
    publish_armed(state, request)
    release(state, request, Event.RETIRED)
