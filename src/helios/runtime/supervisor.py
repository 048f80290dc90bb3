"""EngineSupervisor: starts the engine process, sees its death, and restarts it with backoff.

One supervisor runs at most one engine process at a time. It knows nothing of requests: it hands
events up and says when the engine came up and went down.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from typing import Final, Protocol, cast

from helios.engine.backend import EngineUnavailableError
from helios.engine.messages import PROTOCOL_VERSION, EngineCommand, EngineEvent, Ready
from helios.runtime.engine_process import EXIT_DRAINED, engine_main
from helios.runtime.link import (
    BatchSplitter,
    LinkError,
    StartFailed,
    WireEvent,
    decode_events,
    encode_batch,
)
from helios.runtime.settings import EngineSettings

RESTART_DELAY_LIMIT_S: Final = 10.0
STABLE_AFTER_S: Final = 30.0
"""An engine that was up for so long has not failed "in a row" with the one before it."""
EXIT_TIMEOUT_S: Final = 5.0
"""How long a process may take to exit after its link closed, before it is killed."""
UNSENT_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Commands that the engine has not taken; more are refused."""


class EngineStartError(EngineUnavailableError):
    """The engine process could not open its model, or did not greet in time."""


class EngineListener(Protocol):
    """Who is told about the engine; every method is called on the event loop."""

    def on_up(self, ready: Ready) -> None:
        """The engine greeted and takes commands."""
        ...

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        """Events arrived, in order."""
        ...

    def on_down(self, error: str | None) -> None:
        """The engine is gone; None when it was drained or closed on purpose."""
        ...


class EngineSupervisor:
    """Owns the engine process across its restarts.

    `state` is one of starting, up, restarting, draining, failed and closed.
    """

    def __init__(self, settings: EngineSettings, listener: EngineListener) -> None:
        self._settings = settings
        self._listener = listener
        self._connection: EngineConnection | None = None
        self._process: SpawnProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self.state = "starting"
        self.last_error: str | None = None
        self.restarts = 0

    async def start(self) -> None:
        """Start the process and return when it has greeted.

        Raises EngineStartError with the reason that the process gave.
        """
        try:
            await self._launch()
        except EngineStartError as error:
            self.state, self.last_error = "failed", str(error)
            await self._end_process()
            raise
        except asyncio.CancelledError:
            # Whoever waited for the start does not want the engine any more.
            self.state = "closed"
            await self._end_process(kill=True)
            raise
        self._task = asyncio.create_task(self._supervise(), name="flare-supervisor")

    def send(self, command: EngineCommand) -> None:
        """Send a command. Raises EngineUnavailableError when the engine is not up."""
        if self._connection is None or self.state not in ("up", "draining"):
            raise EngineUnavailableError(self.unavailable_reason())
        self._connection.send(command)

    def unavailable_reason(self) -> str:
        """Return why the engine takes no commands now."""
        detail = f": {self.last_error}" if self.last_error else ""
        return f"the engine is {self.state}{detail}"

    def expect_exit(self) -> None:
        """Let the next exit be the end: the engine was asked to drain."""
        if self.state == "up":
            self.state = "draining"

    async def wait_exited(self) -> None:
        """Return when the engine is gone for good."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop the process now; idempotent."""
        self.state = "closed"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_process(kill=True)
        self._listener.on_down(None)

    async def _supervise(self) -> None:
        """Follow the running engine to its end, and restart it as long as that makes sense."""
        loop = asyncio.get_running_loop()
        failures = 0
        while self._connection is not None:
            up_since_s = loop.time()
            reason = await self._connection.lost
            was_draining = self.state == "draining"
            # A drain whose engine died has nothing left to wait for either.
            self.state = "closed" if was_draining else "restarting"
            exit_code = await self._end_process()
            if was_draining and exit_code == EXIT_DRAINED:
                self._listener.on_down(None)
                return
            self.last_error = f"the engine process ended ({_describe(exit_code)}; {reason})"
            self._listener.on_down(self.last_error)
            if was_draining:
                return
            if loop.time() - up_since_s >= STABLE_AFTER_S:
                failures = 0
            await self._restart(failures)
            failures += 1

    async def _restart(self, failures: int) -> None:
        """Try to start again until it works or the limit is reached; `failures` came before."""
        while failures < self._settings.restart_limit:
            delay_s = self._settings.restart_delay_s * 2**failures
            await asyncio.sleep(min(delay_s, RESTART_DELAY_LIMIT_S))
            failures += 1
            self.restarts += 1
            try:
                await self._launch()
            except EngineStartError as error:
                self.last_error = str(error)
                await self._end_process()
            else:
                return
        self.state = "failed"

    async def _launch(self) -> None:
        """Start one process and wait for its greeting. Raises EngineStartError."""
        ours, theirs = socket.socketpair()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=engine_main,
            args=(theirs, self._settings, os.getpid()),
            name="flare-engine",
            daemon=True,
        )
        loop = asyncio.get_running_loop()
        try:
            self._process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        greeted: asyncio.Future[Ready] = loop.create_future()
        connection = EngineConnection(greeted, self._listener.on_events)
        await loop.create_connection(lambda: connection, sock=ours)
        self._connection = connection
        try:
            ready = await asyncio.wait_for(greeted, self._settings.ready_timeout_s)
        except TimeoutError as error:
            self._process.kill()
            raise EngineStartError(
                f"the engine did not greet within {self._settings.ready_timeout_s:g} s"
            ) from error
        self.state = "up"
        self._listener.on_up(ready)

    async def _end_process(self, *, kill: bool = False) -> int | None:
        """Close the link, let the process exit unless it is to be killed, and reap it.

        Returns its exit code.
        """
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return None
        if kill:
            process.kill()
        await asyncio.to_thread(process.join, EXIT_TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            await asyncio.to_thread(process.join)
        exit_code = process.exitcode
        process.close()
        return exit_code


class EngineConnection(asyncio.Protocol):
    """The HTTP side's end of the link, on the event loop.

    `lost` is done with a reason when the link is gone. Commands of one turn of the event loop go
    out in one write.
    """

    def __init__(
        self,
        greeted: asyncio.Future[Ready],
        on_events: Callable[[Sequence[EngineEvent]], None],
    ) -> None:
        self._greeted = greeted
        self._on_events = on_events
        self._loop = greeted.get_loop()
        self._splitter = BatchSplitter()
        self._outbox: list[EngineCommand] = []
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[str] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's are transports without being asyncio's class."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Decode complete batches and hand their events on; garbage closes the link."""
        try:
            for payload in self._splitter.feed(data):
                self._on_batch(decode_events(payload))
        except LinkError as error:
            self._lose(str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the link."""
        self._lose(str(exc) if exc else "the link closed")

    def send(self, command: EngineCommand) -> None:
        """Queue a command for this turn's write. Raises EngineUnavailableError when it cannot."""
        if self._transport is None or self._transport.is_closing():
            raise EngineUnavailableError("the engine is gone")
        if self._transport.get_write_buffer_size() > UNSENT_LIMIT_BYTES:
            raise EngineUnavailableError("the engine does not take commands")
        if not self._outbox:
            self._loop.call_soon(self._write)
        self._outbox.append(command)

    def close(self) -> None:
        """Close the link."""
        if self._transport is not None:
            self._transport.close()

    def _write(self) -> None:
        """Write every queued command as one batch."""
        outbox, self._outbox = self._outbox, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_batch(outbox))

    def _on_batch(self, events: list[WireEvent]) -> None:
        """Take the greeting out of the stream; everything behind it is passed on."""
        rest: list[EngineEvent] = []
        for event in events:
            if isinstance(event, StartFailed):
                self._fail_greeting(event.message)
            elif isinstance(event, Ready):
                self._greet(event)
            else:
                rest.append(event)
        if rest:
            self._on_events(rest)

    def _greet(self, ready: Ready) -> None:
        """Accept the greeting of an engine of our own protocol version."""
        if ready.protocol_version != PROTOCOL_VERSION:
            self._fail_greeting(
                f"the engine speaks protocol {ready.protocol_version}, not {PROTOCOL_VERSION}"
            )
        elif not self._greeted.done():
            self._greeted.set_result(ready)

    def _fail_greeting(self, message: str) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(EngineStartError(message))

    def _lose(self, reason: str) -> None:
        self._fail_greeting(f"the engine process ended before it greeted ({reason})")
        if not self.lost.done():
            self.lost.set_result(reason)


def _describe(exit_code: int | None) -> str:
    """Return an exit code in words."""
    if exit_code is None:
        return "no exit code"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
