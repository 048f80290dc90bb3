"""Completion records: every lane is checked before anything changes, then every lane is advanced.

A lane whose request was cancelled or finished by the host after submission ran all the same: what
it produced is plausible, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import add, le, lt
from typing import NamedTuple

from helios.scheduler.catalog import GraphKind, RowAllocation
from helios.scheduler.checks import LARGEST_INTEGER, check_type, shown
from helios.scheduler.columns import (
    Columns,
    are_all,
    columns_of,
    fault_of_types,
    is_a,
    is_handle,
)
from helios.scheduler.errors import CompletionError
from helios.scheduler.lifecycle import Event
from helios.scheduler.plan import ScheduledStep
from helios.scheduler.records import (
    CompletionRecord,
    ExecutionTiming,
    GeneratedToken,
    Phase,
)
from helios.scheduler.requests import Request
from helios.scheduler.rounds_completion import offered_rows
from helios.scheduler.stages import STAGE_KINDS, finish_stage
from helios.scheduler.units import Fence
from helios.scheduler.window import Frame

_new = tuple.__new__
_STREAM_KINDS = (GraphKind.DECODE, GraphKind.SPECULATIVE)


def check_timing(timing: ExecutionTiming) -> None:
    """Raise CompletionError for an interval that no clock can produce."""
    check_type(CompletionError, "timing", timing, ExecutionTiming, "an ExecutionTiming")
    check_type(CompletionError, "timing.device_ns", timing.device_ns, tuple, "a tuple of integers")
    values = (timing.wall_ns, timing.readiness_ns, timing.feedback_ns, *timing.device_ns)
    if are_all(int, values) and min(values) >= 0 and max(values) <= LARGEST_INTEGER:
        return
    ranks = [f"device_ns[{rank}]" for rank in range(len(timing.device_ns))]
    names = ("wall_ns", "readiness_ns", "feedback_ns", *ranks)
    for name, value in zip(names, values, strict=True):
        is_integer = is_a(int, value)
        if not is_integer or not 0 <= value <= LARGEST_INTEGER:
            # The number may be too long to print.
            what = "one above 2**62" if is_integer and value > 0 else shown(value)
            raise CompletionError(f"timing.{name} must be a nonnegative integer, not {what}")


class Streaming(NamedTuple):
    """What the records of a frame say, in columns: every lane is a stream that goes on.

    None of them ended, was silent or had a prompt: nearly every frame of a busy server.
    """

    bursts: Sequence[tuple[int, ...]]
    tokens: list[int]
    """Those of all bursts, one lane after the other."""
    produced: list[int]
    """Tokens of each lane."""
    offered: list[int]
    """Target rows of each lane."""


def check_records(frame: Frame, records: Sequence[CompletionRecord]) -> Streaming | None:
    """Raise CompletionError when the records contradict the committed plan.

    Return their columns if all lanes are streams that go on, which have no fault.
    """
    steps = frame.plan.steps
    check_type(CompletionError, "records", records, Sequence, "a sequence of CompletionRecord")
    if len(records) != len(steps):
        raise CompletionError(
            f"fence {frame.fence}: {len(steps)} lanes were committed, {len(records)} completed"
        )
    columns = columns_of(records, frame.handles)
    streaming = None if columns is None else _streaming(frame, columns)
    if streaming is not None:
        return streaming
    is_exact = frame.plan.graph.allocation is not RowAllocation.DEVICE
    for step, request, record in zip(steps, frame.requests, records, strict=True):
        if columns is not None:
            ceiling, offered = step.output_ceiling, record.offered
            if not (
                record.handle != step.handle
                or record.prompt_tokens != step.prompt_tokens
                or record.terminated
                or request.phase > Phase.DECODE
                or (offered and is_exact and offered != ceiling)
                or not 0 < len(record.tokens) <= (offered or ceiling) <= ceiling
            ):
                continue
        fault = _fault_of(step, request, record, is_exact=is_exact)
        if fault is not None:
            raise CompletionError(f"fence {frame.fence}, {step.handle}: {fault}")
    return None


def _streaming(frame: Frame, columns: Columns) -> Streaming | None:
    """Return the columns of records without a fault or an end; None if a lane has to be asked."""
    requests, graph = frame.requests, frame.plan.graph
    if graph.kind not in _STREAM_KINDS:
        return None
    handles, prompts, bursts, ends, told, tokens = columns
    produced = list(map(len, bursts))
    if list(handles) != frame.handles or any(prompts) or any(ends) or 0 in produced:
        return None
    if [request.phase for request in requests].count(Phase.DECODE) < len(requests):
        return None
    offered = _offered(told, frame)
    if offered is None or (produced != offered and not all(map(le, produced, offered))):
        return None
    left = [request.max_output - request.output_count for request in requests]
    # Usually nobody is anywhere near the end.
    if min(left) <= max(produced) and not all(map(lt, produced, left)):
        return None
    return Streaming(bursts, tokens, produced, offered)


def _offered(told: Sequence[int], frame: Frame) -> list[int] | None:
    """Return the target rows of every lane; None where the frame does not allow them."""
    ceilings = frame.ceilings
    if not any(told):
        return ceilings
    if frame.plan.graph.allocation is not RowAllocation.DEVICE:
        return ceilings if list(told) == ceilings else None
    offered = [rows or ceiling for rows, ceiling in zip(told, ceilings, strict=True)]
    return offered if all(map(le, offered, ceilings)) else None


def _fault_of(
    step: ScheduledStep, request: Request, record: CompletionRecord, *, is_exact: bool
) -> str | None:
    """Say how a lane's record contradicts its step; None when it does not."""
    fault = fault_of_types(record)
    if fault is not None:
        return fault
    produced = len(record.tokens)
    if not is_handle(record.handle) or record.handle != step.handle:
        return f"the record names {shown(record.handle)}"
    fault = _fault_of_counts(step, record, is_exact=is_exact)
    if fault is not None:
        return fault
    if request.end_token_seen:
        # The earlier frame ended this request on the device, where a finished row stays silent.
        return "a token after the request's end token" if produced else None
    if record.terminated and not produced:
        return "terminated without a token"
    if not produced and step.output_ceiling and request.phase <= Phase.DECODE:
        return "no token, but nothing ended the request before"
    return None


def _fault_of_counts(
    step: ScheduledStep, record: CompletionRecord, *, is_exact: bool
) -> str | None:
    """Say which number of a record is not what its step allows; None for neither."""
    ceiling, consumed = step.output_ceiling, record.prompt_tokens
    if not is_a(int, consumed) or consumed != step.prompt_tokens:
        return f"{step.prompt_tokens} prompt tokens were scheduled, {shown(consumed)} consumed"
    if not is_a(int, record.offered) or not 0 <= record.offered <= ceiling:
        return f"{shown(record.offered)} target rows were offered, at most {ceiling} fit"
    offered, produced = offered_rows(record, ceiling), len(record.tokens)
    if is_exact and offered != ceiling:
        return f"{offered} target rows were offered, the host had fixed {ceiling}"
    return f"{produced} tokens, at most {offered} fit" if produced > offered else None


class Outcome(NamedTuple):
    """What the live lanes of a completed frame achieved."""

    tokens: list[GeneratedToken]
    served: dict[Request, int]
    """Prompt and output tokens that each live lane committed."""
    prices_before: dict[Request, float | None]
    """Delivery price before the frame's interval, of each lane that committed an output token."""


def apply_streaming(frame: Frame, streaming: Streaming, *, epoch: int) -> Outcome:
    """Advance the lanes of a checked frame whose streams all go on; see `apply_records`."""
    requests, produced = frame.requests, streaming.produced
    prices = [request.delivery_price for request in requests]
    counts = [request.output_count for request in requests]
    for request, advance, count in zip(
        requests, frame.advances, map(add, counts, produced), strict=True
    ):
        request.queued -= 1
        request.queued_tokens -= advance
        request.epoch = epoch
        request.output_count = count
        # What the host had copied followed the old pending token.
        request.copies = 0
    return Outcome(
        _generated(frame, streaming, counts),
        dict(zip(requests, produced, strict=True)),
        dict(zip(requests, prices, strict=True)),
    )


def _generated(frame: Frame, streaming: Streaming, counts: list[int]) -> list[GeneratedToken]:
    """Return the tokens of all lanes behind the output counts that they had; none is a last one.

    The constructor of a named tuple makes them through one call more each.
    """
    handles, fence = frame.handles, frame.fence
    bursts, tokens, produced, _ = streaming
    if len(produced) == len(tokens):
        columns = zip(handles, tokens, counts, repeat(fence), repeat(False), strict=False)
        return list(map(_new, repeat(GeneratedToken), columns))
    return [
        _new(GeneratedToken, (handle, token, index, fence, False))
        for handle, burst, count in zip(handles, bursts, counts, strict=True)
        for index, token in enumerate(burst, count)
    ]


def apply_records(
    frame: Frame, records: Sequence[CompletionRecord], *, epoch: int, now_ns: int
) -> Outcome:
    """Advance every lane of a checked frame; ended and cancelled lanes only leave the frame."""
    outcome = Outcome([], {}, {})
    emitted, served, prices = outcome
    append, kind = emitted.append, frame.plan.graph.kind
    decode, fence = Phase.DECODE, frame.fence
    for advance, request, record in zip(frame.advances, frame.requests, records, strict=True):
        request.queued -= 1
        request.queued_tokens -= advance
        request.epoch = epoch
        tokens, index = record.tokens, request.output_count
        produced = len(tokens)
        if (
            request.phase is decode
            and index + produced < request.max_output
            and produced
            and not (record.terminated or record.prompt_tokens)
        ):
            # Nearly every lane: a stream that goes on, in a frame where another one does not. It is
            # `_emit`, without a call for each.
            prices[request] = request.delivery_price
            request.copies = 0
            request.output_count = index + produced
            served[request] = produced
            handle = request.handle
            for token in tokens:
                append(_new(GeneratedToken, (handle, token, index, fence, False)))
                index += 1
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
