"""EngineBackend: what the HTTP side needs of an engine, wherever it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from helios.engine.messages import EngineEvent, Ready, Stats, Submit


class EngineUnavailableError(Exception):
    """The engine process is not up (starting, restarting, or gone)."""


class EngineBackend(Protocol):
    """Submit requests and receive their events; implemented by `helios.runtime.client`."""

    @property
    def ready(self) -> Ready | None:
        """The engine's greeting, or None while it is not up."""
        ...

    def submit(self, request: Submit) -> AsyncIterator[EngineEvent]:
        """Send a request; the iterator yields its events and ends after Finished or Rejected.

        Closing the iterator early (client gone) cancels the request. When the engine dies, the
        iterator yields `Finished(reason="error")`. Raises EngineUnavailableError before the first
        event when the engine is not up.
        """
        ...

    async def stats(self) -> Stats:
        """Return a snapshot. Raises EngineUnavailableError."""
        ...

    async def drain(self) -> None:
        """Stop accepting requests and return when everything running has finished."""
        ...

    async def close(self) -> None:
        """Stop the engine now."""
        ...
