"""Bounded queues: 500 requests at once are each answered or refused, and nothing is left behind."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json

import httpx
import pytest

from helios.server.config import ServerConfig
from tests.server.live import live, until
from tests.server.scripted import ScriptedBackend


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What came back on one connection."""

    status: int
    head: str
    body: str


async def flood(port: int, count: int, **fields: object) -> list[Answer]:
    """Send requests on `count` connections at once; a client library would pace them."""
    body = json.dumps({"model": "scripted", "prompt": "x", **fields})
    request = (
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    async def one() -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head, _, rest = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return Answer(int(head.split()[1]), head.lower(), rest)

    return await asyncio.gather(*(one() for _ in range(count)))


def check_refusals(answers: list[Answer], code: str) -> None:
    for answer in answers:
        if answer.status == 503:
            assert json.loads(answer.body)["error"]["code"] == code
            assert "\r\nretry-after: 1\r\n" in answer.head
        else:
            assert "Hell" in answer.body


@pytest.mark.slow
def test_500_at_once_against_a_bounded_engine():
    backend = ScriptedBackend(slots=4, waiting_limit=40, delay_s=0.001)
    with live(backend) as server:
        for stream in (False, True):
            answers = asyncio.run(flood(server.port, 500, stream=stream))
            statuses = collections.Counter(answer.status for answer in answers)
            assert set(statuses) <= {200, 503}
            assert statuses[200] >= 44
            assert statuses[200] + statuses[503] == 500
            check_refusals(answers, "queue_full")
        assert backend.live == 0
        assert backend.cancelled == []
        until(lambda: server.app.state.service.admission.requests == 0)
        assert server.post("/v1/completions", prompt="x").status_code == 200


@pytest.mark.slow
def test_500_at_once_against_a_bounded_server():
    backend = ScriptedBackend(slots=4, delay_s=0.001)
    with live(backend, ServerConfig(max_requests=20)) as server:
        answers = asyncio.run(flood(server.port, 500))
        statuses = collections.Counter(answer.status for answer in answers)
        assert statuses[200] + statuses[503] == 500
        assert statuses[200] >= 20
        check_refusals(answers, "server_busy")
        until(lambda: server.app.state.service.admission.requests == 0)


def test_bodies_together_are_bounded():
    backend = ScriptedBackend(slots=1, first_gate=asyncio.Event())
    config = ServerConfig(max_buffered_bytes=10_000)
    with live(backend, config) as server:

        async def scenario() -> list[int]:
            async with httpx.AsyncClient(base_url=server.url, verify=False, timeout=30) as client:
                body = {"model": "scripted", "prompt": "x" * 4000}
                posts = [
                    asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(5)
                ]
                done, pending = await asyncio.wait(
                    posts, timeout=None, return_when="FIRST_COMPLETED"
                )
                while len(done) < 3:
                    more, pending = await asyncio.wait(pending, return_when="FIRST_COMPLETED")
                    done |= more
                server.call(backend.first_gate.set)
                answers = await asyncio.gather(*posts)
                return sorted(answer.status_code for answer in answers)

        assert asyncio.run(scenario()) == [200, 200, 503, 503, 503]


def test_one_refused_choice_refuses_the_request_and_cancels_the_others():
    backend = ScriptedBackend(slots=1, waiting_limit=2, first_gate=asyncio.Event())
    with live(backend) as server:
        answer = server.post("/v1/completions", prompt="x", n=5)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "queue_full"
        assert backend.live == 0
        assert len(backend.cancelled) + 2 >= 3
