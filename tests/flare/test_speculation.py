"""`flare run --speculation copy` on a real server: the answers of one without, in fewer steps.

Three servers of one package: ordinary, adaptive and of one fixed width. The tiny model's tokens are
bytes and its greedy answers run into loops, so much can be copied.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.tiny_directory import CONTEXT, write_tiny_directory
from tests.flare.tried_first import prepare_tried_first

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
Answer = tuple[str, str, int, int]
"""Text, finish reason, prompt tokens, output tokens."""


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def ask(self, body: dict[str, Any]) -> Answer:
        answer = self.client.completions.create(model="tiny", **body)
        (choice,), usage = answer.choices, answer.usage
        assert usage is not None
        return choice.text, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens

    def ask_all(self, bodies: Sequence[dict[str, Any]], streams: int) -> list[Answer]:
        with ThreadPoolExecutor(streams) as pool:
            return list(pool.map(self.ask, bodies))

    def ask_together(self) -> list[tuple[str, str]]:
        """Ask for eight choices in one request, free ones and ones whose text is forced.

        They reach the engine at once, however slow the client is: long prompts are consumed beside
        a short one's answer, and eight short ones are soon consumed and generate together for long,
        whatever order the durations suggest. Forced text is proposed as copies.
        """
        long = ["ab", *(f"{n} hgfedcba " * 30 for n in range(7))]
        short = [f"{n}abcdabcd" for n in range(8)]
        found = []
        for prompts, tokens in ((long, 150), (short, 400)):
            forced = f"(abcdabcdabcd){{{tokens // 12}}};"
            for form in ({"guided_regex": forced}, {"ignore_eos": True}):
                answer = self.client.completions.create(
                    model="tiny", prompt=prompts, max_tokens=tokens, temperature=0, extra_body=form
                )
                found += [(choice.text, choice.finish_reason) for choice in answer.choices]
        return found

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics").text
        lines = re.findall(r"^(flare_\S+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in lines}

    def cancelled(self) -> float:
        """Return how many requests their clients have left."""
        return self.metrics().get('flare_requests_finished_total{reason="cancelled"}', 0)

    def programs(self) -> set[str]:
        """Return the names of the programs that have run."""
        names = (re.match(r'flare_frames_total{graph="(.+)"}', each) for each in self.metrics())
        return {found[1] for found in names if found}

    def hang_up_on(self, body: dict[str, Any], chunks: int) -> None:
        """Ask for a stream and leave after some chunks."""
        stream = self.client.completions.create(model="tiny", stream=True, **body)
        for _ in itertools.islice(stream, chunks):
            pass
        stream.close()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Servers by mode."""
    base = tmp_path_factory.mktemp("speculation")
    options = ["--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1"]
    model = write_tiny_directory(base / "tiny")
    package = str(prepare_tried_first(model, options, base / "package"))
    modes = {
        "ordinary": ["--speculation", "off"],
        "adaptive": [],
        "fixed": ["--speculation-mode", "fixed", "--draft-tokens", "3"],
    }
    with ExitStack() as stack:
        found = {}
        for mode, more in modes.items():
            log = base / f"{mode}.log"
            url, _ = stack.enter_context(running([package, *more], log))
            found[mode] = Server(url)
            stack.callback(found[mode].client.close)
        yield found


@pytest.fixture(scope="module", params=["adaptive", "fixed"])
def servers(started: dict[str, Server], request: pytest.FixtureRequest) -> tuple[Server, Server]:
    """A server without speculation and one with it."""
    return started["ordinary"], started[request.param]


def prompt_of(number: int) -> str:
    """Every other prompt repeats itself, the rest are letters without order."""
    chance = random.Random(number)
    words = ["".join(chance.choices("abcdefgh ", k=6)) for _ in range(8)]
    text = "".join(words) if number % 2 else "".join(words[:3]) * 6
    return text[: 12 + number % 90]


def body_of(number: int, **more: Any) -> dict[str, Any]:
    extra = {"ignore_eos": bool(number % 3), **more.pop("extra_body", {})}
    body = {"prompt": prompt_of(number), "max_tokens": 24 + number % 40, "temperature": 0}
    return {**body, **more, "extra_body": extra}


@pytest.mark.parametrize("streams", [1, 4, 7])
def test_greedy_answers_are_those_without_speculation(started, servers, streams) -> None:
    plain, copying = servers
    bodies = [body_of(number) for number in range(200 if streams == 4 else 60)]
    expected = plain.ask_all(bodies, 4)
    before = copying.metrics()
    assert copying.ask_all(bodies, streams) == expected
    after = copying.metrics()
    name = "flare_speculative_accepted_tokens_total"
    # A server that may choose tries every round once and may find it too slow on this machine.
    assert after[name] > (before[name] if copying is started["fixed"] else 0)
    assert len({answer[0] for answer in expected}) > len(bodies) // 2


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.4},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 0.6, "presence_penalty": 0.7, "frequency_penalty": 0.3},
        {"temperature": 0.5, "extra_body": {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.2}},
        {"temperature": 0.3, "logit_bias": {"97": 3, "98": 3, "32": 2}},
    ],
)
def test_sampled_answers_of_a_seed_are_those_without_speculation(servers, sampling) -> None:
    plain, copying = servers
    bodies = [body_of(number, seed=number, **sampling) for number in range(40)]
    assert copying.ask_all(bodies, 4) == plain.ask_all(bodies, 4)


def test_output_limits_end_a_burst_where_they_stand(servers) -> None:
    plain, copying = servers
    limits = itertools.product(range(4), range(1, 21))
    bodies = [body_of(2 * n, max_tokens=m, extra_body={"ignore_eos": True}) for n, m in limits]
    answers = copying.ask_all(bodies, 3)
    assert answers == plain.ask_all(bodies, 4)
    assert [answer[3] for answer in answers] == [body["max_tokens"] for body in bodies]


def test_a_stop_string_inside_a_burst_ends_the_answer_there(servers) -> None:
    plain, copying = servers
    bodies = []
    for number in range(0, 40, 2):
        free = plain.ask(body_of(number, max_tokens=60))[0]
        for start in (9, 21, 37):
            stop = free[start : start + 2]
            if stop:
                bodies.append(body_of(number, max_tokens=60, stop=[stop]))
    answers = copying.ask_all(bodies, 4)
    assert answers == plain.ask_all(bodies, 4)
    assert sum(answer[1] == "stop" for answer in answers) > len(bodies) // 2


def test_the_context_ends_inside_a_round(servers) -> None:
    plain, copying = servers
    bodies = [
        body_of(0, prompt="abcd" * 120 + "ab" * n, max_tokens=400, extra_body={"ignore_eos": True})
        for n in range(12)
    ]
    answers = copying.ask_all(bodies, 2)
    assert answers == plain.ask_all(bodies, 2)
    assert all(answer[1] == "length" for answer in answers)
    assert all(answer[2] + answer[3] == CONTEXT for answer in answers)


def test_clients_that_leave_in_mid_round_take_nothing_from_the_others(servers) -> None:
    """Rounds of several tokens are in flight all the time; what is left must be exact."""
    plain, copying = servers
    bodies = [body_of(2 * number) for number in range(24)]
    endless = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}
    leavers = [body_of(2 * number, **endless) for number in range(24)]
    with ThreadPoolExecutor(2) as pool:
        left = [
            pool.submit(copying.hang_up_on, body, 1 + number % 7)
            for number, body in enumerate(leavers)
        ]
        answers = copying.ask_all(bodies, 2)
        for each in left:
            each.result()
    assert answers == plain.ask_all(bodies, 4)
    deadline = time.monotonic() + 20
    while copying.metrics()["flare_requests_resident"] and time.monotonic() < deadline:
        time.sleep(0.05)
    found = copying.metrics()
    for gauge in ("requests_resident", "requests_waiting", "rows_used", "pages_used"):
        assert found[f"flare_{gauge}"] == 0, gauge


def test_log_probabilities_are_those_without_speculation(servers) -> None:
    found = []
    for server in servers:
        answer = server.client.completions.create(model="tiny", **body_of(4, logprobs=3))
        found.append(answer.choices[0].logprobs)
    assert found[0] == found[1]


def test_streams_bring_every_token_and_the_usage(servers) -> None:
    plain, copying = servers
    body = body_of(6, max_tokens=64, extra_body={"ignore_eos": True})
    stream = copying.client.completions.create(
        model="tiny", stream=True, stream_options={"include_usage": True}, **body
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == plain.ask(body)[0]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 64


def test_metrics_tell_rounds_by_program_and_proposals_by_depth(servers) -> None:
    plain, copying = servers
    copying.ask_all([body_of(number) for number in range(0, 20, 2)], 2)
    found = copying.metrics()
    families = ("program_rounds", "depth_proposed", "depth_offered", "depth_accepted")
    totals = ("rounds", "proposed_tokens", "offered_tokens", "accepted_tokens")
    for family, total in zip(families, totals, strict=True):
        parts = [v for k, v in found.items() if k.startswith(f"flare_speculative_{family}_total{{")]
        assert sum(parts) == found[f"flare_speculative_{total}_total"] > 0
    first = 'source="copy",depth="1"'
    assert found[f"flare_speculative_depth_offered_total{{{first}}}"] > 0
    assert plain.metrics()["flare_speculative_rounds_total"] == 0
    assert not any('graph="decode' in name for name in found), "decode programs are not loaded"


def test_a_fixed_width_runs_in_no_other(started) -> None:
    server = started["fixed"]
    server.ask_all([body_of(number) for number in range(8)], 2)
    family = "flare_speculative_program_rounds_total"
    programs = [name for name in server.metrics() if name.startswith(family)]
    assert programs
    assert all("-d3-w4-copy" in name for name in programs)
