"""What every kind of server is abused with; ends fall in the middle of accepted bursts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from tests.flare.test_speculation import Answer, Server, prompt_of
from tests.flare.tiny_directory import CONTEXT

END_TOKEN = 256
"""Behind the 256 bytes."""
RELEASE_LIMIT_S = 120.0
Body = dict[str, Any]


def free_bodies() -> list[Body]:
    """Ask for the whole answers that stop strings are taken from."""
    return [_body(prompt_of(2 * number), 60) for number in range(8)]


def bodies_of(free: Sequence[Answer]) -> list[Body]:
    """Return limits, ends of the context, stop strings and ends of the text that follow one another
    in the prompt, so that they are proposed."""
    limits = [_body(prompt_of(2 * n), limit) for n, limit in enumerate(range(1, 17))]
    contexts = [_body("abcd" * 120 + "ab" * number, 400) for number in range(6)]
    stops = [
        {**body, "stop": [answer[0][start : start + 2]]}
        for body, answer in zip(free_bodies(), free, strict=True)
        for start in (9, 21, 37)
    ]
    ending = [*b"abcd", END_TOKEN] * 8
    repeated: list[list[int]] = [ending, ending[:-1], [*b"ab", *[END_TOKEN] * 9], [END_TOKEN] * 12]
    ends = [_body(prompt, 40, ends=it) for prompt in repeated for it in (False, True)]
    return [*limits, *contexts, *stops, *ends]


def check_answers(bodies: Sequence[Body], answers: Sequence[Answer]) -> None:
    """Check the counts that need no other server to be known."""
    for body, (text, reason, prompt_tokens, output_tokens) in zip(bodies, answers, strict=True):
        if "stop" in body or not body["extra_body"]["ignore_eos"]:
            assert reason in ("stop", "length")
            assert not any(stop in text for stop in body.get("stop", ()))
            continue
        prompt = body["prompt"]
        assert prompt_tokens == len(prompt)
        assert reason == "length"
        assert output_tokens == min(body["max_tokens"], CONTEXT - len(prompt))
    assert sum(answer[1] == "stop" for answer in answers) > 12


def check_refusal(server: Server) -> None:
    """A grammar that admits nothing is refused."""
    with pytest.raises(openai.BadRequestError, match="admits nothing"):
        server.ask({**_body("abcd", 9), "extra_body": {"guided_regex": "[^\\s\\S]"}})


def check_release(server: Server) -> None:
    """Nothing is held once the clients are gone."""
    deadline = time.monotonic() + RELEASE_LIMIT_S
    while server.metrics()["flare_requests_resident"] and time.monotonic() < deadline:
        time.sleep(0.05)
    found = server.metrics()
    for gauge in ("requests_resident", "requests_waiting", "rows_used", "pages_used"):
        assert found[f"flare_{gauge}"] == 0, gauge


def _body(prompt: str | list[int], limit: int, *, ends: bool = False) -> Body:
    body = {"prompt": prompt, "max_tokens": limit, "temperature": 0}
    return {**body, "extra_body": {"ignore_eos": not ends}}
