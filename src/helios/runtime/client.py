"""EngineClient: the asyncio side of an engine process; implements EngineBackend.

Every stream ends: with the engine's Finished or Rejected, or with an error when the engine dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from helios.engine.backend import EngineUnavailableError
from helios.engine.messages import (
    Cancel,
    Drain,
    EngineEvent,
    Finished,
    Ready,
    Rejected,
    Stats,
    StatsRequest,
    Submit,
)
from helios.runtime.settings import EngineSettings
from helios.runtime.supervisor import EngineStartError, EngineSupervisor

__all__ = ["EngineClient", "EngineStartError"]

STATS_TIMEOUT_S: Final = 10.0


class EngineClient:
    """Submits requests to the engine process and hands each its own events.

    Not thread-safe: use it on the event loop that started it. Request ids must be unique among
    the requests that were ever sent to one engine and may still be running.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._supervisor = EngineSupervisor(settings, self)
        self._streams: dict[str, asyncio.Queue[EngineEvent]] = {}
        self._stats_waiters: list[asyncio.Future[Stats]] = []
        self._ready: Ready | None = None

    @classmethod
    async def start(cls, settings: EngineSettings) -> EngineClient:
        """Start the engine process; return when it is ready.

        Raises EngineStartError with the reason that the process gave.
        """
        client = cls(settings)
        await client._supervisor.start()
        return client

    @property
    def ready(self) -> Ready | None:
        """The engine's greeting, or None while it is not up."""
        return self._ready

    @property
    def state(self) -> str:
        """One of starting, up, restarting, draining, failed and closed."""
        return self._supervisor.state

    @property
    def last_error(self) -> str | None:
        """Why the engine last went down, or None."""
        return self._supervisor.last_error

    @property
    def restarts(self) -> int:
        """How often a failed engine was started again."""
        return self._supervisor.restarts

    async def submit(self, request: Submit) -> AsyncGenerator[EngineEvent, None]:
        """Send a request and yield its events; ends after Finished or Rejected.

        Closing the generator early cancels the request. When the engine dies it yields
        `Finished(reason="error")`. Raises EngineUnavailableError before the first event when the
        engine is not up.

        What a slow reader has not taken yet is bounded by the request's own output limit.
        """
        request_id = request.request_id
        if request_id in self._streams:
            yield Rejected(
                request_id=request_id,
                code="invalid_request",
                message=f"a request with the id {request_id} is running",
                param="request_id",
            )
            return
        self._supervisor.send(request)
        queue: asyncio.Queue[EngineEvent] = asyncio.Queue()
        self._streams[request_id] = queue
        ended = False
        try:
            while not ended:
                event = await queue.get()
                ended = isinstance(event, Finished | Rejected)
                yield event
        finally:
            del self._streams[request_id]
            if not ended:
                # The engine may be gone by now, and then there is nothing to cancel.
                with contextlib.suppress(EngineUnavailableError):
                    self._supervisor.send(Cancel(request_id=request_id))

    async def stats(self) -> Stats:
        """Return a snapshot. Raises EngineUnavailableError."""
        self._supervisor.send(StatsRequest())
        waiter: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._stats_waiters.append(waiter)
        try:
            return await asyncio.wait_for(waiter, STATS_TIMEOUT_S)
        except TimeoutError as error:
            raise EngineUnavailableError(
                f"the engine did not answer within {STATS_TIMEOUT_S:g} s"
            ) from error

    async def drain(self) -> None:
        """Stop accepting requests; return when the running ones have finished and it has exited."""
        if self.state == "up":
            self._supervisor.send(Drain())
            self._supervisor.expect_exit()
        if self.state == "draining":
            await self._supervisor.wait_exited()

    async def close(self) -> None:
        """Stop the engine now; requests in flight end with an error. Idempotent."""
        await self._supervisor.close()

    def on_up(self, ready: Ready) -> None:
        """Take the greeting of a new engine process."""
        self._ready = ready

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        """Hand every event to its stream; events of closed streams are dropped."""
        for event in events:
            if isinstance(event, Stats):
                self._answer_stats(event)
            elif not isinstance(event, Ready):
                queue = self._streams.get(event.request_id)
                if queue is not None:
                    queue.put_nowait(event)

    def on_down(self, error: str | None) -> None:
        """End every stream and every waiting snapshot."""
        self._ready = None
        message = error or "the engine was stopped"
        for request_id, queue in self._streams.items():
            queue.put_nowait(
                Finished(
                    request_id=request_id,
                    reason="error",
                    prompt_tokens=0,
                    output_tokens=0,
                    error=message,
                )
            )
        waiters, self._stats_waiters = self._stats_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(EngineUnavailableError(message))

    def _answer_stats(self, stats: Stats) -> None:
        """Answer the oldest request for a snapshot; the engine answers in order."""
        if self._stats_waiters:
            waiter = self._stats_waiters.pop(0)
            if not waiter.done():
                waiter.set_result(stats)
