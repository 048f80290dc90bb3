"""uvicorn's HTTP parser with a bounded head, and with disconnects that reach every request.

What is added: a request head of unlimited length would fill memory before anything here sees it; a
client that sends a second request ahead of its answer would hide its leaving from the first.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from helios.server.errors import ApiError

MAX_HEAD_BYTES: Final = 64 * 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = False
    _head_bytes = 0
    _answering: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        was_in_head = self._in_head
        super().data_received(data)
        # Bytes that come with the end of an earlier message are not counted: one read at most.
        if was_in_head and self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the request's head is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that the head is complete."""
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the shape of every other refusal."""
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        body = ApiError(status, message).body()
        head = (
            b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._answering = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, also when a later one was already read."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
