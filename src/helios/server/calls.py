"""What is going on inside the HTTP process: calls, their bounds, and draining.

Rule of this file: counts go up and down in one place, so that what a drain waits for is exactly
what was let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator

from helios.engine.backend import EngineBackend
from helios.engine.messages import Ready
from helios.server.config import ServerConfig
from helios.server.errors import ApiError, unavailable


@dataclasses.dataclass(slots=True)
class Call:
    """One HTTP request, as the access log and the metrics will tell of it."""

    request_id: str
    started_ns: int
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_token_ns: int = 0
    """Zero while no token came."""
    outcome: str = ""
    """Set where the status alone does not say it: cancelled, stalled, failed."""

    def saw_token(self, now_ns: int) -> None:
        """Note the first output."""
        if self.first_token_ns == 0:
            self.first_token_ns = now_ns


class Admission:
    """Bounds and counts the inference requests inside the process."""

    def __init__(self, config: ServerConfig, backend: EngineBackend) -> None:
        self._config = config
        self._backend = backend
        self._requests = 0
        self._buffered_bytes = 0
        self._seen_ready = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def requests(self) -> int:
        """Inference requests that are being answered, queued ones included."""
        return self._requests

    @property
    def state(self) -> str:
        """Return starting, ready, draining or down."""
        is_loaded = self._is_loaded()
        if self.draining:
            return "draining"
        if is_loaded:
            return "ready"
        return "down" if self._seen_ready else "starting"

    def _is_loaded(self) -> bool:
        """Return whether there is an engine now, and remember that there was one."""
        is_loaded = self._backend.ready is not None
        self._seen_ready = self._seen_ready or is_loaded
        return is_loaded

    def engine(self) -> Ready:
        """Return the engine's greeting. Raises ApiError (503) unless the state is ready."""
        if self.draining:
            raise self._unavailable(
                "draining", "the server is shutting down and takes no new requests"
            )
        return self.loaded()

    def loaded(self) -> Ready:
        """Return the engine's greeting to a request that was counted before a drain began too.

        Raises ApiError (503) while there is no engine.
        """
        if self._is_loaded() and (ready := self._backend.ready) is not None:
            return ready
        if self._seen_ready:
            message = "the engine is down; it is being restarted if it can be"
            raise self._unavailable("down", message)
        raise self._unavailable("starting", "the engine is starting")

    def _unavailable(self, state: str, message: str) -> ApiError:
        """Return the refusal of this moment."""
        return unavailable(
            message, code=f"engine_{state}", retry_after_s=self._config.retry_after_s
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Count one request. Raises ApiError (503) when there is no room, before counting it."""
        self.engine()
        if self._requests >= self._config.max_requests:
            raise unavailable(
                f"{self._requests} requests are being answered or queued, which is the limit",
                code="server_busy",
                retry_after_s=self._config.retry_after_s,
            )
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if self._requests == 0:
                self._idle.set()

    @contextlib.contextmanager
    def buffered(self, size_bytes: int) -> Iterator[None]:
        """Account for a body that stays in memory while its request is answered.

        Raises ApiError (503) when all bodies together would be too large.
        """
        if self._buffered_bytes + size_bytes > self._config.max_buffered_bytes:
            raise unavailable(
                "the requests that are being answered fill the memory that bodies may take",
                code="server_busy",
                retry_after_s=self._config.retry_after_s,
            )
        self._buffered_bytes += size_bytes
        try:
            yield
        finally:
            self._buffered_bytes -= size_bytes

    async def drained(self) -> None:
        """Refuse new requests from now on and return when none is left."""
        self.draining = True
        await self._idle.wait()
