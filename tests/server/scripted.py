"""An engine and a text model from a script: every event is known, every delay is the test's.

The text is bytes: token id = byte value, and two control tokens above them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from helios.engine.backend import EngineUnavailableError
from helios.engine.messages import (
    Delta,
    EngineEvent,
    Finished,
    HistogramState,
    LogprobEntry,
    PromptLogprobs,
    Ready,
    Rejected,
    Stats,
    Submit,
)

START, END = 256, 257
VOCABULARY_SIZE = 1000
CONTEXT = 8192
READY = Ready(
    protocol_version=1,
    model="scripted",
    context_length_tokens=CONTEXT,
    row_count=16,
    page_count=64,
    page_size_tokens=16,
    vocabulary_size=VOCABULARY_SIZE,
    graphs=("decode_b1",),
    backend="eager",
    precision="fp32",
)


class ByteText:
    """TextModel over bytes; its template knows system, user and assistant."""

    vocabulary_size = VOCABULARY_SIZE
    eos_token_ids = (END,)
    control_token_ids = frozenset({START, END})
    longest_token_bytes = 1

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.roles = {"system", "user", "assistant"}

    def encode(self, text: str) -> list[int]:
        import threading

        self.threads.append(threading.current_thread().name)
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            if message["role"] not in self.roles:
                raise ValueError(f"only system, user and assistant, not {message['role']}")
            ids += [START, *message["role"].encode(), *b"\n", *message["content"].encode(), END]
        return [*ids, START, *b"assistant\n"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(i for i in token_ids if i < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else f"<|{token_id}|>".encode()


@dataclasses.dataclass(slots=True)
class ScriptedBackend:
    """EngineBackend whose answer to every request is `reply`, `step_tokens` tokens at a time."""

    reply: str | Callable[[Submit], str] = "Hello from the script."
    step_tokens: int = 4
    delay_s: float = 0.0
    """Pause before every step."""
    gate: asyncio.Event | None = None
    """While clear, running requests produce nothing after their first step."""
    first_gate: asyncio.Event | None = None
    """While clear, running requests produce nothing at all."""
    slots: int = 1_000_000
    waiting_limit: int = 1_000_000
    fail_after_steps: int | None = None
    """Answer with an engine failure after so many steps."""
    greeting: Ready | None = READY
    submitted: list[Submit] = dataclasses.field(default_factory=list)
    cancelled: list[str] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)
    running: int = 0
    waiting: int = 0
    draining: bool = False
    closed: bool = False

    @property
    def ready(self) -> Ready | None:
        return self.greeting

    @property
    def live(self) -> int:
        return self.running + self.waiting

    async def submit(self, request: Submit) -> AsyncIterator[EngineEvent]:
        if self.greeting is None:
            raise EngineUnavailableError("not up")
        self.submitted.append(request)
        if self.draining or self.waiting >= self.waiting_limit:
            code = "draining" if self.draining else "queue_full"
            yield Rejected(request_id=request.request_id, code=code, message=f"no room: {code}")
            return
        ended = False
        try:
            await self._enter()
            try:
                async for event in self._answer(request):
                    ended = isinstance(event, Finished)
                    yield event
            finally:
                self.running -= 1
        finally:
            (self.finished if ended else self.cancelled).append(request.request_id)

    async def _enter(self) -> None:
        self.waiting += 1
        try:
            while self.running >= self.slots:
                await asyncio.sleep(0.001)
        finally:
            self.waiting -= 1
        self.running += 1

    async def _answer(self, request: Submit) -> AsyncIterator[EngineEvent]:
        name = request.request_id
        if self.first_gate is not None:
            await self.first_gate.wait()
        if request.scored:
            entries = [_entry(request, t, i == 0) for i, t in enumerate(request.prompt_token_ids)]
            yield PromptLogprobs(request_id=name, entries=tuple(entries))
        text = self.reply if isinstance(self.reply, str) else self.reply(request)
        tokens, reason, matched = _cut(list(text.encode()), request)
        sent = 0
        while sent < len(tokens):
            await asyncio.sleep(self.delay_s)
            if self.closed:
                yield self._finished(request, "error", sent, error="closed")
                return
            if self.gate is not None and sent:
                await self.gate.wait()
            if self.fail_after_steps is not None and sent >= self.fail_after_steps:
                yield self._finished(request, "error", sent, error="Traceback: secret path")
                return
            step = tokens[sent : sent + self.step_tokens]
            sent += len(step)
            logprobs = [_entry(request, t, False) for t in step]
            yield Delta(
                request_id=name,
                text=bytes(step).decode(errors="replace"),
                token_ids=tuple(step),
                logprobs=tuple(logprobs) if request.sampling.top_logprobs >= 0 else (),
            )
        yield self._finished(request, reason, sent, matched=matched)

    def _finished(
        self,
        request: Submit,
        reason: str,
        sent: int,
        *,
        matched: str | None = None,
        error: str | None = None,
    ) -> Finished:
        return Finished(
            request_id=request.request_id,
            reason=reason,
            prompt_tokens=len(request.prompt_token_ids),
            output_tokens=sent,
            stop_matched=matched,
            error=error,
        )

    async def stats(self) -> Stats:
        if self.greeting is None:
            raise EngineUnavailableError("not up")
        return Stats(
            gauges={"flare_pages_used": 0.0},
            counters={"flare_requests_total": float(len(self.submitted))},
            labelled_counters={
                "flare_scheduler_executions_total": {'class="ordinary"': 3.0},
            },
            histograms={
                "flare_inter_token_gap_seconds": HistogramState(
                    bounds=(0.1, 1.0), counts=(2, 1, 0), total=0.7
                )
            },
        )

    async def drain(self) -> None:
        self.draining = True
        while self.live:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.closed = True


def _entry(request: Submit, token: int, is_first: bool) -> LogprobEntry:
    count = max(request.sampling.top_logprobs, 0)
    if is_first:
        return LogprobEntry(token_id=token, logprob=None)
    ids = tuple((token + i) % 256 for i in range(count))
    return LogprobEntry(
        token_id=token,
        logprob=-0.5,
        top_ids=ids,
        top_logprobs=tuple(-0.5 - i for i in range(count)),
    )


def _cut(tokens: list[int], request: Submit) -> tuple[list[int], str, str | None]:
    """Apply the request's stop strings and its limit; a script that ends ends with `stop`."""
    reason, matched = "stop", None
    text = bytes(tokens)
    for stop in request.stop:
        at = text.find(stop.encode())
        if at >= 0:
            text, matched = text[: at + (len(stop.encode()) if request.include_stop else 0)], stop
    if len(text) > request.max_output_tokens:
        text, reason, matched = text[: request.max_output_tokens], "length", None
    return list(text), reason, matched
