"""A scripted HTTP server for tests of the load generator: it streams what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

Body = dict[str, Any]


class Reply:
    """The answer to one request; chunk boundaries fall where `raw` puts them."""

    def __init__(self, writer: asyncio.StreamWriter, path: str, head: str) -> None:
        self._writer = writer
        self.path, self.head = path, head

    def begin(self, status: str = "200 OK", kind: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._writer.write(head.encode())

    async def raw(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def text(self, text: str) -> None:
        chat = "chat" in self.path
        carried: Body = {"delta": {"content": text}} if chat else {"text": text}
        await self.raw(event({"choices": [{**carried, "finish_reason": None}]}))

    async def end(self, prompt_tokens: int, completion_tokens: int) -> None:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        await self.raw(event({"choices": [{"text": "", "finish_reason": "length"}]}))
        await self.raw(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")

    async def refuse(self, status: str, message: str) -> None:
        self.begin(status, "application/json")
        await self.raw(json.dumps({"error": {"message": message}}).encode())
        self._writer.write(b"0\r\n\r\n")


Script = Callable[[Body, Reply], Awaitable[None]]


def event(payload: Body) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def prompt_of(body: Body) -> str | list[int]:
    prompt: str | list[int] = (
        body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    )
    return prompt


def tokens_of(body: Body) -> int:
    """Count a text as so many tokens: four letters each."""
    prompt = prompt_of(body)
    return len(prompt) // 4 if isinstance(prompt, str) else len(prompt)


async def obedient(body: Body, reply: Reply) -> None:
    """Stream what was ordered, a token a millisecond."""
    reply.begin()
    for index in range(body["max_tokens"]):
        await asyncio.sleep(0.001)
        await reply.text(f"t{index} ")
    await reply.end(tokens_of(body), body["max_tokens"])


@contextlib.asynccontextmanager
async def serving(script: Script, models: Sequence[str] = ("m",)) -> AsyncIterator[str]:
    """Serve `script(body, reply)` on a loopback port; yields the URL.

    Lists of models and answers in one piece, which are not measured, are the server's own.
    """

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        if method == "GET":
            found = path.endswith("/v1/models") and bool(models)
            whole(writer, found, {"data": [{"id": name} for name in models]})
            return
        length = int(head.lower().partition("content-length:")[2].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        if not body.get("stream"):
            whole(writer, True, {"usage": {"prompt_tokens": tokens_of(body)}})
            return
        with contextlib.suppress(ConnectionError):
            await script(body, Reply(writer, path, head))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def whole(writer: asyncio.StreamWriter, found: bool, answer: Body) -> None:
    content = json.dumps(answer).encode()
    status = "200 OK" if found else "404 Not Found"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + content)
    writer.close()
