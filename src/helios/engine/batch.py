"""A plan becomes a frame, and a frame's result becomes completion records.

Row mapping comes from the plan alone: lane i of the frame, of the result and of the records is
lane i of the plan, whatever happened to its request in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence

from helios.engine.ports import Frame, FrameLane, FrameResult, LaneOutput
from helios.engine.requests import LiveRequest
from helios.scheduler import (
    CompletionRecord,
    Fence,
    GraphKind,
    ScheduledPlan,
    ScheduledStep,
)


class LaneOutputError(Exception):
    """An executor returned outputs that do not fit the plan they were executed for."""


def frame_of(plan: ScheduledPlan, fence: Fence, requests: Sequence[LiveRequest]) -> Frame:
    """Return the frame that executes `plan`; `requests` stand in the plan's lane order."""
    kind = plan.graph.kind
    return Frame(
        fence=fence,
        graph_index=plan.graph_index,
        lanes=tuple(
            _lane_of(kind, step, request)
            for step, request in zip(plan.steps, requests, strict=True)
        ),
    )


def _lane_of(kind: GraphKind, step: ScheduledStep, request: LiveRequest) -> FrameLane:
    """Return one lane with the inputs that its kind of program reads."""
    if kind is GraphKind.INITIALIZE:
        return FrameLane(
            handle=step.handle,
            row=step.row,
            position=step.position,
            pages=step.pages,
            prompt_length=request.accepted.spec.prompt_tokens,
            sampling=request.accepted.sampling,
        )
    if kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        prompt = request.accepted.prompt
        end = step.position + step.prompt_tokens
        return FrameLane(
            handle=step.handle,
            row=step.row,
            position=step.position,
            pages=step.pages,
            prompt_token_ids=prompt[step.position : end],
            next_prompt_token_id=int(prompt[end]) if end < len(prompt) else -1,
            is_final_chunk=end == len(prompt),
        )
    return FrameLane(handle=step.handle, row=step.row, position=step.position, pages=step.pages)


def records_of(plan: ScheduledPlan, result: FrameResult) -> list[CompletionRecord]:
    """Return the completion records of a frame that ran.

    Raises LaneOutputError when the outputs do not fit the plan, before anything is changed.
    """
    if len(result.lanes) != len(plan.steps):
        raise LaneOutputError(
            f"{plan.graph.name} returned {len(result.lanes)} lanes for {len(plan.steps)}"
        )
    return [
        _record_of(plan, step, lane) for step, lane in zip(plan.steps, result.lanes, strict=True)
    ]


def _record_of(plan: ScheduledPlan, step: ScheduledStep, lane: LaneOutput) -> CompletionRecord:
    """Return one lane's record; what the scheduler checks itself is left to it."""
    if plan.graph.kind is GraphKind.SCORED_PREFILL and not step.output_ceiling:
        # The end of a prompt always samples; a request that only wants scores has no use for it.
        return CompletionRecord(handle=step.handle, prompt_tokens=step.prompt_tokens)
    if lane.logprobs and len(lane.logprobs) != len(lane.tokens):
        raise LaneOutputError(
            f"{plan.graph.name} row {step.row} returned {len(lane.logprobs)} log-probabilities "
            f"for {len(lane.tokens)} tokens"
        )
    return CompletionRecord(
        handle=step.handle,
        prompt_tokens=step.prompt_tokens,
        tokens=lane.tokens,
        terminated=lane.terminated,
    )
