"""From a JSON body to a Job, for both kinds of completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from helios.engine.messages import EngineEvent, Finished, Ready, Submit
from helios.server.encoding import check_length
from helios.server.parse import parse_chat, parse_completion
from helios.server.schema import ChatRequest, CompletionRequest, SamplingFields
from helios.server.service import Job, Service
from helios.server.shapes import AnswerHead, ChatShape, CompletionShape
from helios.server.submits import build_submits, check_prompt_tokens, check_tokens

DEFAULT_COMPLETION_TOKENS = 16


async def chat_job(service: Service, raw: Mapping[str, Any], call_id: str) -> Job:
    """Return the job of a chat completion. Raises ApiError."""
    engine = service.admission.loaded()
    fields: ChatRequest = parse_chat(raw)
    service.check_model(fields.model, engine)
    check_tokens(fields, engine, service.text.eos_token_ids)
    context = engine.context_length_tokens
    use = fields.tool_use
    prompt = await service.encoder.encode_chat(fields.messages, context - 1, use)
    call_id = f"chatcmpl-{call_id}"
    submits = build_submits(
        fields,
        [prompt],
        call_id=call_id,
        engine=engine,
        max_output_tokens=min(
            fields.max_completion_tokens or context, fields.max_tokens or context
        ),
        top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else -1,
        scored=False,
        grammar=fields.grammar if use is None else use.grammar(fields.grammar),
    )
    shape = ChatShape(
        _head(fields, engine, call_id),
        names=service.names if fields.logprobs else None,
        include_usage=_include_usage(fields),
        callable_names=() if use is None else [tool.name for tool in use.tools],
        has_format=fields.grammar is not None,
    )
    return Job(
        submit=service.backend.submit,
        submits=submits,
        shape=shape,
        stream=bool(fields.stream),
        prompt_tokens=len(prompt),
    )


async def completion_job(service: Service, raw: Mapping[str, Any], call_id: str) -> Job:
    """Return the job of a text completion. Raises ApiError."""
    engine = service.admission.loaded()
    fields: CompletionRequest = parse_completion(raw)
    service.check_model(fields.model, engine)
    check_tokens(fields, engine, service.text.eos_token_ids)
    max_tokens = DEFAULT_COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens
    prompts = await _prompts(service, fields, engine, least_output=min(1, max_tokens))
    call_id = f"cmpl-{call_id}"
    scored = bool(fields.echo) and fields.logprobs is not None
    submits = build_submits(
        fields,
        prompts,
        call_id=call_id,
        engine=engine,
        max_output_tokens=max_tokens,
        top_logprobs=-1 if fields.logprobs is None else fields.logprobs,
        scored=scored,
        grammar=fields.grammar,
    )
    shape = CompletionShape(
        _head(fields, engine, call_id),
        names=None if fields.logprobs is None else service.names,
        include_usage=_include_usage(fields),
        echoes=await _echoes(service, fields),
        scored=scored,
        choice_count=len(submits),
    )
    return Job(
        submit=_nothing_to_do if max_tokens == 0 and not scored else service.backend.submit,
        submits=submits,
        shape=shape,
        stream=bool(fields.stream),
        prompt_tokens=sum(map(len, prompts)),
    )


async def _prompts(
    service: Service, fields: CompletionRequest, engine: Ready, *, least_output: int
) -> Sequence[list[int]]:
    limit = engine.context_length_tokens - least_output
    given: Sequence[Any] = fields.prompt
    if isinstance(given[0], str):
        return [await service.encoder.encode_text(text, limit, "prompt") for text in given]
    for prompt in given:
        check_length(len(prompt), limit, "prompt")
    check_prompt_tokens(given, engine)
    return given


async def _echoes(service: Service, fields: CompletionRequest) -> list[str]:
    """Return what to put before the output of each choice."""
    choices = fields.n or 1
    if not fields.echo:
        return [""] * (len(fields.prompt) * choices)
    texts = []
    for prompt in fields.prompt:
        text = prompt if isinstance(prompt, str) else await service.encoder.decode(prompt)
        texts += [text] * choices
    return texts


async def _nothing_to_do(request: Submit) -> AsyncIterator[EngineEvent]:
    """Answer a request for no tokens and no scores, which no graph needs to run for."""
    await asyncio.sleep(0)
    yield Finished(
        request_id=request.request_id,
        reason="length",
        prompt_tokens=len(request.prompt_token_ids),
        output_tokens=0,
    )


def _head(fields: SamplingFields, engine: Ready, call_id: str) -> AnswerHead:
    return AnswerHead(
        id=call_id,
        created=int(time.time()),
        model=fields.model,
        system_fingerprint=f"{engine.backend}-{engine.precision}",
    )


def _include_usage(fields: SamplingFields) -> bool:
    return fields.stream_options is not None and bool(fields.stream_options.include_usage)
