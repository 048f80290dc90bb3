"""An engine that is still being started while the port is already open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from helios.engine.backend import EngineBackend, EngineUnavailableError
from helios.engine.messages import EngineEvent, Ready, Stats, Submit


class StartingBackend:
    """EngineBackend that is not ready until `start` has made the real one."""

    def __init__(self, make: Callable[[], Awaitable[EngineBackend]]) -> None:
        self._make = make
        self._engine: EngineBackend | None = None

    async def start(self) -> None:
        """Make the engine; raises what the maker raises."""
        self._engine = await self._make()

    @property
    def ready(self) -> Ready | None:
        """The engine's greeting."""
        return None if self._engine is None else self._engine.ready

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return int(getattr(self._engine, "restarts", 0))

    def submit(self, request: Submit) -> AsyncIterator[EngineEvent]:
        """Pass the request on. Raises EngineUnavailableError while there is no engine."""
        return self._started().submit(request)

    async def stats(self) -> Stats:
        """Return the engine's snapshot. Raises EngineUnavailableError."""
        return await self._started().stats()

    async def drain(self) -> None:
        """Drain the engine; nothing to do while there is none."""
        if self._engine is not None:
            await self._engine.drain()

    async def close(self) -> None:
        """Stop the engine; nothing to do while there is none."""
        if self._engine is not None:
            await self._engine.close()

    def _started(self) -> EngineBackend:
        if self._engine is None:
            raise EngineUnavailableError("the engine is starting")
        return self._engine
