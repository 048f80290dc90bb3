"""The inference endpoints: body in, job to the engine, answer out; cancelled with its client."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from helios.engine.messages import Delta, Finished, PromptLogprobs
from helios.server.body import check_content_type, parse_object, read_body
from helios.server.calls import Call
from helios.server.choices import ChoiceStreams, EngineFailedError
from helios.server.collected import Collected, usage
from helios.server.disconnect import while_connected
from helios.server.errors import ApiError, ClientGoneError
from helios.server.service import Job, Service
from helios.server.shapes import DONE

_log = logging.getLogger("helios.server")

JobMaker = Callable[[Service, Mapping[str, Any], str], Awaitable[Job]]


class StalledReaderError(Exception):
    """The client takes nothing of its stream."""


class InferenceEndpoint:
    """ASGI application of one route."""

    def __init__(self, service: Service, make_job: JobMaker) -> None:
        self._service = service
        self._make_job = make_job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ApiError before the answer began, never after."""
        service = self._service
        call: Call = scope["state"]["call"]
        request = Request(scope, receive)
        check_content_type(request)
        with service.admission.entered():
            body = await read_body(
                request,
                limit_bytes=service.config.max_body_bytes,
                timeout_s=service.config.body_timeout_s,
            )
            with service.admission.buffered(len(body)):
                try:
                    await while_connected(receive, self._answer(scope, body, call, send))
                except ClientGoneError:
                    call.outcome = "disconnect"
                    raise

    async def _answer(self, scope: Scope, body: bytes, call: Call, send: Send) -> None:
        job = await self._make_job(self._service, parse_object(body), uuid.uuid4().hex)
        del body
        call.prompt_tokens = job.prompt_tokens
        config = self._service.config
        streams = ChoiceStreams(
            job.submit,
            job.submits,
            buffer_events=config.stream_buffer_events,
            retry_after_s=config.retry_after_s,
        )
        async with streams:
            if job.stream:
                writer = EventWriter(send, timeout_s=config.write_timeout_s)
                await _stream(job, streams, call, writer)
            else:
                response = await _whole(job, streams, call)
                await response(scope, _no_receive, send)


async def _no_receive() -> dict[str, Any]:
    raise AssertionError("a plain response reads nothing")


async def _whole(job: Job, streams: ChoiceStreams, call: Call) -> Response:
    collected = [Collected() for _ in job.submits]
    while batch := await streams.batch():
        for index, event in batch:
            _note(call, event)
            collected[index].add(event)
    call.output_tokens = sum(choice.output_tokens for choice in collected)
    body = job.shape.whole(collected, usage(job.prompt_tokens, call.output_tokens))
    return Response(body, media_type="application/json")


def _note(call: Call, event: Delta | PromptLogprobs | Finished) -> None:
    if isinstance(event, Delta) and event.token_ids:
        call.saw_token(time.monotonic_ns())
        call.output_tokens += len(event.token_ids)


async def _stream(job: Job, streams: ChoiceStreams, call: Call, writer: EventWriter) -> None:
    """Send the events of all choices.

    The status line waits for the first event, so that a refusal by the engine (queue full, say)
    still has its proper status. A failure after that is one error event, and no [DONE].
    """
    batch = await streams.batch()
    await writer.begin()
    try:
        await writer.write(b"".join(map(job.shape.opening, range(len(job.submits)))))
        output_tokens = [0] * len(job.submits)
        while batch:
            chunks = []
            for index, event in batch:
                _note(call, event)
                if isinstance(event, Finished):
                    output_tokens[index] = event.output_tokens
                chunks.append(_chunk(job, index, event))
            await writer.write(b"".join(chunks))
            batch = await streams.batch()
        call.output_tokens = sum(output_tokens)
        tail = job.shape.usage(usage(job.prompt_tokens, call.output_tokens))
        await writer.write(tail + DONE)
    except StalledReaderError:
        call.outcome = "stalled"
        raise
    except (ApiError, EngineFailedError) as error:
        call.outcome = "failed"
        await writer.write(_error_event(error, call))
    await writer.end()


def _chunk(job: Job, index: int, event: Delta | PromptLogprobs | Finished) -> bytes:
    if isinstance(event, Delta):
        return job.shape.delta(index, event)
    if isinstance(event, Finished):
        return job.shape.closing(index, event)
    return job.shape.scores(index, event)


def _error_event(error: ApiError | EngineFailedError, call: Call) -> bytes:
    refusal = error if isinstance(error, ApiError) else engine_failed(error, call)
    return b"data: " + refusal.body() + b"\n\n"


def engine_failed(error: EngineFailedError, call: Call) -> ApiError:
    """Return the answer to a failure of the engine; what it said goes to the log alone."""
    _log.error("%s: the engine failed: %s", call.request_id, error)
    return ApiError(
        503,
        "the engine failed while it worked on this request; try again "
        f"(request id {call.request_id})",
        kind="server_error",
        code="engine_failed",
        headers={"Retry-After": "1"},
    )


class EventWriter:
    """Server-sent events over ASGI, with a limit on how long a reader may take nothing."""

    def __init__(self, send: Send, *, timeout_s: float) -> None:
        self._send = send
        self._timeout_s = timeout_s

    async def begin(self) -> None:
        """Send the head of the answer."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send events. Raises StalledReaderError when they are not taken in time."""
        if data:
            await self._body(data, more=True)

    async def end(self) -> None:
        """End the answer."""
        await self._body(b"", more=False)

    async def _body(self, data: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise StalledReaderError from None
