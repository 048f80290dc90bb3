"""One streamed completion over a plain socket, with the arrival time of every piece of text.

The load generator often shares a small machine with the server under test, so the time that it
takes per chunk is taken from the server: httpx spent 1.7 times as much per chunk here. So the
measured requests speak the least HTTP/1.1 that completions need, one POST and then server-sent
events; everything that is not measured goes through httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final

import msgspec

from flare.bench.records import Cause, Failure, RequestRecord, Usage
from flare.bench.target import ROUTES, Endpoint, Target

_SHOWN_LETTERS: Final = 300
_LONGEST_LINE: Final = 1 << 24


class StreamError(Exception):
    """One request failed; it says how."""

    def __init__(self, cause: Cause, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(cause, message, status)


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    """The part of a chunk that carries text: `text` of completions, `delta` of chats."""

    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: dict[str, object] | str | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


async def stream_completion(
    target: Target,
    endpoint: Endpoint,
    body: bytes,
    record: RequestRecord,
    *,
    timeout_s: float = 300.0,
) -> None:
    """Send one streaming request now and read it to its end into `record`; never raises for faults.

    `record.due_ns` is set to now where the caller has set none. Cancelling the task closes the
    connection, which is how a client hangs up.
    """
    record.due_ns = record.due_ns or time.perf_counter_ns()
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(target, endpoint, body, record)
        if not record.chunk_ns and not (record.usage and record.usage.completion_tokens):
            raise StreamError(Cause.EMPTY, "the answer ended without any text")
    except StreamError as error:
        record.failure = error.failure
    except TimeoutError:
        got = f"after {len(record.chunk_ns)} chunks" if record.chunk_ns else "without any output"
        record.failure = Failure(Cause.TIMEOUT, f"no whole answer in {timeout_s:g} s ({got})")
    except asyncio.CancelledError:
        record.failure = Failure(Cause.UNFINISHED, f"after {len(record.chunk_ns)} chunks")
        raise
    finally:
        record.ended_ns = time.perf_counter_ns()
        record.progress.set()


async def _exchange(target: Target, endpoint: Endpoint, body: bytes, record: RequestRecord) -> None:
    tls = ssl.create_default_context() if target.is_tls else None
    try:
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=tls, limit=_LONGEST_LINE
        )
    except OSError as error:
        raise StreamError(Cause.CONNECT, str(error) or type(error).__name__) from error
    try:
        writer.write(_head(target, endpoint, len(body)) + body)
        await writer.drain()
        record.sent_ns = time.perf_counter_ns()
        await _read_answer(reader, record)
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        words = f"the connection ended after {len(record.chunk_ns)} chunks"
        raise StreamError(Cause.BROKEN, f"{words}: {error or type(error).__name__}") from error
    except (ValueError, IndexError, msgspec.DecodeError) as error:
        raise StreamError(Cause.BROKEN, f"not what an OpenAI server sends: {error}") from error
    finally:
        writer.close()


def _head(target: Target, endpoint: Endpoint, length: int) -> bytes:
    """Return a request's head; `Connection: close` makes the end of the answer unmistakable."""
    lines = [
        f"POST {target.path}{ROUTES[endpoint]} HTTP/1.1",
        f"Host: {target.authority}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        *(f"{name}: {value}" for name, value in target.headers.items()),
        f"Content-Length: {length}",
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_answer(reader: asyncio.StreamReader, record: RequestRecord) -> None:
    status, headers = await _read_head(reader)
    is_chunked = "chunked" in headers.get("transfer-encoding", "")
    length = int(headers["content-length"]) if "content-length" in headers else None
    if status != 200:
        rest = await _read_rest(reader, is_chunked, length)
        raise StreamError(Cause.STATUS, f"status {status}: {_error_text(rest)}", status)
    if "json" in headers.get("content-type", ""):
        raise StreamError(Cause.NOT_STREAMED, "one JSON body came instead of a stream of events")
    pending, has_ended = b"", False
    while data := await _read_some(reader, is_chunked):
        now_ns = time.perf_counter_ns()
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            has_ended |= _take_line(line.strip(), now_ns, record)
    has_ended |= _take_line(pending.strip(), time.perf_counter_ns(), record)
    # Without a length or chunks a broken connection looks like an end, so the stream must say it.
    if not has_ended and record.finish_reason is None and record.usage is None:
        raise StreamError(
            Cause.BROKEN, f"the stream ended after {len(record.chunk_ns)} chunks without an end"
        )


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    return int(head[0].split()[1]), headers


async def _read_rest(reader: asyncio.StreamReader, is_chunked: bool, length: int | None) -> bytes:
    if not is_chunked:
        return await (reader.read() if length is None else reader.readexactly(length))
    rest = b""
    while data := await _read_some(reader, is_chunked):
        rest += data
    return rest


async def _read_some(reader: asyncio.StreamReader, is_chunked: bool) -> bytes:
    """Return the next piece of a body, empty at its end. Raises IncompleteReadError."""
    if not is_chunked:
        return await reader.read(65536)
    size = int((await reader.readuntil(b"\n")).split(b";")[0], 16)
    data = await reader.readexactly(size) if size else b""
    await reader.readline()
    return data


def _error_text(body: bytes) -> str:
    """Return what an error body says, in one line."""
    try:
        error = msgspec.json.decode(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:_SHOWN_LETTERS] or "(empty answer)"


def _take_line(line: bytes, now_ns: int, record: RequestRecord) -> bool:
    """Take one line of the stream; return whether it says that the stream is over."""
    if not line.startswith(b"data:"):
        return False
    if line.endswith(b"[DONE]"):
        return True
    chunk = _decode_chunk(line[5:])
    if chunk.error is not None:
        message = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
        raise StreamError(Cause.ERROR_EVENT, str(message)[:_SHOWN_LETTERS])
    record.usage = chunk.usage or record.usage
    letters = 0
    for choice in chunk.choices:
        record.finish_reason = choice.finish_reason or record.finish_reason
        letters += len(_text_of(choice))
    if letters:
        record.chunk_ns.append(now_ns)
        record.chunk_letters.append(letters)
        record.progress.set()
    return False


def _text_of(choice: _Choice) -> str:
    text = choice.text or ""
    if choice.delta is not None:
        text += (choice.delta.content or "") + (choice.delta.reasoning_content or "")
    return text
