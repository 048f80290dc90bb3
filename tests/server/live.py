"""The application behind uvicorn on a loopback port, in a thread, for clients with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import uvicorn
from starlette.applications import Starlette

from helios.server.app import create_app
from helios.server.config import ServerConfig
from helios.server.serve import bind, uvicorn_config
from tests.server.scripted import ByteText, ScriptedBackend


class Live:
    """A running server and the backend behind it."""

    def __init__(self, backend: ScriptedBackend, config: ServerConfig) -> None:
        self.backend = backend
        self.text = ByteText()
        self.app: Starlette = create_app(backend, self.text, config)
        self.listener = bind("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = uvicorn.Server(uvicorn_config(self.app))
        self.loop: asyncio.AbstractEventLoop | None = None
        self.http = httpx.Client(base_url=self.url, verify=False, trust_env=False, timeout=30)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self.server.serve(sockets=[self.listener])
            self.app.state.service.encoder.close()

        asyncio.run(main())

    def start(self) -> None:
        self._thread.start()
        until(lambda: self.server.started)

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = self.server.force_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], object]) -> None:
        """Run a function on the server's loop."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(function)

    def post(self, path: str, **fields: object) -> httpx.Response:
        return self.http.post(path, json={"model": "scripted", **fields})

    def metric(self, line_start: str) -> float | None:
        """Return the value of the one metrics line that starts so, if there is one."""
        lines = self.http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(line_start)]
        assert len(found) <= 1
        return float(found[0].rpartition(" ")[2]) if found else None

    def until_metric(self, line_start: str, value: float) -> None:
        """Wait for a metric: a request is counted just after its answer."""
        until(lambda: self.metric(line_start) == value)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


@contextlib.contextmanager
def live(
    backend: ScriptedBackend | None = None, config: ServerConfig | None = None
) -> Iterator[Live]:
    """Serve for the length of a block."""
    running = Live(backend or ScriptedBackend(), config or ServerConfig())
    running.start()
    try:
        yield running
    finally:
        running.stop()


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for a condition; a wait that ends by its limit fails the test."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
