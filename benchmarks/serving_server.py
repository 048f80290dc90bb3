"""Starts a server under test, waits until it answers, and stops exactly that process again."""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx


class ServerFailedError(Exception):
    """The server did not come up, or went away."""


@dataclass(frozen=True, slots=True)
class Server:
    """A name for the tables, and a command in which {port} stands for the port to listen on."""

    name: str
    command: str

    @classmethod
    def parse(cls, text: str) -> Server:
        """Read NAME=COMMAND."""
        name, separator, command = text.partition("=")
        if not separator or not name.strip() or "{port}" not in command:
            raise ServerFailedError(
                f"a server is given as 'NAME=COMMAND ... {{port}} ...', not {text!r}"
            )
        return cls(name.strip(), command.strip())


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(server: Server, ready_s: float) -> Iterator[tuple[str, float]]:
    """Run the server; yields its URL and the seconds until it answered."""
    port = free_port()
    command = shlex.split(server.command.replace("{port}", str(port)))
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            begin = time.monotonic()
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_until_ready(server, process, url, begin + ready_s, log)
                yield url, time.monotonic() - begin
                if process.poll() is not None:
                    raise ServerFailedError(f"{server.name} ended by itself:\n{_tail(log)}")
            finally:
                _stop(process)


def _wait_until_ready(
    server: Server, process: subprocess.Popen[bytes], url: str, deadline: float, log: Path
) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailedError(
                f"{server.name} ended with code {process.returncode}:\n{_tail(log)}"
            )
        with contextlib.suppress(httpx.HTTPError):
            # A model may still be loading behind an open port; health says 503 until then.
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        time.sleep(0.1)
    raise ServerFailedError(f"{server.name} was not ready in time:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
