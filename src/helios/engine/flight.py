"""Flight: a submitted frame together with what the engine must remember until it completes."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Final

from helios.engine.requests import LiveRequest
from helios.scheduler import Fence, ProposalSource, RequestHandle, ScheduledPlan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One frame in flight; lane i of the plan belongs to request i."""

    fence: Fence
    plan: ScheduledPlan
    requests: tuple[LiveRequest, ...]
    follows_idle: bool
    """Nobody waited for this frame while its predecessor's end lay behind."""
    runs_ahead: bool = False
    """Another frame was in flight when it was submitted."""


GAPS: Final = 9
"""Last gaps whose median is the usual one."""


class FeedbackWaits:
    """How long the device waits for frames that need the completion before them, beyond the usual.

    Frames that run ahead have a gap before them, too: where the host is slower than the device
    nearly as long a one, and then a wait for feedback costs nothing more.
    """

    __slots__ = ("_usual_ns",)

    def __init__(self) -> None:
        self._usual_ns: deque[int] = deque(maxlen=GAPS)

    def wait_ns(self, flight: Flight, gap_ns: int) -> int:
        """Return what of the gap before a frame is the price of its copies; zero for all others.

        Copies follow a token that must be known, so nothing can be queued before their frame. Zero
        too before any frame has run ahead: then nothing is known of what it would have saved.
        """
        if flight.follows_idle:
            return 0
        if flight.runs_ahead:
            self._usual_ns.append(gap_ns)
            return 0
        if flight.plan.graph.source is not ProposalSource.COPY or not self._usual_ns:
            return 0
        return max(0, gap_ns - sorted(self._usual_ns)[len(self._usual_ns) // 2])


class Roster:
    """The live requests, by the client's id and by the scheduler's handle.

    A request leaves when its closing event is decided, which may be before its last frame ends:
    frames in flight keep the LiveRequest itself, so a reused id or slot is never confused with it.
    """

    __slots__ = ("_by_handle", "_by_id")

    def __init__(self) -> None:
        self._by_id: dict[str, LiveRequest] = {}
        self._by_handle: dict[RequestHandle, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, request: LiveRequest) -> None:
        """Enter a request whose id and handle are not in use."""
        assert request.request_id not in self._by_id
        assert request.handle not in self._by_handle
        self._by_id[request.request_id] = request
        self._by_handle[request.handle] = request

    def remove(self, request: LiveRequest) -> None:
        """Take out a request that is in the roster."""
        del self._by_id[request.request_id]
        del self._by_handle[request.handle]

    def with_id(self, request_id: str) -> LiveRequest | None:
        """Return the live request of a client's id."""
        return self._by_id.get(request_id)

    def with_handle(self, handle: RequestHandle) -> LiveRequest | None:
        """Return the live request of a handle."""
        return self._by_handle.get(handle)

    def with_handles(self, handles: Iterable[RequestHandle]) -> tuple[LiveRequest, ...]:
        """Return the live requests of handles, in order. Raises KeyError for one that is not."""
        return tuple(map(self._by_handle.__getitem__, handles))

    def all(self) -> tuple[LiveRequest, ...]:
        """Return every live request in arrival order."""
        return tuple(self._by_id.values())
