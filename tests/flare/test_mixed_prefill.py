"""`flare run --mixed-prefill` on a real server: the answers of one without, prompts beside streams.

The tiny model's tokens are bytes, so a prompt of a few hundred letters takes several chunks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import Server
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import prepare_tried_first

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
MODES = ("off", "copy")


class Mixing:
    """A server with mixed programs and the trace that it writes."""

    def __init__(self, url: str, trace: Path) -> None:
        self.server = Server(url)
        self.trace = trace

    def mixed_plans(self) -> list[dict[str, Any]]:
        """Return the mixed frames that the trace has so far."""
        lines = self.trace.read_text().splitlines()
        plans = [json.loads(line) for line in lines if '"mixed-b' in line]
        return [plan for plan in plans if any(lane.get("role") for lane in plan.get("lanes", ()))]

    def tokens_of_cancelled(self) -> list[int]:
        """Return the output tokens of each request that was cancelled so far."""
        lines = self.trace.read_text().splitlines()
        ends = [json.loads(line) for line in lines if '"cancelled"' in line]
        return [end["output_tokens"] for end in ends if end["type"] == "finish"]


@pytest.fixture(scope="module", params=MODES)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Mixing]]:
    """A server with neither, and one with mixed programs, of the same model."""
    base = tmp_path_factory.mktemp("mixed")
    model = write_tiny_directory(base / "tiny")
    options = ["--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1"]
    options += ["--mixed-prefill", "--speculation", request.param]
    package = str(prepare_tried_first(model, options, base / "package"))
    mixed = [package, "--mixed-prefill", "--trace", str(base / "trace.jsonl")]
    plainly = [package, "--speculation", "off"]
    with (
        running(plainly, base / "plain.log") as (plain, _),
        running(mixed, base / "mixed.log") as (url, _),
    ):
        pair = Server(plain), Mixing(url, base / "trace.jsonl")
        yield pair
        pair[0].client.close()
        pair[1].server.client.close()


MOST_REPEATS = 20


def body_of(number: int, **more: Any) -> dict[str, Any]:
    """Prompts of one to five chunks, every third one repeating itself."""
    chance = random.Random(number)
    letters = "".join(chance.choices("abcdefgh ", k=20 + 37 * (number % 8)))
    prompt = letters if number % 3 else letters[:15] * (1 + number % 8)
    body = {"prompt": prompt, "max_tokens": 12 + number % 30, "temperature": 0}
    return {**body, "extra_body": {"ignore_eos": bool(number % 4)}, **more}


def test_greedy_answers_are_those_of_separate_steps(servers) -> None:
    plain, mixing = servers
    bodies = [body_of(number) for number in range(80)]
    assert mixing.server.ask_all(bodies, 4) == plain.ask_all(bodies, 4)
    # Which step wins beside a stream depends on durations, so the load is repeated until one did.
    for _ in range(MOST_REPEATS):
        if any_beside(mixing.mixed_plans()):
            break
        assert mixing.server.ask_together() == plain.ask_together()
    assert any_beside(mixing.mixed_plans()), "no prompt was consumed beside a stream"


def any_beside(plans: list[dict[str, Any]]) -> bool:
    """Whether some plan consumed a prompt beside a generating lane."""
    both = {"prompt", "generate"}
    return any({lane["role"] for lane in plan["lanes"]} == both for plan in plans)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 0.6, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    ],
)
def test_sampled_answers_of_a_seed_are_those_of_separate_steps(servers, sampling) -> None:
    plain, mixing = servers
    bodies = [body_of(number, seed=number, **sampling) for number in range(24)]
    assert mixing.server.ask_all(bodies, 4) == plain.ask_all(bodies, 4)


def test_log_probabilities_are_those_of_separate_steps(servers) -> None:
    plain, mixing = servers
    bodies = [body_of(number, logprobs=3, max_tokens=20) for number in range(7, 60, 4)]
    answers = [
        [server.client.completions.create(model="tiny", **body).choices[0] for body in bodies]
        for server in (plain, mixing.server)
    ]
    assert [a.logprobs for a in answers[0]] == [a.logprobs for a in answers[1]]


def test_clients_that_hang_up_leave_the_others_their_answers(servers) -> None:
    """Some leave a stream that they read, some a long prompt before its first token.

    How soon a server notices depends on the machine, so the load is repeated until it has ended
    requests of both kinds.
    """
    plain, mixing = servers
    bodies = [body_of(number, max_tokens=60) for number in range(24)]
    expected = plain.ask_all(bodies, 4)
    server = mixing.server
    streamed = {"max_tokens": 250, "temperature": 0, "extra_body": {"ignore_eos": True}}
    for _ in range(MOST_REPEATS):
        with (
            repeating(lambda n: server.hang_up_on({"prompt": "abc" * 30, **streamed}, 1 + n % 6)),
            repeating(lambda n: leave_unanswered(server.url, 0.01 * 2 ** (n % 7))),
        ):
            assert server.ask_all(bodies, 3) == expected
        tokens = mixing.tokens_of_cancelled()
        if tokens and min(tokens) == 0 < max(tokens):
            break
    assert min(tokens) == 0 < max(tokens), "nobody left before a first token, or nobody behind one"
    assert server.metrics()['flare_requests_finished_total{reason="cancelled"}'] >= len(tokens)
    assert server.ask(bodies[0]) == expected[0]


@contextlib.contextmanager
def repeating(action: Callable[[int], None]) -> Iterator[None]:
    """Do something over and over beside what is in the block, at least once."""
    done = threading.Event()

    def repeat() -> None:
        for number in itertools.count():
            action(number)
            if done.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(repeat)
        try:
            yield
        finally:
            done.set()
        repeated.result()


def leave_unanswered(url: str, after_s: float) -> None:
    """Ask about a prompt of many chunks and leave if there is no answer yet."""
    body = {"model": "tiny", "prompt": "abcdefg " * 45, "max_tokens": 90}
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=body, timeout=httpx.Timeout(60, read=after_s))
