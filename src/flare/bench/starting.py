"""Starts a server under test, waits until it answers, and stops exactly that process again."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from flare.bench.errors import BenchError
from flare.bench.target import split_pair

_POLL_S: Final = 0.1
_STOP_S: Final = 20.0
_SHOWN_LINES: Final = 8


class StartError(BenchError):
    """The server did not come up, or went away; what it wrote last is in the message."""


class Command(NamedTuple):
    """A name for the tables, and a command in which {port} stands for the port to listen on."""

    name: str
    command: str


def parse_command(text: str) -> Command:
    """Read NAME=COMMAND. Raises BenchError."""
    name, command = split_pair(text, "'NAME=COMMAND ... {port} ...'")
    if "{port}" not in command:
        raise BenchError(
            f"a server is given as 'NAME=COMMAND ... {{port}} ...'; {name} lacks {{port}}"
        )
    try:
        shlex.split(command)
    except ValueError as error:
        raise BenchError(f"the command of {name} cannot be split into words: {error}") from error
    return Command(name, command)


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Started(NamedTuple):
    """A server that answers."""

    url: str
    ready_s: float
    """From its start to its first answer."""


@contextlib.asynccontextmanager
async def running(
    server: Command, ready_s: float, stop: asyncio.Event | None = None
) -> AsyncIterator[Started]:
    """Run the server for the length of a block; `stop` ends the wait for it. Raises StartError."""
    port = free_port()
    words = shlex.split(server.command.replace("{port}", str(port)))
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            begin = time.monotonic()
            try:
                # A session of its own: Ctrl-C is for the measurement, which stops the server.
                process = subprocess.Popen(
                    words,
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"{server.name} cannot be started: {error}") from error
            try:
                url = f"http://127.0.0.1:{port}"
                await _wait_until_ready(
                    server, process, url, deadline=begin + ready_s, log=log, stop=stop
                )
                yield Started(url, time.monotonic() - begin)
                if process.poll() is not None:
                    raise StartError(f"{server.name} ended by itself: {_tail(log)}")
            finally:
                _stop(process)


async def _wait_until_ready(
    server: Command,
    process: subprocess.Popen[bytes],
    url: str,
    *,
    deadline: float,
    log: Path,
    stop: asyncio.Event | None,
) -> None:
    async with httpx.AsyncClient(timeout=2, trust_env=False, verify=False) as client:
        while time.monotonic() < deadline:
            if stop is not None and stop.is_set():
                raise StartError(f"{server.name} was not awaited: the measurement was stopped")
            if process.poll() is not None:
                raise StartError(
                    f"{server.name} ended with code {process.returncode}: {_tail(log)}"
                )
            with contextlib.suppress(httpx.HTTPError):
                # A model may still be loading behind an open port; health says 503 until then.
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            await asyncio.sleep(_POLL_S)
    raise StartError(f"{server.name} was not ready in time: {_tail(log)}")


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").split("\n")[-_SHOWN_LINES:]).strip(" /")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
