"""Completion records of a baseline's frame: all checked first, then every lane is advanced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    Fence,
    GeneratedToken,
    GraphKind,
    Phase,
    ScheduledPlan,
)
from scheduling_sim.baselines.policy import Served
from scheduling_sim.baselines.requests import Request


@dataclasses.dataclass(slots=True)
class Frame:
    """A submitted step."""

    fence: Fence
    plan: ScheduledPlan
    requests: tuple[Request, ...]
    widths: tuple[int, ...]
    """Target rows per lane; zero for every lane that does not generate."""


def check_records(frame: Frame, records: Sequence[CompletionRecord]) -> None:
    """Raise CompletionError when the records contradict the plan."""
    steps = frame.plan.steps
    if len(records) != len(steps):
        raise CompletionError(
            f"fence {frame.fence}: {len(steps)} lanes were committed, {len(records)} completed"
        )
    for step, request, record in zip(steps, frame.requests, records, strict=True):
        produced, ceiling = len(record.tokens), step.output_ceiling
        fault = None
        if record.handle != step.handle:
            fault = f"the record names {record.handle}"
        elif record.prompt_tokens != step.prompt_tokens:
            fault = f"{step.prompt_tokens} prompt tokens were scheduled, {record.prompt_tokens} ran"
        elif produced > ceiling:
            fault = f"{produced} tokens, at most {ceiling} fit"
        elif produced and request.has_end_token:
            fault = "a token after the request's end token"
        elif record.terminated and not produced and not request.has_end_token:
            fault = "terminated without a token"
        elif ceiling and not produced and _is_live(request):
            fault = "no token, but nothing ended the request before"
        if fault is not None:
            raise CompletionError(f"fence {frame.fence}, {step.handle}: {fault}")


def advance(
    frame: Frame, records: Sequence[CompletionRecord]
) -> tuple[list[GeneratedToken], list[Served], list[Request]]:
    """Advance every lane of a checked frame.

    Returns the tokens, what each live lane achieved, and the requests that ended.
    """
    tokens: list[GeneratedToken] = []
    served: list[Served] = []
    ended: list[Request] = []
    is_binding = frame.plan.graph.kind is GraphKind.INITIALIZE
    for step, request, record, width in zip(
        frame.plan.steps, frame.requests, records, frame.widths, strict=True
    ):
        request.in_flight -= 1
        request.queued -= step.output_ceiling
        request.is_wide = False
        if not _is_live(request):
            request.has_end_token |= record.terminated
            continue
        if is_binding:
            if request.phase is Phase.INITIALIZING:
                request.phase = Phase.PREFILL
            continue
        over = _commit(request, record, frame.fence, tokens)
        if over:
            ended.append(request)
        served.append(Served(request, step.prompt_tokens, len(record.tokens), width, over))
    return tokens, served, ended


def _commit(
    request: Request, record: CompletionRecord, fence: Fence, tokens: list[GeneratedToken]
) -> bool:
    """Commit a live lane's output; tell whether it was the last."""
    produced = len(record.tokens)
    if not produced:
        return False
    count = request.output_count
    request.output_count = count + produced
    over = record.terminated or request.output_count >= request.max_output
    if over:
        request.has_end_token = record.terminated
    elif request.phase is Phase.PREFILL:
        request.phase = Phase.DECODE
    last = produced - 1
    for place, token in enumerate(record.tokens):
        tokens.append(
            GeneratedToken(request.handle, token, count + place, fence, over and place == last)
        )
    return over


def _is_live(request: Request) -> bool:
    """Tell whether output still counts: a preempted request's last tokens do."""
    return request.phase <= Phase.DECODE or request.is_leaving
