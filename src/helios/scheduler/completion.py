"""Validation of completion records: every lane is checked before anything changes.

A lane whose request was cancelled or finished by the host after submission ran all the same: what
it produced is plausible, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from helios.scheduler.errors import CompletionError
from helios.scheduler.plan import ScheduledStep
from helios.scheduler.records import CompletionRecord, ExecutionTiming, Phase
from helios.scheduler.requests import Request
from helios.scheduler.window import Frame


def check_timing(timing: ExecutionTiming) -> None:
    """Raise CompletionError for an interval that no clock can produce."""
    for name, value in (
        ("wall_ns", timing.wall_ns),
        ("readiness_ns", timing.readiness_ns),
        *(("device_ns", value) for value in timing.device_ns),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CompletionError(f"timing.{name} must be a nonnegative integer, not {value!r}")


def check_records(frame: Frame, records: Sequence[CompletionRecord]) -> None:
    """Raise CompletionError when the records contradict the committed plan."""
    steps = frame.plan.steps
    if len(records) != len(steps):
        raise CompletionError(
            f"fence {frame.fence}: {len(steps)} lanes were committed, {len(records)} completed"
        )
    for step, request, record in zip(steps, frame.requests, records, strict=True):
        if (
            record.handle != step.handle
            or record.prompt_tokens != step.prompt_tokens
            or len(record.tokens) != step.output_ceiling
            or record.terminated
            or request.phase > Phase.DECODE
        ):
            _check_unusual(frame, step, request, record)


def _check_unusual(
    frame: Frame, step: ScheduledStep, request: Request, record: CompletionRecord
) -> None:
    where = f"fence {frame.fence}, {step.handle}"
    if record.handle != step.handle:
        raise CompletionError(f"{where}: the record names {record.handle}")
    if record.prompt_tokens != step.prompt_tokens:
        raise CompletionError(
            f"{where}: {step.prompt_tokens} prompt tokens were scheduled, "
            f"{record.prompt_tokens} consumed"
        )
    produced = len(record.tokens)
    if produced > step.output_ceiling:
        raise CompletionError(f"{where}: {produced} tokens, at most {step.output_ceiling} fit")
    if request.end_token_seen:
        # The earlier frame ended this request on the device, where a finished row stays silent.
        if produced:
            raise CompletionError(f"{where}: a token after the request's end token")
        return
    if record.terminated and not produced:
        raise CompletionError(f"{where}: terminated without a token")
    if produced < step.output_ceiling and request.phase <= Phase.DECODE:
        raise CompletionError(f"{where}: no token, but nothing ended the request before")
