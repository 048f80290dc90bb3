"""A client that is gone is noticed whatever its request is doing, and its work is cancelled.

Raw sockets, because client libraries hide when a connection really closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import struct

import msgspec
import pytest

from helios.server.config import ServerConfig
from tests.server.live import Live, live, until
from tests.server.scripted import READY, ScriptedBackend


def request_bytes(*, stream: bool, **fields: object) -> bytes:
    body = json.dumps(
        {"model": "scripted", "prompt": "x", "max_tokens": 4000, "stream": stream, **fields}
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def reset(connection: socket.socket) -> None:
    """Close so that the peer sees a reset instead of an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def assert_nothing_left(server: Live) -> None:
    until(lambda: server.app.state.service.admission.requests == 0)
    assert server.backend.live == 0
    assert server.http.get("/health").json()["requests"] == 0


@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["fin", "reset"])
@pytest.mark.parametrize("stream", [True, False])
def test_client_gone_while_running(stream, close):
    with live(ScriptedBackend(reply="x" * 4000, delay_s=0.002)) as server:
        connection = server.connect()
        connection.sendall(request_bytes(stream=stream))
        if stream:
            until(lambda: b"data: " in connection.recv(65536, socket.MSG_PEEK))
        else:
            until(lambda: server.backend.running == 1)
        close(connection)
        until(lambda: len(server.backend.cancelled) == 1)
        assert server.backend.finished == []
        assert_nothing_left(server)
        server.until_metric('flare_http_cancelled_total{cause="disconnect"}', 1)
        server.until_metric('flare_http_requests_total{method="POST",route="/v1/completions"', 1)


@pytest.mark.parametrize("stream", [True, False])
def test_client_gone_while_queued(stream):
    """A request whose client left while queued never runs, and nobody else's is touched."""
    backend = ScriptedBackend(reply="x" * 4000, gate=asyncio.Event(), slots=1)
    with live(backend) as server, server.connect() as other:
        other.sendall(request_bytes(stream=True))
        until(lambda: backend.running == 1)
        leaver = server.connect()
        leaver.sendall(request_bytes(stream=stream))
        until(lambda: backend.waiting == 1)
        leaver.close()
        until(lambda: len(backend.cancelled) == 1)
        assert backend.waiting == 0
        assert backend.running == 1
        assert backend.cancelled == [backend.submitted[1].request_id]


def test_client_gone_cancels_every_choice():
    backend = ScriptedBackend(reply="x" * 4000, gate=asyncio.Event(), slots=2)
    with live(backend) as server:
        connection = server.connect()
        connection.sendall(request_bytes(stream=True, n=4))
        until(lambda: (backend.running, backend.waiting) == (2, 2))
        connection.close()
        until(lambda: len(backend.cancelled) == 4)
        assert_nothing_left(server)


def test_client_gone_in_the_middle_of_its_body():
    with live() as server:
        connection = server.connect()
        connection.sendall(request_bytes(stream=False)[:-5])
        until(lambda: server.app.state.service.admission.requests == 1)
        connection.close()
        assert_nothing_left(server)
        assert server.backend.submitted == []


def until_closed(connection: socket.socket) -> bytes:
    """Everything that the server sends before it closes; head and body may come apart."""
    answer = b""
    while data := connection.recv(65536):
        answer += data
    return answer


def test_a_slow_body_is_refused():
    with live(config=ServerConfig(body_timeout_s=0.05)) as server, server.connect() as connection:
        connection.sendall(request_bytes(stream=False)[:-5])
        answer = until_closed(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 0.05 s" in answer
        assert_nothing_left(server)


def test_slow_reader_is_bounded_and_then_cut_off():
    """A reader that takes nothing holds a bounded amount, and not for ever."""
    backend = ScriptedBackend(reply=lambda _: "x" * 2_000_000, step_tokens=2000)
    backend.greeting = msgspec.structs.replace(READY, context_length_tokens=4_000_000)
    config = ServerConfig(write_timeout_s=0.3, stream_buffer_events=4)
    with live(backend, config) as server:
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection = server.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request_bytes(stream=True, max_tokens=2_000_000))
        until(lambda: len(backend.cancelled) == 1)
        assert_nothing_left(server)
        server.until_metric('flare_http_cancelled_total{cause="stalled"}', 1)
        connection.close()


def test_fast_reader_after_a_pause_gets_everything():
    backend = ScriptedBackend(reply="y" * 4000, step_tokens=7)
    with live(backend, ServerConfig(stream_buffer_events=2)) as server:
        with server.http.stream(
            "POST",
            "/v1/completions",
            json={"model": "scripted", "prompt": "x", "max_tokens": 4000, "stream": True},
        ) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]]
        assert "".join(texts) == "y" * 4000
        assert backend.cancelled == []


def test_two_requests_on_one_connection():
    """Keep-alive: watching for the end of the client never eats its next request."""
    with live() as server, server.connect() as connection:
        for _ in range(3):
            connection.sendall(request_bytes(stream=False))
            answer = b""
            while not answer.endswith(b"}}"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
        assert len(server.backend.finished) == 3


def test_client_gone_after_sending_its_next_request_ahead():
    """Pipelining does not hide that the client of the running request has left."""
    with live(ScriptedBackend(reply="x" * 4000, delay_s=0.002)) as server:
        connection = server.connect()
        connection.sendall(request_bytes(stream=True))
        until(lambda: server.backend.running == 1)
        connection.sendall(request_bytes(stream=True))
        until(lambda: b"data: " in connection.recv(65536, socket.MSG_PEEK))
        connection.close()
        until(lambda: len(server.backend.cancelled) == 1)
        assert_nothing_left(server)
        assert len(server.backend.submitted) == 1


def test_a_head_without_end_is_refused():
    with live() as server, server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(b"y" * 10_000)
                if select.select([connection], [], [], 0.01)[0]:
                    break
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
    with live() as server, server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_what_is_no_http_is_refused():
    with live() as server, server.connect() as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        answer = until_closed(connection)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'{"error":{' in answer
