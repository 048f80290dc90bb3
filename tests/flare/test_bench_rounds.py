"""A whole measurement on scripted servers: turns, arrivals, faults, stopping, started servers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flare.bench.comparison import ratio
from flare.bench.errors import BenchError
from flare.bench.rounds import Contender, Outcome, Settings, measure
from flare.bench.scenario_files import NamedScenario, parse_scenario
from flare.bench.starting import Command, StartError, parse_command, running
from flare.bench.tables import headline_table, latency_table, markdown, outcome_table, remarks
from flare.bench.target import Target
from tests.flare.sse_server import Body, Reply, Script, obedient, prompt_of, serving, tokens_of

CLOSED = """title = "t"
requests = 4
arrivals = { kind = "closed", streams = 2 }
prompt = { tokens = 60 }
output = { tokens = 5 }
"""


class Quiet:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.work = self.done = 0.0
        self.said: list[str] = []

    def begin(self, work: float) -> None:
        self.work = work

    def advance(self, work: float) -> None:
        self.done += work

    def say(self, text: str) -> None:
        self.said.append(text)


def scenario(text: str = CLOSED, name: str = "s") -> NamedScenario:
    return NamedScenario(name, parse_scenario(text, f"{name}.toml"))


def measured(
    *scripts: Script,
    scenarios: tuple[NamedScenario, ...] = (scenario(),),
    rounds: int = 1,
    warm_up: bool = False,
    stop_when: Callable[[], bool] = lambda: False,
    watcher: Quiet | None = None,
    model: str | None = None,
    twins: bool = False,
    timeout_s: float = 5,
) -> Outcome:
    async def run() -> Outcome:
        async with contextlib.AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(script)) for script in scripts]
            urls = urls * 2 if twins else urls
            contenders = tuple(
                Contender(name=name, target=Target(name=name, url=url, model=model), model=model)
                for name, url in zip("abc", urls, strict=False)
            )
            settings = Settings(
                contenders=contenders,
                scenarios=scenarios,
                rounds=rounds,
                seed=1,
                warm_up=warm_up,
                timeout_s=timeout_s,
            )
            stop = asyncio.Event()

            async def watch() -> None:
                while not stop_when():
                    await asyncio.sleep(0.005)
                stop.set()

            watching = asyncio.create_task(watch())
            try:
                return await measure(settings, watcher or Quiet(), stop)
            finally:
                watching.cancel()

    return asyncio.run(run())


class Recorder:
    """An obedient server that remembers who was asked what, in order, and how many at once."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self._name, self._log = name, log
        self.at_once = self.most = 0

    async def __call__(self, body: Body, reply: Reply) -> None:
        self._log.append((self._name, str(prompt_of(body))))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await obedient(body, reply)
        finally:
            self.at_once -= 1


def test_a_schema_of_the_output_is_asked_for_and_only_then() -> None:
    bodies: list[Body] = []

    async def server(body: Body, reply: Reply) -> None:
        bodies.append(body)
        await obedient(body, reply)

    text = CLOSED.replace(
        "{ tokens = 5 }", '{ tokens = 5, exact = false, json_schema = { type = "array" } }'
    )
    outcome = measured(server, scenarios=(scenario(), scenario(text, "with-schema")))
    assert not any(record.failure for run in outcome.runs for record in run.records)
    asked = [body for body in bodies if "Hello" not in str(prompt_of(body))]
    assert len(asked) == 8
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "array"}},
    }
    assert [body.get("response_format") for body in asked] == [None] * 4 + [wanted] * 4


def test_servers_take_turns_get_equal_prompts_and_no_prompt_twice() -> None:
    log: list[tuple[str, str]] = []
    servers = [Recorder("a", log), Recorder("b", log)]
    outcome = measured(*servers, rounds=2)
    asked = [(name, prompt) for name, prompt in log if "Hello" not in prompt]
    assert "".join(name for name, _ in asked) == "aaaabbbb" * 2
    first, second = asked[:8], asked[8:]
    for turn in (first, second):
        assert {p for n, p in turn if n == "a"} == {p for n, p in turn if n == "b"}
    assert len({prompt for _, prompt in asked}) == 8
    assert [(run.server, run.round_number) for run in outcome.runs] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
    ]
    assert [one.most for one in servers] == [2, 2]
    compared = ratio(outcome, "s", "output_tokens_per_s")
    assert compared is not None
    assert compared.spread.least <= compared.spread.median <= compared.spread.most
    assert 0.2 < compared.spread.median < 5


def test_a_server_that_is_compared_with_itself_finds_no_prompt_in_its_cache() -> None:
    log: list[tuple[str, str]] = []
    outcome = measured(Recorder("x", log), twins=True)
    asked = [prompt for _, prompt in log if "Hello" not in prompt]
    assert len(set(asked)) == len(asked) == 8
    assert {run.server for run in outcome.runs} == {"a", "b"}


def test_warm_up_is_sent_not_counted_and_said() -> None:
    log: list[tuple[str, str]] = []
    watcher = Quiet()
    outcome = measured(Recorder("a", log), warm_up=True, watcher=watcher)
    assert len(outcome.runs[0].records) == 4
    assert outcome.warm_up_requests == 2
    assert any("Warm-up: 2 requests" in remark for remark in remarks(outcome))
    assert watcher.done == pytest.approx(watcher.work)
    assert any("no warm-up" in remark for remark in remarks(measured(obedient)))


OPEN = """title = "open"
requests = 8
arrivals = { kind = "evenly", rate_per_s = 40 }
prompt = { tokens = 60 }
output = { tokens = 2 }
"""


def test_open_arrivals_do_not_wait_for_a_slow_server() -> None:
    """Coordinated omission: one answer at a time, 60 ms each, while one is due every 25 ms.

    A generator that waited would see 60 ms always; the eighth really waits about 8 * 60 - 7 * 25.
    """
    lock = asyncio.Lock()
    arrived: list[float] = []

    async def slow(body: Body, reply: Reply) -> None:
        arrived.append(time.monotonic())
        async with lock:
            if "Hello" not in str(prompt_of(body)):
                await asyncio.sleep(0.06)
            await obedient(body, reply)

    outcome = measured(slow, scenarios=(scenario(OPEN),))
    figures = outcome.runs[0].figures
    assert figures["complete"] == 8
    assert arrived[-1] - arrived[1] < 0.06 * 7
    worst = figures["ttft_ms.worst"]
    assert worst is not None
    assert worst > 8 * 60 - 7 * 25 - 20


MEETING = """title = "meet"
requests = 2
arrivals = { kind = "closed", streams = 2 }
prompt = { tokens = 60 }
output = { tokens = 4000 }
meeting = { tokens = 400, after_chunks = 3, output_tokens = 4 }
headline = ["meeting.worst_gap_ms", "meeting.ttft_ms"]
"""


def test_a_long_prompt_meets_running_streams_which_are_hung_up_on() -> None:
    outcome = measured(obedient, scenarios=(scenario(MEETING),))
    (run,) = outcome.runs
    assert [record.was_left for record in run.records] == [True, True, True]
    assert not run.failures
    assert run.figures["meeting.ttft_ms"]
    assert run.figures["meeting.worst_gap_ms"]
    assert len(run.records[0].chunk_ns) < 4000


@pytest.mark.parametrize("fault", ["long prompt", "streams"])
def test_a_meeting_that_did_not_happen_has_no_figures_and_says_why(fault: str) -> None:
    async def script(body: Body, reply: Reply) -> None:
        is_long = tokens_of(body) > 200
        if fault == "long prompt" and is_long:
            await reply.refuse("400 Bad Request", "prompt too long")
        else:
            limit = 2 if fault == "streams" else body["max_tokens"]
            await obedient(body | {"max_tokens": limit}, reply)

    (run,) = measured(script, scenarios=(scenario(MEETING),)).runs
    assert run.figures.get("meeting.ttft_ms") is None
    (message,) = [message for _, message in run.failures.values()]
    assert ("too long" if fault == "long prompt" else "a stream ended before") in message


def test_requests_that_fail_are_counted_with_their_reason_and_the_rest_goes_on() -> None:
    count = 0

    async def script(body: Body, reply: Reply) -> None:
        nonlocal count
        count += 1
        if count == 3:
            await reply.refuse("503 Service Unavailable", "queue is full")
        elif count == 4:
            reply.begin()
            await reply.text("half")
        else:
            await obedient(body, reply)

    outcome = measured(script)
    (run,) = outcome.runs
    assert run.figures["complete"] == 2
    assert {reason: n for reason, (n, _) in run.failures.items()} == {
        "status 503": 1,
        "broken off": 1,
    }
    table = outcome_table(outcome)
    assert table.rows[0][2:5] == ("4", "2", "2")
    assert "queue is full" in table.note


def test_chunks_of_several_tokens_are_shown_both_ways() -> None:
    async def script(body: Body, reply: Reply) -> None:
        reply.begin()
        for _ in range(body["max_tokens"] // 2):
            await asyncio.sleep(0.002)
            await reply.text("two tok")
        await reply.end(tokens_of(body), body["max_tokens"])

    text = CLOSED.replace("tokens = 5", "tokens = 8")
    outcome = measured(script, obedient, scenarios=(scenario(text),))
    (said,) = [remark for remark in remarks(outcome) if "chunks arrived" in remark]
    assert said.startswith("a, s: usage says 32 output tokens, 16 chunks arrived (2.00 tokens per")
    shown = [row[2] for row in latency_table(outcome).rows]
    assert shown.count("gap per token") == 1
    assert shown.count("gap per chunk") == 2


def test_stopping_keeps_what_was_measured_and_marks_it() -> None:
    served = 0

    async def script(body: Body, reply: Reply) -> None:
        nonlocal served
        served += 1
        if served > 7:
            await asyncio.sleep(30)
        await obedient(body, reply)

    begin = time.monotonic()
    outcome = measured(script, rounds=3, stop_when=lambda: served >= 9, timeout_s=60)
    assert time.monotonic() - begin < 20
    assert outcome.is_partial
    assert [run.is_partial for run in outcome.runs] == [False, True]
    assert "not finished when the run was stopped" in outcome.runs[1].failures
    # The whole round alone makes the figures.
    assert "Median" in headline_table(outcome).note
    assert outcome_table(outcome).rows[0][2] == "4"


def test_servers_that_know_fewer_fields_are_asked_without_them() -> None:
    bodies: list[Body] = []

    async def strict(body: Body, reply: Reply) -> None:
        bodies.append(body)
        if "ignore_eos" in body:
            await reply.refuse("400 Bad Request", "unknown field ignore_eos")
        else:
            await obedient(body | {"max_tokens": min(3, body["max_tokens"])}, reply)

    outcome = measured(strict)
    assert outcome.runs[0].figures["complete"] == 4
    assert all("ignore_eos" not in body for body in bodies[2:])
    said = " ".join(remarks(outcome))
    assert "refuses ignore_eos" in said
    assert "4 of 4 answers are shorter than ordered" in said


async def _no_model(body: Body, reply: Reply) -> None:
    await reply.refuse("404 Not Found", f"no model {body['model']}")


async def _wants_key(body: Body, reply: Reply) -> None:
    await reply.refuse("401 Unauthorized", "who are you?")


async def _not_streaming(body: Body, reply: Reply) -> None:
    reply.begin(kind="application/json")
    await reply.raw(b"{}")
    reply._writer.write(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "model", "message"),
    [
        (_no_model, "gpt-9", "no model gpt-9; it serves m: choose with --model"),
        (_no_model, None, "try --endpoint chat"),
        (_wants_key, None, "--api-key or FLARE_API_KEY"),
        (_not_streaming, None, "need a server that streams"),
    ],
)
def test_a_server_that_cannot_be_measured_is_found_out_first(
    script: Script, model: str | None, message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        measured(script, model=model)


def test_a_server_that_is_away_is_named_with_its_address() -> None:
    target = Target(name="a", url="http://127.0.0.1:9")
    settings = Settings(
        contenders=(Contender(name="a", target=target),),
        scenarios=(scenario(),),
        rounds=1,
        seed=1,
    )
    with pytest.raises(BenchError, match=r"no server answers at http://127\.0\.0\.1:9"):
        asyncio.run(measure(settings, Quiet(), asyncio.Event()))


def test_the_markdown_table_has_medians_and_the_ratio_to_the_best_other() -> None:
    outcome = measured(obedient, obedient, obedient, rounds=2)
    for run in outcome.runs:
        value = {"a": 90.0, "b": 20.0, "c": 50.0}[run.server] + run.round_number
        run.figures["output_tokens_per_s"] = value
    lines = markdown(outcome).splitlines()
    assert lines[0] == "| measure | a | b | c | a / best other | best other |"
    assert lines[2] == "| t: output, tok/s | 91.5 | 21.5 | 51.5 | 1.78 x | c |"


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_started_used_and_stopped(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    server = Command("test", f"{sys.executable} {script} {{port}}")

    async def run() -> str:
        async with running(server, 30) as started:
            assert started.ready_s > 0
            return started.url

    url = asyncio.run(run())
    port = int(url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(asyncio.open_connection("127.0.0.1", port))


def test_a_server_that_cannot_start_is_a_failure_and_the_others_go_on() -> None:
    code = "import sys; sys.exit('no such model')"
    command = Command("gone", f'{sys.executable} -c "{code}" {{port}}')

    async def run() -> Outcome:
        async with serving(obedient) as url:
            settings = Settings(
                contenders=(
                    Contender(name="gone", command=command),
                    Contender(name="b", target=Target(name="b", url=url)),
                ),
                scenarios=(scenario(),),
                rounds=1,
                seed=1,
            )
            return await measure(settings, Quiet(), asyncio.Event())

    outcome = asyncio.run(run())
    assert len(outcome.failures) == 1
    assert "no such model" in outcome.failures[0]
    assert [run.server for run in outcome.runs] == ["b"]
    assert headline_table(outcome).rows[0][1] == "-"


def test_a_stop_ends_the_wait_for_a_server_that_is_being_started() -> None:
    command = Command("slow", f'{sys.executable} -c "import time; time.sleep(60)" {{port}}')
    settings = Settings(
        contenders=(Contender(name="slow", command=command),),
        scenarios=(scenario(),),
        rounds=1,
        seed=1,
    )

    async def run() -> Outcome:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(1.3, stop.set)
        return await measure(settings, Quiet(), stop)

    begin = time.monotonic()
    outcome = asyncio.run(run())
    assert time.monotonic() - begin < 20
    assert outcome.is_partial
    assert not outcome.failures


@pytest.mark.parametrize("text", ["llama-server --port {port}", "=x {port}", "name=cmd", "", "a='"])
def test_a_command_is_a_name_and_words_with_a_port(text: str) -> None:
    with pytest.raises(BenchError, match="NAME=COMMAND"):
        parse_command(text)


def test_a_program_that_does_not_exist_is_reported() -> None:
    async def run() -> None:
        async with running(Command("x", "no-such-program {port}"), 5):
            pass

    with pytest.raises(StartError, match="cannot be started"):
        asyncio.run(run())
