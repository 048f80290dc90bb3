"""Starting, ready, down, draining: what health says and what requests get in each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from helios.engine.backend import EngineUnavailableError
from helios.server.app import create_app
from helios.server.config import ServerConfig
from helios.server.serve import AddressError, bind, serve
from helios.server.starting import StartingBackend
from tests.server.live import live, until
from tests.server.scripted import READY, ByteText, ScriptedBackend

ROOT = Path(__file__).resolve().parents[2]


def test_health_follows_the_engine():
    backend = ScriptedBackend(greeting=None)
    with live(backend) as server:
        answer = server.http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        assert answer.headers["retry-after"] == "1"
        refused = server.post("/v1/completions", prompt="x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_starting")
        assert refused.headers["retry-after"] == "1"
        assert server.http.get("/v1/models").status_code == 503
        server.until_metric("flare_engine_up", 0)
        backend.greeting = READY
        answer = server.http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert answer.json()["model"] == "scripted"
        assert server.post("/v1/completions", prompt="x").status_code == 200
        backend.greeting = None
        assert server.http.get("/health").json()["status"] == "down"
        refused = server.post("/v1/completions", prompt="x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down")


def test_engine_lost_between_check_and_submit():
    backend = ScriptedBackend()

    async def lost(request):
        raise EngineUnavailableError("gone")
        yield

    with live(backend) as server:
        backend_submit = type(backend).submit
        try:
            type(backend).submit = lambda self, request: lost(request)
            for stream in (False, True):
                answer = server.post("/v1/completions", prompt="x", stream=stream)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "engine_down"
        finally:
            type(backend).submit = backend_submit


def test_metrics():
    with live() as server:
        assert server.post("/v1/completions", prompt="abc", max_tokens=4).status_code == 200
        assert server.post("/v1/completions", prompt="abc", max_tokens=-4).status_code == 400
        answer = server.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        route = 'flare_http_requests_total{method="POST",route="/v1/completions"'
        server.until_metric(route + ',status="200"}', 1)
        server.until_metric(route + ',status="400"}', 1)
        server.until_metric("flare_http_prompt_tokens_total", 3)
        server.until_metric("flare_http_output_tokens_total", 4)
        server.until_metric("flare_http_time_to_first_token_seconds_count", 1)
        server.until_metric("flare_http_active_requests", 0)
        server.until_metric("flare_engine_up", 1)
        server.until_metric('flare_scheduler_executions_total{class="ordinary"}', 3)
        server.until_metric('flare_inter_token_gap_seconds_bucket{le="1"}', 3)
        server.http.get("/made/up/path")
        server.until_metric('flare_http_requests_total{method="GET",route="other"', 1)


def test_access_log_is_one_line_per_request(caplog):
    caplog.set_level("INFO", "helios.access")
    with live() as server:
        server.http.post(
            "/v1/completions",
            json={"model": "scripted", "prompt": "abc"},
            headers={"x-request-id": "mine"},
        )
        server.http.get("/a%0ab")
    until(lambda: len(caplog.records) >= 2)
    lines = [record.getMessage() for record in caplog.records if record.name == "helios.access"]
    assert len(lines) == 2
    lines.sort()
    assert re.fullmatch(
        r"mine POST /v1/completions status=200 ms=[\d.]+ prompt=3 output=16 ttft_ms=[\d.]+",
        lines[0],
    )
    assert "\n" not in lines[1]


def test_taken_and_impossible_addresses():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1 port {port}"):
            bind("127.0.0.1", port)
    for host, port in (("256.0.0.1", 80), ("127.0.0.1", 70000)):
        with pytest.raises(AddressError, match=f"cannot listen on .*{port}"):
            bind(host, port)


def test_a_start_that_fails_stops_the_server_and_is_raised():
    async def broken() -> ScriptedBackend:
        await asyncio.sleep(0)
        raise EngineUnavailableError("the package is of another version")

    async def main() -> None:
        backend = StartingBackend(broken)
        app = create_app(backend, ByteText(), ServerConfig())
        await serve(app, bind("127.0.0.1", 0), on_start=backend.start)

    with pytest.raises(EngineUnavailableError, match="another version"):
        asyncio.run(main())


def test_port_is_open_before_the_engine_is_ready():
    made = asyncio.Event()
    real = ScriptedBackend()

    async def make() -> ScriptedBackend:
        await made.wait()
        return real

    backend = StartingBackend(make)
    with live(backend) as server:
        assert server.http.get("/health").json()["status"] == "starting"
        assert server.post("/v1/completions", prompt="x").status_code == 503
        server.call(lambda: setattr(server, "task", server.loop.create_task(backend.start())))
        server.call(made.set)
        until(lambda: server.http.get("/health").status_code == 200)
        assert server.post("/v1/completions", prompt="x").status_code == 200


@contextlib.contextmanager
def serving_process(drain_timeout_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.server.scripted_main", str(drain_timeout_s)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )
    try:
        url = started.stdout.readline().strip()
        until(lambda: _is_up(url))
        yield started, url
    finally:
        started.kill()
        started.communicate()


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with serving_process(30) as started_and_url:
        yield started_and_url


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url + "/health", verify=False).status_code == 200
    except httpx.TransportError:
        return False


def test_sigterm_drains(process):
    """The first signal: health says draining, new requests get 503, running ones finish."""
    started, url = process
    answers = []
    body = {"model": "scripted", "prompt": "x", "max_tokens": 300}

    def ask() -> None:
        answers.append(httpx.post(url + "/v1/completions", json=body, timeout=60, verify=False))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: httpx.get(url + "/health", verify=False).json()["requests"] == 1)
    started.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(url + "/health", verify=False).json()["status"] == "draining")
    refused = httpx.post(url + "/v1/completions", json=body, verify=False)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_draining"
    assert "retry-after" in refused.headers
    asking.join(60)
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] == 300
    out, err = started.communicate(timeout=30)
    assert started.returncode == 0, err
    assert "backend closed" in out


def test_a_request_counted_before_the_drain_is_answered_after_it(process):
    """Its body may still be on the way when the signal comes: it is running, so it finishes."""
    started, url = process
    address = httpx.URL(url)
    body = json.dumps({"model": "scripted", "prompt": "x", "max_tokens": 3}).encode()
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        until(lambda: httpx.get(url + "/health").json()["requests"] == 1)
        started.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(url + "/health").json()["status"] == "draining")
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert b'"completion_tokens":3' in answer.replace(b" ", b"")
    _, err = started.communicate(timeout=30)
    assert started.returncode == 0, err


def test_second_sigterm_ends_streams_with_an_error(process):
    """Requests in flight get an error, not silence."""
    started, url = process
    body = {"model": "scripted", "prompt": "x", "max_tokens": 8000, "stream": True}
    with httpx.stream(
        "POST", url + "/v1/completions", json=body, verify=False, timeout=60
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        started.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(url + "/health", verify=False).json()["status"] == "draining")
        started.send_signal(signal.SIGTERM)
        *_, last = lines
    assert json.loads(last[6:])["error"]["code"] == "engine_failed"
    out, err = started.communicate(timeout=30)
    assert started.returncode == 0, err
    assert "backend closed" in out
    assert "Traceback" not in err


def test_a_drain_ends_by_its_limit():
    """Design 4.3: what still runs then is told, and the process ends all the same."""
    body = {"model": "scripted", "prompt": "x", "max_tokens": 8000, "stream": True}
    with serving_process(0.2) as (started, url):
        with httpx.stream(
            "POST", url + "/v1/completions", json=body, verify=False, timeout=60
        ) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            started.send_signal(signal.SIGTERM)
            *_, last = lines
        assert json.loads(last[6:])["error"]["code"] == "engine_failed"
        out, err = started.communicate(timeout=30)
        assert started.returncode == 0, err
        assert "backend closed" in out
        assert "not drained within 0.2 s" in err
