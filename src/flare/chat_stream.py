"""One chat answer over HTTP: events in, pieces of text and the measures of their arrival out."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import httpx

from flare.errors import FlareError

_DONE = "[DONE]"


class AnswerError(FlareError):
    """The server refused or broke off an answer; the message is the server's own."""


@dataclasses.dataclass(slots=True)
class Answer:
    """What has arrived of an answer, and when."""

    asked_ns: int
    texts: list[str] = dataclasses.field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self.texts)

    def measures(self) -> str:
        """Return the line under an answer; the rate excludes the wait for the first token."""
        if not self.first_ns:
            return "no output"
        parts = [f"TTFT {(self.first_ns - self.asked_ns) / 1e6:.0f} ms"]
        if self.output_tokens:
            parts.append(f"{self.output_tokens} tokens")
            seconds = (self.last_ns - self.first_ns) / 1e9
            if self.output_tokens > 1 and seconds > 0:
                parts.append(f"{(self.output_tokens - 1) / seconds:.1f} tokens/s")
        if self.finish_reason == "length":
            parts.append("cut at the length limit")
        return ", ".join(parts)


def stream_answer(
    http: httpx.Client, body: dict[str, Any], messages: Sequence[dict[str, str]], answer: Answer
) -> Generator[str, None, None]:
    """Ask and yield pieces of text as they arrive, filling in `answer`.

    Raises AnswerError when the server refuses or breaks off.
    """
    request = {
        **body,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        with http.stream("POST", "/v1/chat/completions", json=request) as response:
            if response.status_code != 200:
                response.read()
                raise AnswerError(error_text(response))
            yield from _pieces(response, answer)
    except httpx.TransportError as error:
        raise AnswerError(f"the connection broke: {error or type(error).__name__}") from None


def _pieces(response: httpx.Response, answer: Answer) -> Iterator[str]:
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == _DONE:
            return
        text = _read_event(data, answer)
        if text:
            answer.last_ns = time.monotonic_ns()
            answer.first_ns = answer.first_ns or answer.last_ns
            answer.texts.append(text)
            yield text
    raise AnswerError("the server ended the answer before it was complete")


def _read_event(data: str, answer: Answer) -> str:
    try:
        event = json.loads(data)
        if "error" in event:
            raise AnswerError(str(event["error"]["message"]))
        if event.get("usage"):
            answer.output_tokens = int(event["usage"]["completion_tokens"])
        if not event["choices"]:
            return ""
        choice = event["choices"][0]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        return str(choice["delta"].get("content") or "")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise AnswerError(f"the server sent an event that is no chat chunk: {data[:80]}") from None


def error_text(response: httpx.Response) -> str:
    """Return what an error answer says."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code} ({response.text[:200].strip() or 'empty answer'})"
