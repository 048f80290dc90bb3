"""Request: what a baseline keeps of one request from its admission to its release."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

from helios.scheduler import Phase, RequestHandle, RequestSpec, UnknownHandleError
from scheduling_sim.baselines.pages import KeptPages


class Request:
    """One request. Only the core changes it; policies read."""

    __slots__ = (
        "arrival_ns",
        "decode_base",
        "foretold",
        "handle",
        "has_end_token",
        "in_flight",
        "index",
        "is_leaving",
        "is_wide",
        "kept",
        "max_output",
        "needs_feedback",
        "output_count",
        "page_tuple",
        "pages",
        "phase",
        "queued",
        "row",
        "sent",
        "spec",
        "target",
    )

    def __init__(
        self,
        handle: RequestHandle,
        spec: RequestSpec,
        *,
        index: int,
        arrival_ns: int,
        foretold: int,
    ) -> None:
        self.handle = handle
        self.spec = spec
        self.index = index
        """Number of the admission; a later one arrived later."""
        self.arrival_ns = arrival_ns
        self.foretold = foretold
        """True output length, for policies that are told it; zero for all others."""
        self.phase = Phase.WAITING
        self.row = -1
        self.pages: list[int] = []
        self.page_tuple: tuple[int, ...] | None = None
        self.kept: KeptPages | None = None
        """Pages that it lost in a preemption and may find again."""
        self.target = spec.prompt_tokens
        """Tokens to consume before the next output: the prompt, and outputs to be replayed."""
        self.decode_base = spec.prompt_tokens - 1
        """Tokens in the cache when the first output token is fed, less the outputs before it."""
        self.sent = 0
        """Of these, how many are in the cache once every submitted frame is done."""
        self.output_count = 0
        self.queued = 0
        """Most output tokens that frames in flight can commit."""
        self.in_flight = 0
        self.is_wide = False
        """A round is in flight whose outcome decides the next position."""
        self.is_leaving = False
        """Preempted on a prepared catalog: its row is to be retired before it waits again."""
        self.has_end_token = False
        self.max_output = spec.max_output_tokens
        self.needs_feedback = spec.needs_feedback

    @property
    def tenant(self) -> str:
        """The tenant that it is accounted to."""
        return self.spec.tenant

    @property
    def outputs_left(self) -> int:
        """Output tokens up to the limit that no frame in flight may produce."""
        return self.max_output - self.output_count - self.queued

    @property
    def position(self) -> int:
        """Tokens in the cache when the next frame starts, everything in flight being done."""
        if self.sent < self.target:
            return self.sent
        return self.decode_base + self.output_count + self.queued

    def pages_now(self) -> tuple[int, ...]:
        """Return its pages as a frame takes them."""
        if self.page_tuple is None:
            self.page_tuple = tuple(self.pages)
        return self.page_tuple


class RequestTable:
    """Handles, and the line of those that wait, in order of arrival."""

    __slots__ = ("_free_slots", "_generation", "_slots", "admitted", "waiting")

    def __init__(self) -> None:
        self._slots: list[Request] = []
        self._free_slots: list[int] = []
        self._generation = 0
        self.admitted = 0
        self.waiting: list[Request] = []

    def add(self, spec: RequestSpec, *, arrival_ns: int, foretold: int) -> Request:
        """Take in a request at the end of the line."""
        self._generation += 1
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._slots)
        request = Request(
            RequestHandle(slot, self._generation),
            spec,
            index=self.admitted,
            arrival_ns=arrival_ns,
            foretold=foretold,
        )
        self.admitted += 1
        if slot == len(self._slots):
            self._slots.append(request)
        else:
            self._slots[slot] = request
        self.waiting.append(request)
        return request

    def find(self, handle: RequestHandle) -> Request:
        """Return a request, a released one too until its slot is reissued."""
        slot = handle.slot
        if 0 <= slot < len(self._slots) and self._slots[slot].handle == handle:
            return self._slots[slot]
        raise UnknownHandleError(f"{handle} was never issued, or its generation has passed")

    def live(self, handle: RequestHandle) -> Request:
        """Return a request that is not released."""
        request = self.find(handle)
        if request.phase is Phase.RELEASED:
            raise UnknownHandleError(f"{handle} is released")
        return request

    def wait_again(self, request: Request) -> None:
        """Put a preempted request back where its arrival belongs."""
        insort(self.waiting, request, key=_arrival)

    def leave_line(self, request: Request) -> None:
        """Take a request out of the line."""
        place = bisect_left(self.waiting, request.index, key=_arrival)
        assert self.waiting[place] is request
        del self.waiting[place]

    def release(self, request: Request) -> None:
        """End a request; its slot may be reissued."""
        request.phase = Phase.RELEASED
        heapq.heappush(self._free_slots, request.handle.slot)


def _arrival(request: Request) -> int:
    return request.index
