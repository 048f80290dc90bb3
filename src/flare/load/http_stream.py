"""One streamed completion over a raw socket, with the arrival time of every piece of text.

A general HTTP client spends more processor time per chunk than a small model spends per token, and
on a machine with two cores that time is taken from the server under test. So this client speaks the
least HTTP/1.1 that servers of completions need: one POST, then server-sent events.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from urllib.parse import urlsplit

import msgspec


class LoadError(Exception):
    """The server under test could not be reached, or did not answer as an OpenAI server does."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test. Raises LoadError for a URL that is not plain http."""

    url: str
    """Such as http://127.0.0.1:8000, with or without /v1."""
    model: str | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise LoadError(f"the server's URL must start with http://, not {self.url!r}")

    @property
    def host(self) -> str:
        """Host name to connect to."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port to connect to."""
        return urlsplit(self.url).port or 80

    @property
    def path(self) -> str:
        """Prefix of every route, without a slash at its end and without /v1."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")


class Choice(msgspec.Struct, frozen=True):
    """The part of a completion chunk that carries text."""

    text: str = ""
    finish_reason: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """One server-sent event of a text completion."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: dict[str, object] | None = None


_decode_chunk = msgspec.json.Decoder(Chunk).decode


@dataclasses.dataclass(slots=True, kw_only=True)
class StreamRecord:
    """What one request got and when; times are monotonic nanoseconds."""

    sent_ns: int = 0
    ended_ns: int = 0
    deliveries_ns: list[int] = dataclasses.field(default_factory=list)
    """Arrival of each event that carried text."""
    text: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    progress: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set at every delivery and at the end; whoever waits clears it."""

    @property
    def first_token_ms(self) -> float:
        """From sending to the first text. Raises LoadError when there was none."""
        if not self.deliveries_ns:
            raise LoadError("a request ended without any text")
        return (self.deliveries_ns[0] - self.sent_ns) / 1e6

    async def wait_for(self, deliveries: int) -> None:
        """Return once that many deliveries have arrived. Raises LoadError if they never will."""
        while len(self.deliveries_ns) < deliveries:
            if self.ended_ns:
                raise LoadError(f"a request ended after {len(self.deliveries_ns)} deliveries")
            self.progress.clear()
            await self.progress.wait()


async def stream_completion(
    target: Target, body: dict[str, object], record: StreamRecord | None = None
) -> StreamRecord:
    """Send one streaming completion and read it to its end.

    `record` may be given to watch the progress from another task. Cancelling the task closes the
    connection, which is how a client hangs up. Raises LoadError.
    """
    record = StreamRecord() if record is None else record
    request = _request_bytes(target, "/v1/completions", body)
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port)
    except OSError as error:
        raise LoadError(f"no answer from {target.url}: {error}") from error
    try:
        record.sent_ns = time.perf_counter_ns()
        writer.write(request)
        await writer.drain()
        await _read_events(reader, record)
    except (OSError, asyncio.IncompleteReadError, ValueError, msgspec.DecodeError) as error:
        raise LoadError(f"broken answer from {target.url}: {error}") from error
    finally:
        writer.close()
        record.ended_ns = time.perf_counter_ns()
        record.progress.set()
    return record


def _request_bytes(target: Target, route: str, body: dict[str, object]) -> bytes:
    """Return the whole request. `Connection: close` makes the end of the answer unmistakable."""
    payload = msgspec.json.encode(body)
    key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
    head = (
        f"POST {target.path}{route} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\n{key}"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + payload


async def _read_events(reader: asyncio.StreamReader, record: StreamRecord) -> None:
    status, headers = await _read_head(reader)
    chunked = "chunked" in headers.get("transfer-encoding", "")
    pending = b""
    while data := await (_read_chunk(reader) if chunked else reader.read(65536)):
        now_ns = time.perf_counter_ns()
        pending += data
        if status != 200:
            continue
        *lines, pending = pending.split(b"\n")
        for line in lines:
            _take_line(line.strip(), now_ns, record)
    if status != 200:
        raise LoadError(f"status {status}: {pending.decode(errors='replace').strip()[:300]}")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    return int(head[0].split()[1]), headers


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    """Return the next chunk of a chunked body, empty at its end. Raises IncompleteReadError."""
    size = int((await reader.readuntil(b"\n")).split(b";")[0], 16)
    data = await reader.readexactly(size) if size else b""
    await reader.readline()
    return data


def _take_line(line: bytes, now_ns: int, record: StreamRecord) -> None:
    if not line.startswith(b"data:") or line.endswith(b"[DONE]"):
        return
    chunk = _decode_chunk(line[5:])
    if chunk.error is not None:
        raise LoadError(f"the server reported an error mid-stream: {chunk.error.get('message')}")
    record.usage = chunk.usage or record.usage
    for choice in chunk.choices:
        record.finish_reason = choice.finish_reason or record.finish_reason
        if choice.text:
            record.text += choice.text
            record.deliveries_ns.append(now_ns)
            record.progress.set()
