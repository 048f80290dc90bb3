"""Completion records of a baseline's frame: all checked first, then every lane is advanced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    Fence,
    GeneratedToken,
    GraphKind,
    Phase,
    ScheduledPlan,
    ScheduledStep,
)
from scheduling_sim.baselines.policy import Served
from scheduling_sim.baselines.requests import Request

_new = tuple.__new__
# Looking a member up in its enumeration takes as long as a comparison.
_PREFILL, _DECODE, _DRAINING = Phase.PREFILL, Phase.DECODE, Phase.DRAINING


@dataclasses.dataclass(slots=True)
class Frame:
    """A submitted step."""

    fence: Fence
    plan: ScheduledPlan
    requests: tuple[Request, ...]
    widths: tuple[int, ...]
    """Target rows per lane; zero for every lane that does not generate."""


class Outcome(NamedTuple):
    """What a completed frame achieved."""

    tokens: list[GeneratedToken]
    served: list[Served]
    """Of each live lane; empty when nobody observes."""
    ended: list[Request]
    leaving: list[Request]
    """Requests whose row may come back now."""


def check_records(frame: Frame, records: Sequence[CompletionRecord]) -> None:
    """Raise CompletionError when the records contradict the plan."""
    steps = frame.plan.steps
    if len(records) != len(steps):
        raise CompletionError(
            f"fence {frame.fence}: {len(steps)} lanes were committed, {len(records)} completed"
        )
    for step, request, record in zip(steps, frame.requests, records, strict=True):
        if (
            record.handle != step.handle
            or record.prompt_tokens != step.prompt_tokens
            or record.terminated
            or request.phase > _DECODE
            or not 0 < len(record.tokens) <= step.output_ceiling
        ):
            fault = _fault_of(step, request, record)
            if fault is not None:
                raise CompletionError(f"fence {frame.fence}, {step.handle}: {fault}")


def _fault_of(step: ScheduledStep, request: Request, record: CompletionRecord) -> str | None:
    """Say how a lane's record contradicts its step; None when it does not."""
    produced, ceiling = len(record.tokens), step.output_ceiling
    if record.handle != step.handle:
        return f"the record names {record.handle}"
    if record.prompt_tokens != step.prompt_tokens:
        return f"{step.prompt_tokens} prompt tokens were scheduled, {record.prompt_tokens} ran"
    if produced > ceiling:
        return f"{produced} tokens, at most {ceiling} fit"
    if request.has_end_token:
        # The earlier frame ended this request on the device, where a finished row stays silent.
        return "a token after the request's end token" if produced else None
    if record.terminated and not produced:
        return "terminated without a token"
    if ceiling and not produced and _is_live(request):
        return "no token, but nothing ended the request before"
    return None


def advance(frame: Frame, records: Sequence[CompletionRecord], *, is_observed: bool) -> Outcome:
    """Advance every lane of a checked frame."""
    outcome = Outcome([], [], [], [])
    kind, fence = frame.plan.graph.kind, frame.fence
    is_binding, is_terminal = kind is GraphKind.INITIALIZE, kind is GraphKind.TERMINAL
    for step, request, record, width in zip(
        frame.plan.steps, frame.requests, records, frame.widths, strict=True
    ):
        request.in_flight -= 1
        request.queued -= step.output_ceiling
        request.is_wide = False
        if request.phase > _DECODE:
            if is_terminal or step.is_retired or request.phase is _DRAINING:
                outcome.leaving.append(request)
            if not _is_live(request) or is_terminal:
                request.has_end_token |= record.terminated
                continue
        if is_binding:
            if request.phase is Phase.INITIALIZING:
                request.phase = _PREFILL
            continue
        over = bool(record.tokens) and _commit(request, record, fence, outcome.tokens)
        if over:
            outcome.ended.append(request)
        if is_observed:
            outcome.served.append(
                Served(request, step.prompt_tokens, len(record.tokens), width, over)
            )
    return outcome


def _commit(
    request: Request, record: CompletionRecord, fence: Fence, tokens: list[GeneratedToken]
) -> bool:
    """Commit a live lane's output, at least one token; tell whether the last one is among it."""
    count, handle = request.output_count, request.handle
    request.output_count = count + len(record.tokens)
    for token in record.tokens:
        # The constructor of a named tuple does this through one call more.
        tokens.append(_new(GeneratedToken, (handle, token, count, fence, False)))
        count += 1
    if record.terminated or count >= request.max_output:
        tokens[-1] = tokens[-1]._replace(is_last=True)
        request.has_end_token = record.terminated
        return True
    if request.phase is _PREFILL:
        request.phase = _DECODE
    return False


def _is_live(request: Request) -> bool:
    """Tell whether output still counts: a preempted request's last tokens do."""
    return request.phase <= _DECODE or request.is_leaving
