"""One measured request: events by arrival, tokens by usage, every fault by its name."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from flare.bench.errors import BenchError
from flare.bench.http_stream import stream_completion
from flare.bench.records import Cause, RequestRecord, Usage
from flare.bench.target import Endpoint, Target
from tests.flare.sse_server import Body, Reply, Script, event, obedient, serving


def asked(
    script: Script, *, endpoint: Endpoint = "text", timeout_s: float = 5, **target: str
) -> RequestRecord:
    async def run() -> RequestRecord:
        record = RequestRecord()
        async with serving(script) as url:
            one = Target(name="x", url=target.pop("url", url), **target)
            body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
            if endpoint == "chat":
                body = body.replace(b'"prompt": "x"', b'"messages": [{"content": "x"}]')
            await stream_completion(one, endpoint, body, record, timeout_s=timeout_s)
        return record

    return asyncio.run(run())


def test_events_that_are_cut_anywhere_are_read_whole() -> None:
    async def script(body: Body, reply: Reply) -> None:
        reply.begin()
        whole = event({"choices": [{"text": "abc"}]}) + event({"choices": [{"text": "de"}]})
        for index in range(0, len(whole), 7):
            await reply.raw(whole[index : index + 7])
        await reply.end(5, 3)

    got = asked(script)
    assert got.is_complete
    assert got.chunk_letters == [3, 2]
    assert got.usage == Usage(prompt_tokens=5, completion_tokens=3)
    assert got.finish_reason == "length"
    assert got.due_ns <= got.sent_ns < got.chunk_ns[0] <= got.ended_ns


@pytest.mark.parametrize("endpoint", ["text", "chat"])
def test_both_endpoints_are_understood_and_the_key_is_sent(endpoint: Endpoint) -> None:
    heads: list[str] = []

    async def script(body: Body, reply: Reply) -> None:
        heads.append(reply.head)
        await obedient(body, reply)

    got = asked(script, endpoint=endpoint, api_key="secret")
    assert (got.output_tokens, len(got.chunk_ns), got.is_complete) == (3, 3, True)
    assert "Authorization: Bearer secret" in heads[0]
    assert ("/v1/chat/completions" if endpoint == "chat" else "/v1/completions ") in heads[0]


async def _status(body: Body, reply: Reply) -> None:
    await reply.refuse("503 Service Unavailable", "queue is full")


async def _error_event(body: Body, reply: Reply) -> None:
    reply.begin()
    await reply.text("a")
    await reply.raw(event({"error": {"message": "out of pages"}}))


async def _dropped(body: Body, reply: Reply) -> None:
    reply.begin()
    await reply.text("a")
    await reply.text("b")


async def _cut_without_end(body: Body, reply: Reply) -> None:
    await _dropped(body, reply)
    reply._writer.write(b"0\r\n\r\n")


async def _one_body(body: Body, reply: Reply) -> None:
    reply.begin(kind="application/json")
    await reply.raw(b'{"choices": [{"text": "whole"}]}')
    reply._writer.write(b"0\r\n\r\n")


async def _empty(body: Body, reply: Reply) -> None:
    reply.begin()
    await reply.raw(b"data: [DONE]\n\n")
    reply._writer.write(b"0\r\n\r\n")


async def _hangs(body: Body, reply: Reply) -> None:
    reply.begin()
    await reply.text("a")
    await asyncio.sleep(5)


async def _no_http(body: Body, reply: Reply) -> None:
    reply._writer.write(b"220 mail.example ready\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "cause", "reason", "message", "chunks"),
    [
        (_status, Cause.STATUS, "status 503", "queue is full", 0),
        (_error_event, Cause.ERROR_EVENT, "error in the stream", "out of pages", 1),
        (_dropped, Cause.BROKEN, "broken off", "after 2 chunks", 2),
        (_cut_without_end, Cause.BROKEN, "broken off", "without an end", 2),
        (_one_body, Cause.NOT_STREAMED, "not streamed", "one JSON body", 0),
        (_empty, Cause.EMPTY, "no output", "without any text", 0),
        (_hangs, Cause.TIMEOUT, "timed out", "after 1 chunks", 1),
        (_no_http, Cause.BROKEN, "broken off", "not what an OpenAI server sends", 0),
    ],
)
def test_every_fault_is_named_and_what_came_before_it_is_kept(
    script: Script, cause: Cause, reason: str, message: str, chunks: int
) -> None:
    got = asked(script, timeout_s=0.2)
    assert got.failure is not None
    assert got.failure.cause is cause
    assert got.failure.reason == reason
    assert message in got.failure.message
    assert len(got.chunk_ns) == chunks
    assert not got.is_complete
    assert got.ended_ns


def test_a_server_that_is_away_is_a_failure_of_the_request() -> None:
    got = asked(obedient, url="http://127.0.0.1:9")
    assert got.failure is not None
    assert got.failure.cause is Cause.CONNECT


def test_an_answer_in_one_chunk_is_one_chunk_of_many_tokens() -> None:
    async def script(body: Body, reply: Reply) -> None:
        reply.begin()
        await reply.text("everything at once")
        await reply.end(5, 128)

    got = asked(script)
    assert got.is_complete
    assert (got.output_tokens, len(got.chunk_ns)) == (128, 1)


def test_tokens_are_counted_by_chunks_where_there_is_no_usage() -> None:
    async def script(body: Body, reply: Reply) -> None:
        reply.begin()
        await reply.text("a")
        await reply.text("b")
        await reply.raw(event({"choices": [{"text": "", "finish_reason": "stop"}]}))
        reply._writer.write(b"0\r\n\r\n")

    got = asked(script)
    assert got.is_complete
    assert (got.usage, got.output_tokens) == (None, 2)


def test_a_request_that_was_due_earlier_counts_from_then() -> None:
    """Coordinated omission: the wait before sending belongs to the latency."""

    async def run() -> RequestRecord:
        record = RequestRecord(due_ns=time.perf_counter_ns() - 10**9)
        async with serving(obedient) as url:
            body = b'{"prompt": "x", "max_tokens": 2, "stream": true}'
            await stream_completion(Target(name="x", url=url), "text", body, record)
        return record

    got = asyncio.run(run())
    assert got.ttft_ns is not None
    assert got.ttft_ns > 10**9


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:99999", ""])
def test_a_url_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(BenchError, match=r"http://127\.0\.0\.1:8000"):
        Target(name="x", url=url)


def test_addresses_are_taken_apart() -> None:
    target = Target(name="x", url="https://somewhere/base/v1/", api_key="secret")
    assert (target.host, target.port, target.path) == ("somewhere", 443, "/base")
    assert target.base == "https://somewhere:443/base"
    assert Target(name="x", url="http://[::1]:81").base == "http://[::1]:81"
    assert "secret" not in repr(target)
