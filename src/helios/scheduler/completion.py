"""Completion records: every lane is checked before anything changes, then every lane is advanced.

A lane whose request was cancelled or finished by the host after submission ran all the same: what
it produced is plausible, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler.catalog import RowAllocation
from helios.scheduler.checks import LARGEST_INTEGER
from helios.scheduler.errors import CompletionError
from helios.scheduler.lifecycle import Event
from helios.scheduler.plan import ScheduledStep
from helios.scheduler.records import CompletionRecord, ExecutionTiming, GeneratedToken, Phase
from helios.scheduler.requests import Request
from helios.scheduler.rounds_completion import offered_rows
from helios.scheduler.stages import STAGE_KINDS, finish_stage
from helios.scheduler.units import Fence
from helios.scheduler.window import Frame

_new = tuple.__new__


def check_timing(timing: ExecutionTiming) -> None:
    """Raise CompletionError for an interval that no clock can produce."""
    for name, value in (
        ("wall_ns", timing.wall_ns),
        ("readiness_ns", timing.readiness_ns),
        *(("device_ns", value) for value in timing.device_ns),
    ):
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not 0 <= value <= LARGEST_INTEGER:
            # The number may be too long to print.
            shown = "one above 2**62" if is_integer and value > 0 else repr(value)
            raise CompletionError(f"timing.{name} must be a nonnegative integer, not {shown}")


def check_records(frame: Frame, records: Sequence[CompletionRecord]) -> None:
    """Raise CompletionError when the records contradict the committed plan."""
    steps = frame.plan.steps
    if len(records) != len(steps):
        raise CompletionError(
            f"fence {frame.fence}: {len(steps)} lanes were committed, {len(records)} completed"
        )
    is_exact = frame.plan.graph.allocation is not RowAllocation.DEVICE
    for step, request, record in zip(steps, frame.requests, records, strict=True):
        ceiling, offered = step.output_ceiling, record.offered
        if (
            record.handle != step.handle
            or record.prompt_tokens != step.prompt_tokens
            or record.terminated
            or request.phase > Phase.DECODE
            or (offered and ((is_exact and offered != ceiling) or type(offered) is not int))
            or not 0 < len(record.tokens) <= (offered or ceiling) <= ceiling
        ):
            fault = _fault_of(step, request, record, is_exact=is_exact)
            if fault is not None:
                raise CompletionError(f"fence {frame.fence}, {step.handle}: {fault}")


def _fault_of(
    step: ScheduledStep, request: Request, record: CompletionRecord, *, is_exact: bool
) -> str | None:
    """Say how a lane's record contradicts its step; None when it does not."""
    ceiling, produced = step.output_ceiling, len(record.tokens)
    if record.handle != step.handle:
        return f"the record names {record.handle}"
    if record.prompt_tokens != step.prompt_tokens:
        return f"{step.prompt_tokens} prompt tokens were scheduled, {record.prompt_tokens} consumed"
    offered = offered_rows(record, ceiling)
    if isinstance(offered, bool) or not isinstance(offered, int) or not 0 <= offered <= ceiling:
        return f"{record.offered!r} target rows were offered, at most {ceiling} fit"
    if is_exact and offered != ceiling:
        return f"{offered} target rows were offered, the host had fixed {ceiling}"
    if produced > offered:
        return f"{produced} tokens, at most {offered} fit"
    if request.end_token_seen:
        # The earlier frame ended this request on the device, where a finished row stays silent.
        return "a token after the request's end token" if produced else None
    if record.terminated and not produced:
        return "terminated without a token"
    if not produced and ceiling and request.phase <= Phase.DECODE:
        return "no token, but nothing ended the request before"
    return None


class Outcome(NamedTuple):
    """What the live lanes of a completed frame achieved."""

    tokens: list[GeneratedToken]
    served: dict[Request, int]
    """Prompt and output tokens that each live lane committed."""
    prices_before: dict[Request, float | None]
    """Delivery price before the frame's interval, of each lane that committed an output token."""


def apply_records(
    frame: Frame, records: Sequence[CompletionRecord], *, epoch: int, now_ns: int
) -> Outcome:
    """Advance every lane of a checked frame; ended and cancelled lanes only leave the frame."""
    outcome = Outcome([], {}, {})
    served = outcome.served
    kind, rows = frame.plan.graph.kind, frame.plan.graph.rows
    decode, fence = Phase.DECODE, frame.fence
    for step, request, record in zip(frame.plan.steps, frame.requests, records, strict=True):
        request.queued -= 1
        ceiling = step.output_ceiling
        request.queued_tokens -= ceiling if ceiling < rows else rows
        request.epoch = epoch
        count = request.output_count + len(record.tokens)
        if (
            request.phase is decode
            and count < request.max_output
            and record.tokens
            and not (record.terminated or record.prompt_tokens)
        ):
            # Nearly every lane of nearly every frame: a stream that goes on.
            _emit(request, record.tokens, fence, outcome)
            served[request] = len(record.tokens)
        elif request.phase > decode:
            request.end_token_seen |= record.terminated
        elif kind in STAGE_KINDS:
            finish_stage(request, kind)
            if request.phase is Phase.INITIALIZING:
                request.move(Event.STAGED if request.stages else Event.INITIALIZED, epoch)
        else:
            _advance(request, record, frame, outcome, now_ns)
    return outcome


def _emit(request: Request, tokens: tuple[int, ...], fence: Fence, outcome: Outcome) -> None:
    """Append the tokens that a live lane committed to its request and to the outcome."""
    outcome.prices_before[request] = request.delivery_price
    # What the host had copied followed the old pending token.
    request.copies = 0
    handle, count, append = request.handle, request.output_count, outcome.tokens.append
    request.output_count = count + len(tokens)
    for token in tokens:
        # The constructor of a named tuple does this through one call more.
        append(_new(GeneratedToken, (handle, token, count, fence, False)))
        count += 1


def _advance(
    request: Request, record: CompletionRecord, frame: Frame, outcome: Outcome, now_ns: int
) -> None:
    """Advance one live lane of a prefill or decode frame by what it did."""
    tokens, prompt_tokens = record.tokens, record.prompt_tokens
    outcome.served[request] = prompt_tokens + len(tokens)
    request.prompt_done += prompt_tokens
    count = request.output_count
    ends = bool(record.terminated) or count + len(tokens) == request.max_output
    if tokens:
        _emit(request, tokens, frame.fence, outcome)
        if ends:
            outcome.tokens[-1] = outcome.tokens[-1]._replace(is_last=True)
    if ends and request.prompt_done == request.prompt_tokens:
        request.end_token_seen = record.terminated
        request.move(Event.TERMINATED, request.epoch)
        request.terminal_since_ns = now_ns
    elif request.phase is Phase.PREFILL and tokens:
        request.move(Event.PROMPT_DONE, request.epoch)
        if request.output_count == len(tokens):
            # A replayed prompt's stream has been waiting since its last visible output.
            request.visible_ns = now_ns
