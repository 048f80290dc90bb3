"""200 prompts on servers of every kind: token for token the answers of one without speculation.

Prompts of one token to several chunks, greedy and sampled, constrained and free, while clients hang
up beside them; servers differ in batch shapes, widths, sources and mixed programs. The tiny model's
tokens are bytes and its greedy answers run into loops.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import Answer, Server
from tests.flare.tiny_directory import write_tiny_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
PROMPTS = 200
SHORT = ["--concurrency", "4", "--prefill-capacities", "16,64"]
VARIANTS = {
    "copies": (4, SHORT),
    "copies-alone": (1, ["--concurrency", "1", "--prefill-capacities", "16"]),
    "copies-wide": (
        7,
        ["--concurrency", "8", "--draft-tokens", "7", "--speculative-token-capacity", "64"],
    ),
    "fixed-2": (5, [*SHORT, "--speculation-mode", "fixed", "--draft-tokens", "1"]),
    "fixed-8": (3, [*SHORT, "--speculation-mode", "fixed", "--draft-tokens", "7"]),
    "mixed": (6, [*SHORT, "--mixed-prefill", "--speculation", "off"]),
    "mixed-copies": (6, [*SHORT, "--mixed-prefill"]),
}
"""Streams that are asked at once, and the options of the server."""
FORMATS: tuple[dict[str, Any], ...] = (
    {"guided_regex": "([a-f]{2}:){3,20}[0-9]{4}"},
    {"guided_json": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 4}},
)


def body_of(number: int) -> dict[str, Any]:
    """Every third prompt repeats itself; every fourth answer is sampled, every fifth has a form."""
    chance = random.Random(number)
    letters = "".join(chance.choices("abcdefgh ", k=1 + 31 * (number % 7)))
    prompt = letters if number % 3 else letters[:14] * (1 + number % 9)
    extra: dict[str, Any] = {"ignore_eos": bool(number % 4)}
    if number % 5 == 0:
        extra = FORMATS[number % 2]
    temperature = 0 if number % 4 else 0.8
    body = {"prompt": prompt, "max_tokens": 10 + number % 37, "temperature": temperature}
    return {**body, "seed": number, "extra_body": extra}


BODIES = [body_of(number) for number in range(PROMPTS)]


class Leavers:
    """Clients that begin to read long answers and hang up, one after another."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._done = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Leavers:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            extra = {"ignore_eos": True} if self.count % 3 else FORMATS[1]
            body = {"prompt": "abcd" * (1 + self.count % 40), "max_tokens": 200, "temperature": 0}
            self._server.hang_up_on({**body, "extra_body": extra}, 1 + self.count % 6)
            self.count += 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("identity")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLARE_CACHE", str(base / "cache"))
        yield write_tiny_directory(base / "tiny")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Answer]:
    """The answers of a server without speculation and mixed programs."""
    plainly = [str(model), *SHORT, "--threads", "1", "--speculation", "off"]
    with running(plainly, model.parent / "plain.log") as (url, _):
        server = Server(url)
        answers = server.ask_all(BODIES, 4)
        server.client.close()
    assert len({answer[0] for answer in answers}) > PROMPTS // 2
    return answers


@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_are_those_of_single_steps(model, expected, variant) -> None:
    streams, options = VARIANTS[variant]
    log = model.parent / f"{variant}.log"
    with running([str(model), *options, "--threads", "1"], log) as (url, _):
        server = Server(url)
        with Leavers(server) as leavers:
            answers = server.ask_all(BODIES, streams)
        found = server.metrics()
        server.client.close()
    for number, (mine, theirs) in enumerate(zip(answers, expected, strict=True)):
        assert mine == theirs, f"prompt {number}"
    assert leavers.count > 5
    if variant != "mixed":
        assert found["flare_speculative_accepted_tokens_total"] > 200
    is_mixed = any(
        'graph="mixed' in name and value for name, value in found.items() if "frames" in name
    )
    assert is_mixed == ("mixed" in variant)
