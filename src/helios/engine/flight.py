"""Flight: a submitted frame together with what the engine must remember until it completes."""

from __future__ import annotations

import dataclasses

from helios.engine.requests import LiveRequest
from helios.scheduler import Fence, RequestHandle, ScheduledPlan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One frame in flight; lane i of the plan belongs to request i."""

    fence: Fence
    plan: ScheduledPlan
    requests: tuple[LiveRequest, ...]
    follows_idle: bool
    """Nobody waited for this frame while its predecessor's end lay behind."""


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

    def all(self) -> tuple[LiveRequest, ...]:
        """Return every live request in arrival order."""
        return tuple(self._by_id.values())
