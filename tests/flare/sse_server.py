"""A scripted HTTP server for tests of the load generator: it streams what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable


class Reply:
    """The answer to one request; chunk boundaries fall where `raw` puts them."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def begin(self, status: str = "200 OK", kind: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._writer.write(head.encode())

    async def raw(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def text(self, text: str) -> None:
        await self.raw(event({"choices": [{"text": text, "finish_reason": None}]}))

    async def end(self, prompt_tokens: int, completion_tokens: int) -> None:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        await self.raw(event({"choices": [{"text": "", "finish_reason": "length"}]}))
        await self.raw(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")


def event(payload: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def serving(
    script: Callable[[dict[str, object], Reply], Awaitable[None]],
) -> AsyncIterator[str]:
    """Serve `script(body, reply)` on a loopback port; yields the URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("get"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        with contextlib.suppress(ConnectionError):
            await script(body, Reply(writer))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
