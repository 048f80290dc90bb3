"""The service over a real engine process: everything that is cancelled, refused or lost gives back
what it held, as the metrics say.

The model counts (after token t comes t + 1) and spells its output in letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from helios.runtime.client import EngineClient
from helios.runtime.settings import EngineSettings
from helios.server.starting import StartingBackend
from tests.runtime.counting import CONTEXT, FAULT_TOKEN, ROWS, counting_settings, text_of
from tests.server.live import Live, live, until
from tests.server.test_disconnect import request_bytes
from tests.server.test_load import flood

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@contextlib.contextmanager
def serving(settings: EngineSettings | None = None) -> Iterator[tuple[Live, StartingBackend]]:
    """Serve over an engine process of its own."""
    backend = StartingBackend(lambda: EngineClient.start(settings or counting_settings()))
    with live(backend) as server:
        starting = asyncio.run_coroutine_threadsafe(backend.start(), server.loop)
        try:
            starting.result(60)
            yield server, backend
        finally:
            asyncio.run_coroutine_threadsafe(backend.close(), server.loop).result(30)


@pytest.fixture(scope="module")
def counting() -> Iterator[Live]:
    with serving() as (server, _):
        yield server


def post(server: Live, **fields: object) -> httpx.Response:
    return server.http.post("/v1/completions", json={"model": "counting", **fields})


def spelled(first: int, count: int) -> str:
    return "".join(text_of(token) for token in range(first, first + count))


def assert_all_back(server: Live) -> None:
    for name in ("flare_pages_used", "flare_rows_used", "flare_requests_waiting"):
        server.until_metric(name, 0)


def test_text_tokens_and_usage(counting):
    answer = post(counting, prompt=[1, 2, 3], max_tokens=5).json()
    assert answer["choices"][0]["text"] == spelled(4, 5)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert_all_back(counting)


def test_output_ends_with_the_context(counting):
    answer = post(counting, prompt=[1] * (CONTEXT - 4), max_tokens=100).json()
    assert answer["usage"]["completion_tokens"] == 4
    over = post(counting, prompt=[1] * CONTEXT)
    assert over.status_code == 400
    assert f"{CONTEXT} tokens, but at most {CONTEXT - 1}" in over.json()["error"]["message"]


def test_end_token_stop_token_and_stop_string(counting):
    assert post(counting, prompt=[996]).json()["choices"][0]["finish_reason"] == "stop"
    answer = post(counting, prompt=[1], stop_token_ids=[5]).json()["choices"][0]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", 5)
    answer = post(counting, prompt=[0], stop="ef").json()["choices"][0]
    assert (answer["text"], answer["stop_reason"]) == ("bcd", "ef")
    kept = post(counting, prompt=[0], stop="ef", include_stop_str_in_output=True).json()
    assert kept["choices"][0]["text"] == "bcdef"
    past = post(counting, prompt=[996], ignore_eos=True, max_tokens=6).json()
    assert past["usage"]["completion_tokens"] == 6


def test_scores_of_the_prompt(counting):
    answer = post(counting, prompt=[7, 8, 9], echo=True, logprobs=1, max_tokens=0).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 3
    assert logprobs["token_logprobs"] == [None, -0.008, -0.009]
    assert answer["usage"]["completion_tokens"] == 0
    both = post(counting, prompt=[7, 8, 9], echo=True, logprobs=0, max_tokens=2).json()
    assert both["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.008, -0.009, -0.01, -0.011]
    assert_all_back(counting)


def test_choices_and_prompts_together(counting):
    answer = post(counting, prompt=[[1], [10], [20]], n=3, max_tokens=4).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [spelled(first, 4) for first in (2, 11, 21) for _ in range(3)]
    assert_all_back(counting)


def test_more_streams_than_rows(counting):
    async def one(client: httpx.AsyncClient, first: int) -> str:
        body = {"model": "counting", "prompt": [first], "max_tokens": 20, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            events = [line[6:] async for line in answer.aiter_lines() if line]
        assert events.pop() == "[DONE]"
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)

    async def main() -> list[str]:
        async with httpx.AsyncClient(base_url=counting.url, timeout=60, verify=False) as client:
            return await asyncio.gather(*(one(client, first) for first in range(4 * ROWS)))

    assert asyncio.run(main()) == [spelled(first + 1, 20) for first in range(4 * ROWS)]
    assert_all_back(counting)


def test_a_failing_program_fails_its_request_alone(counting):
    answer = post(counting, prompt=[1, FAULT_TOKEN])
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_failed"
    assert "fault token" not in answer.text
    assert post(counting, prompt=[1], max_tokens=2).json()["choices"][0]["text"] == spelled(2, 2)
    assert_all_back(counting)


@pytest.mark.parametrize("stream", [True, False])
def test_client_gone_gives_pages_back_and_the_slot_is_reused(stream):
    with serving(counting_settings(step_s=0.02)) as (server, _):
        leaving = [server.connect() for _ in range(ROWS + 2)]
        for connection in leaving:
            connection.sendall(
                request_bytes(stream=stream, model="counting", prompt=[1], max_tokens=60)
            )
        until(lambda: (server.metric("flare_rows_used") or 0) == ROWS)
        for connection in leaving:
            connection.close()
        assert_all_back(server)
        server.until_metric('flare_http_cancelled_total{cause="disconnect"}', ROWS + 2)
        server.until_metric('flare_requests_finished_total{reason="cancelled"}', ROWS + 2)
        assert post(server, prompt=[1], max_tokens=3).json()["choices"][0]["text"] == spelled(2, 3)


def test_500_at_once():
    """Nothing is lost: each is answered or told to come again, and every page is back."""
    with serving(counting_settings(waiting_limit=64)) as (server, _):
        answers = asyncio.run(
            flood(server.port, 500, model="counting", prompt=[1], max_tokens=4, stream=True)
        )
        answered = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 503]
        assert len(answered) + len(refused) == 500
        assert len(answered) >= 64
        assert all(answer.body.count("[DONE]") == 1 for answer in answered)
        assert all("queue_full" in answer.body for answer in refused)
        assert_all_back(server)


def test_engine_killed_is_seen_reported_and_restarted():
    with serving(counting_settings(step_s=0.02)) as (server, backend):
        body = {"model": "counting", "prompt": [1], "max_tokens": 120, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            os.kill(backend._engine._supervisor._process.pid, signal.SIGKILL)
            *_, last = lines
        assert json.loads(last[6:])["error"]["code"] == "engine_failed"
        until(lambda: server.http.get("/health").status_code == 200)
        server.until_metric("flare_engine_restarts_total", 1)
        assert post(server, prompt=[1], max_tokens=3).json()["choices"][0]["text"] == spelled(2, 3)
        assert_all_back(server)
