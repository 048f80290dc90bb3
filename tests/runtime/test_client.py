"""EngineClient against a real engine process that serves a counting model."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from helios.engine.backend import EngineUnavailableError
from helios.engine.messages import Delta, EngineEvent, Finished, Rejected, Submit
from helios.engine.ports import PreparedModel
from helios.runtime.client import EngineClient, EngineStartError
from helios.runtime.settings import EngineSettings
from tests.engine.world import request
from tests.runtime.counting import FAULT_TOKEN, ROWS, CountingModel, counting_settings

pytestmark = pytest.mark.timeout(90)
Scenario = Callable[[EngineClient], Awaitable[None]]


def serve(scenario: Scenario, settings: EngineSettings | None = None) -> None:
    """Run a scenario against an engine of its own."""

    async def run() -> None:
        client = await EngineClient.start(settings or counting_settings())
        try:
            await scenario(client)
        finally:
            await client.close()

    asyncio.run(run())


async def collect(client: EngineClient, submit: Submit) -> list[EngineEvent]:
    return [event async for event in client.submit(submit)]


@contextlib.asynccontextmanager
async def streaming(
    client: EngineClient, submit: Submit
) -> AsyncIterator[AsyncIterator[EngineEvent]]:
    """A request that has shown its first output; closing the block cancels it."""
    async with contextlib.aclosing(client.submit(submit)) as stream:
        first = await anext(stream)
        assert isinstance(first, Delta)
        yield stream


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def idle_gauges(client: EngineClient) -> dict[str, float]:
    """Gauges once everything is back."""
    while True:
        gauges = (await client.stats()).gauges
        if gauges["flare_rows_used"] == 0 and gauges["flare_frames_in_flight"] == 0:
            return gauges
        await asyncio.sleep(0.005)


def tokens_of(events: list[EngineEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


def engine_pid(client: EngineClient) -> int:
    process = client._supervisor._process
    assert process is not None
    assert process.pid is not None
    return process.pid


def test_concurrent_requests_each_get_their_own_output() -> None:
    async def scenario(client: EngineClient) -> None:
        ready = client.ready
        assert ready is not None
        assert (ready.model, ready.row_count, client.state) == ("counting", ROWS, "up")
        submits = [request(f"r{i}", prompt=[i] * (i + 1), max_output_tokens=12) for i in range(20)]
        results = await asyncio.gather(*(collect(client, submit) for submit in submits))
        for index, events in enumerate(results):
            assert tokens_of(events) == list(range(index + 1, index + 13))
            assert isinstance(events[-1], Finished)
        assert (await idle_gauges(client))["flare_pages_used"] == 0

    serve(scenario)


def test_500_at_once_are_served_up_to_the_waiting_limit() -> None:
    """A clear refusal or a clean wait each; nothing is lost and the pages are back."""

    async def scenario(client: EngineClient) -> None:
        submits = [request(f"r{i}", prompt=[i], max_output_tokens=2) for i in range(500)]
        results = await asyncio.gather(*(collect(client, submit) for submit in submits))
        refused = [events for events in results if isinstance(events[-1], Rejected)]
        served = [events for events in results if isinstance(events[-1], Finished)]
        assert len(refused) + len(served) == 500
        assert {events[-1].code for events in refused} == {"queue_full"}  # type: ignore[union-attr]
        assert len(served) >= ROWS + 50
        assert all(len(tokens_of(events)) == 2 for events in served)
        assert (await idle_gauges(client))["flare_pages_used"] == 0

    serve(scenario, counting_settings(waiting_limit=50))


def test_leaving_a_stream_cancels_it() -> None:
    async def scenario(client: EngineClient) -> None:
        async with streaming(client, request("gone", max_output_tokens=120)):
            pass
        gauges = await idle_gauges(client)
        assert gauges["flare_pages_used"] == 0
        finished = (await client.stats()).labelled_counters["flare_requests_finished_total"]
        assert finished == {'reason="cancelled"': 1.0}
        events = await collect(client, request("next", prompt=[5], max_output_tokens=3))
        assert tokens_of(events) == [6, 7, 8]

    serve(scenario, counting_settings(step_s=0.005))


def test_an_abandoned_task_cancels_its_request() -> None:
    """The server cancels the task of a client that hangs up."""

    async def scenario(client: EngineClient) -> None:
        task = asyncio.create_task(collect(client, request("gone", max_output_tokens=120)))
        async with streaming(client, request("other", max_output_tokens=120)):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await idle_gauges(client)
        finished = (await client.stats()).labelled_counters["flare_requests_finished_total"]
        assert finished == {'reason="cancelled"': 2.0}

    serve(scenario, counting_settings(step_s=0.005))


def test_an_id_in_use_is_refused_on_this_side() -> None:
    async def scenario(client: EngineClient) -> None:
        async with streaming(client, request("twice", max_output_tokens=120)) as stream:
            (rejected,) = await collect(client, request("twice"))
            assert isinstance(rejected, Rejected)
            assert isinstance(await anext(stream), Delta), "the first one goes on"

    serve(scenario, counting_settings(step_s=0.005))


def test_a_killed_engine_ends_its_streams_and_the_next_one_serves() -> None:
    async def scenario(client: EngineClient) -> None:
        async with streaming(client, request("victim", max_output_tokens=120)) as stream:
            stats = asyncio.create_task(client.stats())
            os.kill(engine_pid(client), signal.SIGKILL)
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].reason == "error"
            assert "engine" in (rest[-1].error or "")
            with contextlib.suppress(EngineUnavailableError):
                await stats
        assert client.state == "restarting"
        assert client.ready is None
        with pytest.raises(EngineUnavailableError, match="signal 9"):
            await collect(client, request("too early"))
        with pytest.raises(EngineUnavailableError):
            await client.stats()
        await until(lambda: client.state == "up")
        assert client.restarts == 1
        assert client.ready is not None
        events = await collect(client, request("next", prompt=[5], max_output_tokens=3))
        assert tokens_of(events) == [6, 7, 8]

    serve(scenario, counting_settings(step_s=0.005))


def test_a_fault_in_a_program_does_not_end_the_engine() -> None:
    async def scenario(client: EngineClient) -> None:
        (finished,) = await collect(client, request("bad", prompt=[1, FAULT_TOKEN]))
        assert isinstance(finished, Finished)
        assert finished.reason == "error"
        events = await collect(client, request("good", prompt=[5], max_output_tokens=2))
        assert tokens_of(events) == [6, 7]
        assert client.restarts == 0

    serve(scenario)


def test_drain_serves_what_runs_and_ends_the_process() -> None:
    async def scenario(client: EngineClient) -> None:
        pid = engine_pid(client)
        async with streaming(
            client, request("running", prompt=[5], max_output_tokens=40)
        ) as stream:
            drained = asyncio.create_task(client.drain())
            await until(lambda: client.state == "draining")
            (late,) = await collect(client, request("late"))
            assert isinstance(late, Rejected)
            assert late.code == "draining"
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].output_tokens == 40
        await drained
        assert client.state == "closed"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await client.drain()

    serve(scenario, counting_settings(step_s=0.005))


def test_a_terminated_engine_drains() -> None:
    """SIGTERM to the engine process: what runs is finished; the supervisor then starts another."""

    async def scenario(client: EngineClient) -> None:
        async with streaming(
            client, request("running", prompt=[5], max_output_tokens=40)
        ) as stream:
            os.kill(engine_pid(client), signal.SIGTERM)
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert (rest[-1].reason, rest[-1].output_tokens) == ("length", 40)
        await until(lambda: client.restarts == 1 and client.state == "up")

    serve(scenario, counting_settings(step_s=0.005))


def test_close_ends_streams_and_process() -> None:
    async def scenario(client: EngineClient) -> None:
        pid = engine_pid(client)
        async with streaming(client, request("running", max_output_tokens=120)) as stream:
            await client.close()
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].reason == "error"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert client.state == "closed"
        with pytest.raises(EngineUnavailableError, match="closed"):
            await client.stats()

    serve(scenario, counting_settings(step_s=0.005))


def refuse_to_open() -> PreparedModel:
    raise ValueError("package was prepared for another machine")


def die_while_opening() -> PreparedModel:
    os._exit(7)


def with_opener(opener: Callable[[], PreparedModel]) -> EngineSettings:
    return dataclasses.replace(counting_settings(), open_model=opener)


@pytest.mark.parametrize(
    ("opener", "message"),
    [(refuse_to_open, "another machine"), (die_while_opening, "ended before it greeted")],
)
def test_a_model_that_cannot_be_opened_says_why(
    opener: Callable[[], PreparedModel], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        with pytest.raises(EngineStartError, match=message):
            await EngineClient.start(with_opener(opener))

    asyncio.run(run())
    capfd.readouterr()


def fail_after_the_first_time(marker: Path) -> PreparedModel:
    if marker.exists():
        raise ValueError("the disk is gone")
    marker.touch()
    return CountingModel(0.0)


def test_restarts_are_bounded_and_the_reason_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = dataclasses.replace(
        counting_settings(restart_limit=2),
        open_model=functools.partial(fail_after_the_first_time, tmp_path / "opened"),
    )

    async def scenario(client: EngineClient) -> None:
        os.kill(engine_pid(client), signal.SIGKILL)
        await until(lambda: client.state == "failed")
        assert client.restarts == 2
        assert "the disk is gone" in (client.last_error or "")
        with pytest.raises(EngineUnavailableError, match="the disk is gone"):
            await collect(client, request("a"))

    serve(scenario, settings)
    capfd.readouterr()


def test_the_trace_is_written_by_the_engine_process(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    async def scenario(client: EngineClient) -> None:
        await collect(client, request("a", max_output_tokens=3))
        await client.drain()

    serve(scenario, counting_settings(trace_path=path))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[0]["type"] == "header"
    assert records[0]["started_unix_ns"] > 0
    kinds = [record["type"] for record in records]
    assert kinds.count("plan") == kinds.count("frame") > 0
    assert kinds.count("finish") == kinds.count("arrival") == 1


def test_a_trace_that_cannot_be_written_is_a_start_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        with pytest.raises(EngineStartError, match="No such file"):
            await EngineClient.start(counting_settings(trace_path=tmp_path / "no" / "trace"))

    asyncio.run(run())
    capfd.readouterr()


def open_slowly() -> PreparedModel:
    time.sleep(60)
    raise AssertionError("nobody waits so long")


def test_a_start_that_is_given_up_leaves_no_process() -> None:
    """The server was told to stop while the model was still being opened."""

    async def run() -> None:
        before = set(multiprocessing.active_children())
        start = asyncio.create_task(EngineClient.start(with_opener(open_slowly)))
        await until(lambda: bool(set(multiprocessing.active_children()) - before))
        await asyncio.sleep(0.05)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert set(multiprocessing.active_children()) == before

    asyncio.run(run())


def test_a_model_that_takes_too_long_is_a_start_error() -> None:
    async def run() -> None:
        settings = dataclasses.replace(with_opener(open_slowly), ready_timeout_s=0.01)
        with pytest.raises(EngineStartError, match=r"did not greet within 0\.01 s"):
            await EngineClient.start(settings)
        assert not multiprocessing.active_children()

    asyncio.run(run())


def test_closing_while_draining_ends_the_drain() -> None:
    """A second Ctrl-C: the drain's caller returns, and what ran ends with an error."""

    async def scenario(client: EngineClient) -> None:
        async with streaming(client, request("running", max_output_tokens=120)) as stream:
            drained = asyncio.create_task(client.drain())
            await until(lambda: client.state == "draining")
            await client.close()
            await drained
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].reason == "error"

    serve(scenario, counting_settings(step_s=0.02))


def test_an_engine_that_dies_while_draining_is_not_started_again() -> None:
    async def scenario(client: EngineClient) -> None:
        async with streaming(client, request("running", max_output_tokens=120)) as stream:
            drained = asyncio.create_task(client.drain())
            await until(lambda: client.state == "draining")
            os.kill(engine_pid(client), signal.SIGKILL)
            rest = [event async for event in stream]
            assert isinstance(rest[-1], Finished)
            assert rest[-1].reason == "error"
            await drained
        assert (client.state, client.restarts) == ("closed", 0)

    serve(scenario, counting_settings(step_s=0.02))
