"""The load generator: tokens by usage, deliveries by arrival, exact prompts, clear faults."""

import asyncio

import pytest

from flare.load import LoadError, StreamRecord, Target, run_scenarios, stream_completion
from flare.load.http_stream import Usage
from flare.load.measures import (
    gaps_ms,
    inside_share,
    output_tokens_of,
    percentile,
    throughput,
    worst_gap_during_ms,
)
from flare.load.prompts import MeasuredTextPrompts, TokenIdPrompts, passage
from flare.load.scenarios import Session, Sizes
from tests.flare.sse_server import Reply, event, serving

MS = 1_000_000


def record(sent_ms: float, deliveries_ms: list[float], tokens: int = 0) -> StreamRecord:
    return StreamRecord(
        sent_ns=int(sent_ms * MS),
        deliveries_ns=[int(at * MS) for at in deliveries_ms],
        usage=Usage(prompt_tokens=1, completion_tokens=tokens),
    )


def test_events_that_are_cut_anywhere_are_read_whole() -> None:
    async def script(body: dict[str, object], reply: Reply) -> None:
        reply.begin()
        whole = event({"choices": [{"text": "ab"}]}) + event({"choices": [{"text": "cd"}]})
        for index in range(0, len(whole), 7):
            await reply.raw(whole[index : index + 7])
        await reply.end(5, 3)

    async def run() -> StreamRecord:
        async with serving(script) as url:
            return await stream_completion(Target(url=url), {"prompt": "x"})

    got = asyncio.run(run())
    assert got.text == "abcd"
    assert got.usage == Usage(prompt_tokens=5, completion_tokens=3)
    assert got.finish_reason == "length"
    assert len(got.deliveries_ns) == 2
    assert got.sent_ns < got.deliveries_ns[0] <= got.ended_ns


@pytest.mark.parametrize("where", ["status", "stream", "cut", "nobody"])
def test_every_fault_of_the_server_is_a_load_error(where: str) -> None:
    async def script(body: dict[str, object], reply: Reply) -> None:
        if where == "status":
            reply.begin("503 Service Unavailable", "application/json")
            await reply.raw(b'{"error": {"message": "queue is full"}}')
            await reply.raw(b"")
            return
        reply.begin()
        if where == "stream":
            await reply.raw(event({"error": {"message": "queue is full"}}))

    async def run() -> None:
        async with serving(script) as url:
            target = url if where != "nobody" else "http://127.0.0.1:9"
            await stream_completion(Target(url=target), {"prompt": "x"})

    expected = {"status": "503.*queue is full", "stream": "queue is full"}.get(where, "answer")
    with pytest.raises(LoadError, match=expected):
        asyncio.run(run())


def test_only_plain_http_targets_are_taken() -> None:
    with pytest.raises(LoadError, match="http://"):
        Target(url="localhost:8000")
    target = Target(url="http://somewhere:81/base/v1/")
    assert (target.host, target.port, target.path) == ("somewhere", 81, "/base")


def test_tokens_are_counted_by_usage_and_not_by_deliveries() -> None:
    """Field report 20: throughput that counts chunks is wrong when several tokens come at once."""
    records = [record(0, [100, 200], tokens=128), record(10, [150, 1000], tokens=128)]
    measured = throughput("B", records, 128).figures
    assert measured["tokens_per_s"] == pytest.approx(256.0)
    assert measured["first_token_ms"] == pytest.approx(120.0)
    assert measured["gap_max_ms"] == pytest.approx(850.0)


def test_a_short_answer_is_refused_instead_of_flattering_the_server() -> None:
    with pytest.raises(LoadError, match="ignore_eos"):
        output_tokens_of(record(0, [1], tokens=17), 128)
    with pytest.raises(LoadError, match="no usage"):
        output_tokens_of(StreamRecord(), 128)


def test_gaps_are_between_successive_deliveries() -> None:
    assert gaps_ms(record(0, [10, 15, 35])) == [5.0, 20.0]
    assert gaps_ms(record(0, [10])) == []


def test_the_worst_gap_of_an_interval_counts_overlapping_and_unfinished_waits() -> None:
    """stream 1   |10   |30             |200 (before the interval, then across its start)
    stream 2         |20  |60        |90 ...     (still waiting when it ends at 300)
    """
    streams = [record(0, [10, 30, 200]), record(0, [20, 60, 90])]
    assert worst_gap_during_ms(streams, 100 * MS, 150 * MS) == pytest.approx(170.0)
    assert worst_gap_during_ms(streams, 35 * MS, 80 * MS) == pytest.approx(170.0)
    assert worst_gap_during_ms(streams, 205 * MS, 300 * MS) == pytest.approx(210.0)
    assert worst_gap_during_ms(streams[1:], 20 * MS, 60 * MS) == pytest.approx(40.0)


def test_the_share_inside_programs_is_of_the_time_from_first_request_to_last_end() -> None:
    streams = [record(0, [10]), record(50, [90])]
    streams[0].ended_ns, streams[1].ended_ns = 60 * MS, 100 * MS
    assert inside_share(streams, 90 * MS) == {"inside_programs_percent": 90.0}


def test_percentiles_are_values_that_were_seen() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert percentile(values, 0.5) == 3.0
    assert percentile(values, 0.99) == 4.0


def test_prompts_have_exactly_the_tokens_asked_for_and_differ_early() -> None:
    prompts = TokenIdPrompts(lambda text: [len(word) for word in text.split()])
    first, second = asyncio.run(prompts.prompt(64, 1)), asyncio.run(prompts.prompt(64, 1))
    assert len(first) == 64
    assert first == second
    assert passage(50, 1).split()[1] != passage(50, 2).split()[1]


def test_text_prompts_are_cut_until_the_server_counts_the_wanted_tokens() -> None:
    asked: list[str] = []

    async def count(text: str) -> int:
        asked.append(text)
        return len(text.split())

    prompt = asyncio.run(MeasuredTextPrompts(count).prompt(40, 3))
    assert len(prompt.split()) == 40
    # The text that was counted must not be the one that is sent: it would sit in a prefix cache.
    assert all(not prompt.startswith(text[:4]) for text in asked)


def test_a_server_that_counts_strangely_is_reported() -> None:
    async def count(text: str) -> int:
        return 2 * len(text)

    with pytest.raises(LoadError, match="41 tokens"):
        asyncio.run(MeasuredTextPrompts(count).prompt(41, 3))


def session_on(url: str) -> Session:
    return Session(
        target=Target(url=url, model="m"),
        prompts=TokenIdPrompts(lambda text: list(range(len(text.split())))),
        sizes=Sizes(prompt=4, output=6, long_prompt=30, settle=3, lone_repeats=2, limit_s=5),
    )


async def obedient(body: dict[str, object], reply: Reply) -> None:
    reply.begin()
    limit = body["max_tokens"]
    assert isinstance(limit, int)
    assert isinstance(body["prompt"], list)
    for index in range(limit):
        await asyncio.sleep(0.001)
        await reply.text(f"t{index} ")
    await reply.end(len(body["prompt"]), limit)


def test_all_scenarios_run_against_an_obedient_server() -> None:
    async def run() -> dict[str, dict[str, float]]:
        async with serving(obedient) as url:
            measured = await run_scenarios(session_on(url), ["A", "B", "C", "T", "D"])
        return {one.scenario: one.figures for one in measured}

    measured = asyncio.run(run())
    assert list(measured) == ["A", "B", "C", "T", "D"]
    assert all(value > 0 for figures in measured.values() for value in figures.values())


def test_a_stream_that_fails_ends_the_long_prompt_scenario_at_once() -> None:
    async def script(body: dict[str, object], reply: Reply) -> None:
        prompt = body["prompt"]
        assert isinstance(prompt, list)
        if len(prompt) == 30:
            reply.begin("400 Bad Request")
            await reply.raw(b"prompt too long")
            await reply.raw(b"")
            return
        await obedient(body, reply)

    async def run() -> None:
        async with serving(script) as url:
            await run_scenarios(session_on(url), ["D"])

    with pytest.raises(LoadError, match=r"scenario D.*prompt too long"):
        asyncio.run(run())


def test_streams_that_end_before_the_long_prompt_starts_are_no_measurement() -> None:
    async def script(body: dict[str, object], reply: Reply) -> None:
        await obedient(body | {"max_tokens": 2}, reply)

    async def run() -> None:
        async with serving(script) as url:
            await run_scenarios(session_on(url), ["D"])

    with pytest.raises(LoadError, match="ended after 2 deliveries"):
        asyncio.run(run())


def test_an_unknown_scenario_is_named() -> None:
    with pytest.raises(LoadError, match="'Z'"):
        asyncio.run(run_scenarios(session_on("http://127.0.0.1:9"), ["Z"]))
