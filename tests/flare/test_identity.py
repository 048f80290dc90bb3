"""200 greedy prompts, and sampled ones, on servers of every kind: the answers of single steps.

Prompts of one token to several chunks, constrained and free, while clients hang
up beside them; servers differ in batch shapes, widths, sources and mixed programs. Then each is
abused. The tiny model's tokens are bytes and its greedy answers run into loops.
"""

from __future__ import annotations

import fnmatch
import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.flare.abuse import bodies_of, check_answers, check_refusal, check_release, free_bodies
from tests.flare.agreeing_head import write_agreeing_head
from tests.flare.flare_process import running
from tests.flare.test_draft_models import write_draft
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import Answer, Server
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import PROMPTS_FIRST, prepare_tried_first

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
GREEDY_PROMPTS, PROMPTS = 200, 240
LEAST_CANCELLED, MOST_REPEATS = 6, 20
HEAD_TEXTS, HEAD_PROMPT_TOKENS = 40, 250
SHORT = ("--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1")
WIDE = ("--concurrency", "8", "--threads", "1", "--draft-tokens", "7")
MIXING = (*SHORT, "--mixed-prefill")
DRAFTING = (*MIXING, "--speculation", "both", "--draft-tokens", "7")
PACKAGES: dict[str, tuple[str, ...]] = {
    "plain": (*MIXING, "--speculation", "off"),
    "copies": (*MIXING, "--speculation", "copy"),
    "alone": ("--concurrency", "1", "--prefill-capacities", "16", "--threads", "1"),
    "wide": (*WIDE, "--speculative-token-capacity", "64"),
    "shared": (
        *(*WIDE, "--speculative-token-capacity", "16", "--survival"),
        *("--row-sharing", "host"),
    ),
    "head": (*DRAFTING, "--row-sharing", "device", "--draft", "head.safetensors"),
    "pair": (*DRAFTING, "--draft", "small"),
}
"""What each package is prepared with; drafts are named as they lie beside the model."""


class Variant(NamedTuple):
    package: str
    streams: int
    """Requests that are asked at once."""
    options: tuple[str, ...]
    """Of the server."""
    programs: tuple[str, ...]
    """Patterns, each of the name of some program that must have run."""


LEARNED, FIXED = ("--speculation", "learned"), ("--speculation-mode", "fixed")
MIXED = ("--mixed-prefill",)
COPIES, OWN = "speculative-*-copy", "speculative-*-w[248]"
MIXED_COPIES, MIXED_OWN = "mixed-*-copy", "mixed-*-w[248]-c64"
VARIANTS = {
    "copies": Variant("copies", 4, (), (COPIES,)),
    "copies-alone": Variant("alone", 1, (), (COPIES,)),
    "copies-wide": Variant("wide", 7, PROMPTS_FIRST, ("speculative-b8-d7-w8-copy",)),
    "fixed-2": Variant("copies", 5, (*FIXED, "--draft-tokens", "1"), ("speculative-*-w2-copy",)),
    "fixed-8": Variant("copies", 3, (*FIXED, "--draft-tokens", "7"), ("speculative-*-w8-copy",)),
    "fixed-mixed": Variant(
        "copies",
        6,
        (*MIXED, *FIXED, "--draft-tokens", "3"),
        ("mixed-*-w4-c64-copy", "speculative-*-w4-copy"),
    ),
    "mixed": Variant("plain", 6, (*MIXED, "--speculation", "off"), ("mixed-*-w1-c64",)),
    "mixed-copies": Variant("copies", 6, MIXED, (MIXED_COPIES, COPIES)),
    "shared": Variant(
        "shared", 8, ("--row-sharing", "host", *PROMPTS_FIRST), ("speculative-b8-d7-w8-p16-copy",)
    ),
    "survival": Variant("shared", 4, ("--survival",), (COPIES,)),
    "learned": Variant("head", 4, LEARNED, (OWN,)),
    "learned-fixed": Variant("head", 4, (*LEARNED, *FIXED, "--draft-tokens", "3"), (OWN,)),
    "both": Variant("head", 5, (), (COPIES, OWN)),
    "dealt": Variant("head", 4, ("--row-sharing", "device"), ("speculative-*-device",)),
    "mixed-learned": Variant("head", 6, (*LEARNED, *MIXED), (MIXED_OWN, OWN)),
    "mixed-both": Variant("head", 6, MIXED, (MIXED_COPIES, MIXED_OWN)),
    "pair": Variant("pair", 4, LEARNED, (OWN,)),
    "pair-fixed": Variant("pair", 3, (*LEARNED, *FIXED, "--draft-tokens", "7"), (OWN,)),
    "mixed-pair": Variant("pair", 6, MIXED, (MIXED_COPIES, MIXED_OWN)),
}
FORMATS: tuple[dict[str, Any], ...] = (
    {"guided_regex": "([a-f]{2}:){3,20}[0-9]{4}"},
    {"guided_json": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 4}},
)


def body_of(number: int) -> dict[str, Any]:
    """Every third prompt repeats itself, every fifth answer has a form, the last are sampled."""
    chance = random.Random(number)
    letters = "".join(chance.choices("abcdefgh ", k=1 + 31 * (number % 7)))
    prompt = letters if number % 3 else letters[:14] * (1 + number % 9)
    extra: dict[str, Any] = {"ignore_eos": bool(number % 4)}
    if number % 5 == 0:
        extra = FORMATS[number % 2]
    temperature = 0 if number < GREEDY_PROMPTS else 0.8
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
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model and of two drafts for it, one of them a head."""
    directory = tmp_path_factory.mktemp("identity")
    model = write_tiny_directory(directory / "tiny")
    write_draft(directory / "small", model)
    prompts = [body["prompt"][-HEAD_PROMPT_TOKENS:] for body in BODIES[:HEAD_TEXTS]]
    write_agreeing_head(directory / "head.safetensors", model, prompts)
    return directory


@pytest.fixture(scope="module")
def packages(base: Path) -> Callable[[str], Path]:
    """Prepares each package of PACKAGES when it is first asked for."""

    @functools.cache
    def package(name: str) -> Path:
        options = list(PACKAGES[name])
        if "--draft" in options:
            options[-1] = str(base / options[-1])
        return prepare_tried_first(base / "tiny", options, base / name)

    return package


class Expected(NamedTuple):
    answers: list[Answer]
    """To BODIES."""
    together: list[tuple[str, str]]
    """To what comes in one request."""
    abuse: list[dict[str, Any]]
    abused: list[Answer]


@pytest.fixture(scope="module")
def expected(base: Path, packages: Callable[[str], Path]) -> Expected:
    """The answers of a server without speculation and mixed programs."""
    with running([str(packages("plain")), "--speculation", "off"], base / "log") as (url, _):
        server = Server(url)
        answers, together = server.ask_all(BODIES, 4), server.ask_together()
        abuse = bodies_of(server.ask_all(free_bodies(), 4))
        abused = server.ask_all(abuse, 4)
        found = server.programs()
        server.client.close()
    assert all(name.startswith(("decode", "prefill", "initialize", "terminal")) for name in found)
    assert len({answer[0] for answer in answers}) > PROMPTS // 2
    check_answers(abuse, abused)
    return Expected(answers, together, abuse, abused)


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_are_those_of_single_steps(base, packages, expected, name) -> None:
    variant = VARIANTS[name]
    package = packages(variant.package)
    with running([str(package), *variant.options], base / f"{name}.log") as (url, _):
        server = Server(url)
        with Leavers(server) as leavers:
            answers = server.ask_all(BODIES, variant.streams)
            for _ in range(MOST_REPEATS):
                # How soon a server notices that a client left depends on the machine.
                if server.cancelled() >= LEAST_CANCELLED:
                    break
                again = server.ask_all(BODIES[:20], variant.streams)
                assert again == expected.answers[:20]
            assert server.cancelled() >= LEAST_CANCELLED
        assert server.ask_together() == expected.together
        assert server.ask_all(expected.abuse, variant.streams) == expected.abused
        check_refusal(server)
        check_release(server)
        metrics, programs = server.metrics(), server.programs()
        server.client.close()
    for number, (mine, theirs) in enumerate(zip(answers, expected.answers, strict=True)):
        assert mine == theirs, f"prompt {number}"
    assert leavers.count > 5
    for pattern in variant.programs:
        assert fnmatch.filter(programs, pattern), (pattern, sorted(programs))
    assert any(name.startswith("mixed") for name in programs) == (MIXED[0] in variant.options)
    # A server of one width does nothing but rounds; another may find them too slow here, once it
    # has tried them.
    accepted = metrics["flare_speculative_accepted_tokens_total"]
    least = 200 if FIXED[0] in variant.options else 0
    assert accepted > least or "off" in variant.options
