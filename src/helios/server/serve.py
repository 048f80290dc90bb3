"""Serving an application with uvicorn until a signal asks to stop, then draining it.

The first SIGTERM or SIGINT starts the drain: /health says draining, new requests are refused, what
runs is finished, and the process ends. A second signal, or the end of the drain's time, ends it
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from helios.engine.backend import EngineUnavailableError
from helios.server.protocol import BoundedHttpProtocol
from helios.server.service import Service

_log = logging.getLogger("helios.server")
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_LAST_WORDS_S = 2.0


class AddressError(OSError):
    """The address cannot be listened on; the message says why."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a taken port is told before anything is loaded.

    Port 0 takes any free one. Raises AddressError.
    """
    if not 0 <= port <= 65535:
        raise AddressError(f"cannot listen on port {port}: ports are 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressError(f"cannot listen on {host} port {port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


class DrainingServer(uvicorn.Server):
    """uvicorn, but the first signal drains instead of closing the listening socket."""

    def __init__(self, config: uvicorn.Config, service: Service, *, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._service = service
        self._drain_timeout_s = drain_timeout_s
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until drained or forced."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """React to a signal."""
        del frame
        assert self._loop is not None, "signals are captured only while serving"
        self._loop.call_soon_threadsafe(self._on_signal, signal.Signals(sig).name)

    def _on_signal(self, name: str) -> None:
        if self._drain is None:
            running = self._service.admission.requests
            _log.warning("%s: draining, %d requests are running", name, running)
            self._drain = asyncio.create_task(self._drain_then_exit())
        else:
            _log.warning("%s again: stopping now", name)
            self._drain.cancel()
            self._drain = asyncio.create_task(self._stop_now())

    async def _drain_then_exit(self) -> None:
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await self._service.admission.drained()
                with contextlib.suppress(EngineUnavailableError):
                    await self._service.backend.drain()
        except TimeoutError:
            _log.warning("not drained within %g s: stopping now", self._drain_timeout_s)
            await self._stop_now()
        self.should_exit = True

    async def _stop_now(self) -> None:
        """Stop the engine, which ends every stream with an error, and give those time to leave."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._service.backend.close()
                await self._service.admission.drained()
        self.should_exit = self.force_exit = True


def run(
    app: Starlette,
    listener: socket.socket,
    *,
    drain_timeout_s: float = 30.0,
    on_start: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until a signal; closes the backend and the socket in the end.

    `on_start` runs beside the server once it listens (start the engine there); its failure stops
    the server and is raised.
    """
    factory = _loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(app, listener, drain_timeout_s=drain_timeout_s, on_start=on_start))


async def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    drain_timeout_s: float = 30.0,
    on_start: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """As `run`, inside a running loop."""
    service: Service = app.state.service
    server = DrainingServer(uvicorn_config(app), service, drain_timeout_s=drain_timeout_s)
    starting = None if on_start is None else asyncio.create_task(_start(on_start, server))
    try:
        await server.serve(sockets=[listener])
    finally:
        listener.close()
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await service.backend.close()
        service.encoder.close()
    if starting is not None and not starting.cancelled():
        starting.result()


async def _start(on_start: Callable[[], Awaitable[None]], server: uvicorn.Server) -> None:
    try:
        await on_start()
    except Exception:
        server.should_exit = True
        raise


def uvicorn_config(app: Starlette) -> uvicorn.Config:
    """Return the settings under which the application is served."""
    return uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        proxy_headers=False,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop  # noqa: PLC0415 - absent on some platforms
    except ImportError:
        return None
    return uvloop.new_event_loop
