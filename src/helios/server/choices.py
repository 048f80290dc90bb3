"""The event streams of one HTTP request, one per choice, merged in order of arrival.

Leaving the context closes every stream, which cancels what is still running in the engine. At most
a fixed number of events waits for a slow reader; beyond it the engine link is left unread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from helios.engine.backend import EngineUnavailableError
from helios.engine.messages import Delta, EngineEvent, Finished, PromptLogprobs, Rejected, Submit
from helios.server.errors import invalid, unavailable

SubmitCall = Callable[[Submit], AsyncIterator[EngineEvent]]
ChoiceEvent = Delta | PromptLogprobs | Finished


class ChoiceStreams:
    """Async context manager over the streams of `submits`; choice i is submits[i]."""

    def __init__(
        self,
        submit: SubmitCall,
        submits: Sequence[Submit],
        *,
        buffer_events: int,
        retry_after_s: int,
    ) -> None:
        self._submit = submit
        self._submits = submits
        self._retry_after_s = retry_after_s
        self._queue: asyncio.Queue[tuple[int, EngineEvent | Exception]] = asyncio.Queue(
            buffer_events
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._open = len(submits)

    async def __aenter__(self) -> ChoiceStreams:
        self._tasks = [
            asyncio.create_task(self._pump(index, submit))
            for index, submit in enumerate(self._submits)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def batch(self) -> list[tuple[int, ChoiceEvent]]:
        """Return what has arrived, at least one event; empty when every choice has finished.

        Raises ApiError when a choice was refused or failed.
        """
        if self._open == 0:
            return []
        arrived = [await self._queue.get()]
        while not self._queue.empty():
            arrived.append(self._queue.get_nowait())
        return [(index, self._checked(event)) for index, event in arrived]

    def _checked(self, event: EngineEvent | Exception) -> ChoiceEvent:
        if isinstance(event, Delta | PromptLogprobs):
            return event
        if isinstance(event, Finished) and event.reason in {"stop", "length"}:
            self._open -= 1
            return event
        raise self._failure(event)

    def _failure(self, event: EngineEvent | Exception) -> Exception:
        if isinstance(event, Rejected):
            if event.code == "invalid_request":
                return invalid(event.message, event.param)
            return unavailable(event.message, code=event.code, retry_after_s=self._retry_after_s)
        if isinstance(event, EngineUnavailableError):
            return unavailable(
                "the engine is not up", code="engine_down", retry_after_s=self._retry_after_s
            )
        if isinstance(event, Finished) and event.reason == "cancelled":
            return unavailable(
                "the server cancelled the request",
                code="cancelled",
                retry_after_s=self._retry_after_s,
            )
        if isinstance(event, Finished):
            return EngineFailedError(event.error or "the engine gave no reason")
        return event if isinstance(event, Exception) else EngineFailedError(f"sent {event!r}")

    async def _pump(self, index: int, submit: Submit) -> None:
        events: AsyncIterator[EngineEvent] | None = None
        ended = False
        try:
            events = self._submit(submit)
            async for event in events:
                ended = isinstance(event, Finished | Rejected)
                await self._queue.put((index, event))
            if not ended:
                await self._queue.put((index, EngineFailedError("the stream broke off")))
        except Exception as error:  # noqa: BLE001 - the reader of the queue raises it
            await self._queue.put((index, error))
        finally:
            if events is not None:
                await close(events)


class EngineFailedError(Exception):
    """The engine failed while it worked on a request; the text is for the log."""


async def close(events: AsyncIterator[EngineEvent]) -> None:
    """Close an event iterator, which cancels its request unless it has ended."""
    with contextlib.suppress(EngineUnavailableError):
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()
