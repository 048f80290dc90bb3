"""Residents: who has a row, how requests come by it, lose it, and end."""

from __future__ import annotations

from collections.abc import Sequence

from helios.scheduler import Phase, RequestHandle
from scheduling_sim.baselines.memory import Memory
from scheduling_sim.baselines.policy import Lane, Observer
from scheduling_sim.baselines.requests import Request, RequestTable


class Residents:
    """Moves requests between line, row and release; `version` counts what plans depend on."""

    __slots__ = (
        "_is_free",
        "_observer",
        "ended",
        "memory",
        "preemptions",
        "rows",
        "table",
        "unbound",
        "version",
    )

    def __init__(self, memory: Memory, *, is_free: bool, observer: Observer | None) -> None:
        self.memory = memory
        self.table = RequestTable()
        self.rows: dict[RequestHandle, Request] = {}
        """Requests with a row, longest resident first."""
        self.ended: dict[RequestHandle, Request] = {}
        """Of these, who waits for the retirement."""
        self.unbound: dict[RequestHandle, Request] = {}
        """Of these, whose rows no submitted frame has initialised."""
        self.preemptions = 0
        self.version = 0
        self._is_free = is_free
        self._observer = observer

    def seat(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Make waiting requests resident, in order, as long as rows and pages last."""
        seated: list[Lane] = []
        memory = self.memory
        for lane in lanes:
            request = lane.request
            if memory.pages_to_seat(request, memory.hit(request)) > memory.pool.free:
                break
            memory.seat(request)
            self.table.leave_line(request)
            self.rows[request.handle] = request
            self.version += 1
            left = request.target - request.sent
            # A prepared row's prompt gets its pages at once: others are seated before it runs.
            chunk = min(lane.prompt_tokens, left) if self._is_free else left
            for _, count in memory.needs([Lane(request, chunk)]):
                memory.grow(request, count)
            request.phase = Phase.PREFILL if self._is_free else Phase.INITIALIZING
            if not self._is_free:
                self.unbound[request.handle] = request
            if self._observer is not None:
                self._observer.seated(request)
            seated.append(Lane(request, chunk))
        return seated

    def preempt(self, request: Request) -> None:
        """Let a resident without pages wait again; on a prepared catalog its row is retired."""
        self.version += 1
        self.preemptions += 1
        if self._is_free:
            self.memory.give_row(request)
            del self.rows[request.handle]
            request.phase = Phase.WAITING
            self.table.wait_again(request)
        else:
            self.unbound.pop(request.handle, None)
            request.phase, request.is_leaving = Phase.TERMINAL, True
            self.ended[request.handle] = request

    def end(self, request: Request) -> None:
        """End a response: a prepared row keeps what it owns until its retirement.

        Free shape gives pages back at once, and releases at once unless a frame or the offer of
        the state is still to come.
        """
        if request.phase is Phase.WAITING:
            self.table.leave_line(request)
            if request.in_flight == 0:
                self._release(request)
                return
            request.row = self.memory.take_row()
            self.rows[request.handle] = request
        elif self._is_free:
            self.memory.free_pages(request)
        self.unbound.pop(request.handle, None)
        request.phase, request.is_leaving = Phase.TERMINAL, False
        self.ended[request.handle] = request
        if self._is_free and self.memory.cache is None:
            self.leave(request)

    def drop(self, request: Request) -> None:
        """Let a cancelled request go: at once, or after its last frame."""
        if request.phase is Phase.WAITING:
            self.table.leave_line(request)
            self._release(request)
            return
        self.unbound.pop(request.handle, None)
        self.ended.pop(request.handle, None)
        request.is_leaving = False
        request.phase = Phase.DRAINING
        self.leave(request)

    def leave(self, request: Request) -> None:
        """Give back the row of a request whose last frame is done; a preempted one waits again."""
        if request.in_flight or request.phase is Phase.RELEASED:
            return
        if request.pages:
            self.memory.free_pages(request)
        self.ended.pop(request.handle, None)
        del self.rows[request.handle]
        self.memory.give_row(request)
        if request.is_leaving:
            request.is_leaving = False
            request.phase = Phase.WAITING
            self.table.wait_again(request)
        else:
            self._release(request)

    def _release(self, request: Request) -> None:
        self.table.release(request)
        if self._observer is not None:
            self._observer.left(request)
