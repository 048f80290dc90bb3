"""A plan becomes a frame, and a frame's result becomes completion records.

Row mapping comes from the plan alone: lane i of the frame, of the result and of the records is
lane i of the plan, whatever happened to its request in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from helios.engine.ports import DecisionCore, Frame, FrameLane, FrameResult, LaneOutput, Sidecar
from helios.engine.requests import LiveRequest
from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    GraphKind,
    ProposalSource,
    RowAllocation,
    ScheduledPlan,
    ScheduledStep,
)

_STREAMING = (GraphKind.DECODE, GraphKind.SPECULATIVE)
_BINDING = (GraphKind.INITIALIZE, GraphKind.RESTORE)

_NEW_RECORD = partial(tuple.__new__, CompletionRecord)
"""Makes a record of all its fields; the generated constructor takes twice as long."""
_LOGPROBS = attrgetter("logprobs")


class LaneOutputError(Exception):
    """An executor returned outputs that do not fit the plan they were executed for."""


def frame_of(
    plan: ScheduledPlan,
    fence: Fence,
    requests: Sequence[LiveRequest],
    front: ScheduledPlan | None = None,
) -> Frame:
    """Return the frame that executes `plan`; `requests` stand in the plan's lane order.

    `front` is the plan of the frame in flight, behind which this one will be queued.
    """
    kind, pairs = plan.graph.kind, zip(plan.steps, requests, strict=True)
    lanes = tuple([_lane_of(kind, step, request) for step, request in pairs])
    if plan.graph.source is ProposalSource.COPY:
        lanes = tuple(map(_with_copies, lanes, requests))
    if any(request.is_constrained for request in requests):
        running = {step.handle for step in front.steps} if front is not None else set()
        lanes = tuple(
            _with_masks(lane, request, is_queued=lane.handle in running)
            for lane, request in zip(lanes, requests, strict=True)
        )
    return Frame(fence=fence, graph_index=plan.graph_index, lanes=lanes)


def _with_copies(lane: FrameLane, request: LiveRequest) -> FrameLane:
    """Return a lane with the proposals that its query length makes room for."""
    count = max(0, lane.query_length - 1)
    assert count <= len(request.proposal), "a lane has no more rows than the host has supplied"
    return lane._replace(copied_token_ids=request.proposal[:count])


def _with_masks(lane: FrameLane, request: LiveRequest, *, is_queued: bool) -> FrameLane:
    """Return a lane with the masks of the rows that it samples from, where it has a grammar.

    Row i of a request's masks is what may follow its first i proposals, whatever its neighbours
    take. Behind a frame of the request the mask follows what that one draws.
    """
    rows = lane.query_length or int(lane.is_final_chunk)
    if not request.is_constrained or not rows:
        return lane
    if is_queued:
        assert rows == 1, "what proposals follow must be known, so they are never queued"
        return lane._replace(queued_mask=request.queued_mask())
    return lane._replace(masks=request.masks(rows))


def _lane_of(kind: GraphKind, step: ScheduledStep, request: LiveRequest) -> FrameLane:
    """Return one lane with the inputs that its kind of program reads."""
    if step.prompt_tokens:
        return _prompt_lane(step, request)
    if kind in _BINDING:
        return _binding_lane(step, request)
    if kind in _STREAMING:
        # Nearly every lane of nearly every frame; each field named here costs time.
        return FrameLane(
            step.handle,
            step.row,
            step.position,
            step.pages,
            query_length=step.output_ceiling,
            incarnation=step.incarnation,
            request_id=request.request_id,
        )
    return FrameLane(
        handle=step.handle,
        row=step.row,
        position=step.position,
        pages=step.pages,
        query_length=step.output_ceiling,
        snapshot_row=step.snapshot_row,
        is_retired=step.is_retired,
        image_index=step.image_index,
        feature_offset=step.feature_offset,
        incarnation=step.incarnation,
        request_id=request.request_id,
    )


def _prompt_lane(step: ScheduledStep, request: LiveRequest) -> FrameLane:
    """Return a lane that consumes prompt tokens, or those that a preempted request replays."""
    end = step.position + step.prompt_tokens
    following = request.token_at(end)
    return FrameLane(
        handle=step.handle,
        row=step.row,
        position=step.position,
        pages=step.pages,
        prompt_token_ids=request.tokens_between(step.position, end),
        next_prompt_token_id=following,
        is_final_chunk=following < 0,
        is_prompt=True,
        image_index=step.image_index,
        feature_offset=step.feature_offset,
        incarnation=step.incarnation,
        request_id=request.request_id,
    )


def _binding_lane(step: ScheduledStep, request: LiveRequest) -> FrameLane:
    """Return a lane that binds a row to a fresh state or to a kept one."""
    replayed = request.replayed_tokens
    return FrameLane(
        handle=step.handle,
        row=step.row,
        position=step.position,
        pages=step.pages,
        prompt_length=request.accepted.spec.prompt_tokens + replayed,
        sampling=request.accepted.sampling,
        replayed_tokens=replayed,
        snapshot_row=step.snapshot_row,
        incarnation=step.incarnation,
        request_id=request.request_id,
    )


def complete(
    core: DecisionCore, plan: ScheduledPlan, result: FrameResult, timing: ExecutionTiming
) -> Sequence[GeneratedToken]:
    """Complete a frame that ran, through the call that takes what its program reports.

    Raises LaneOutputError or CompletionError, both before anything is changed.
    """
    records, graph = records_of(plan, result), plan.graph
    confidence = survival = None
    if graph.allocation is RowAllocation.DEVICE or result.confidence is not None:
        confidence = _reported(plan, "confidence", result.confidence)
    if graph.reports_survival or result.survival is not None:
        survival = _reported(plan, "survival", result.survival)
    if confidence is None:
        if survival is None:
            return core.complete(result.fence, records, timing)
        return core.complete_with_survival(result.fence, records, timing, survival)
    if survival is None:
        return core.complete_packed_round(result.fence, records, timing, confidence)
    return core.complete_packed_round_with_survival(
        result.fence, records, timing, confidence, survival
    )


def _reported(plan: ScheduledPlan, name: str, sidecar: Sidecar | None) -> Sidecar:
    if sidecar is None:
        raise LaneOutputError(f"{plan.graph.name} reports {name}; its frame came back without")
    return sidecar


def records_of(plan: ScheduledPlan, result: FrameResult) -> list[CompletionRecord]:
    """Return the completion records of a frame that ran.

    Raises LaneOutputError when the outputs do not fit the plan, before anything is changed.
    """
    if len(result.lanes) != len(plan.steps):
        raise LaneOutputError(
            f"{plan.graph.name} returned {len(result.lanes)} lanes for {len(plan.steps)}"
        )
    pairs = zip(plan.steps, result.lanes, strict=True)
    is_scored = plan.graph.kind is GraphKind.SCORED_PREFILL
    if is_scored or any(map(_LOGPROBS, result.lanes)):
        return [_record_of(plan, step, lane) for step, lane in pairs]
    # Nearly every frame: what its lanes produced is all that there is to say.
    return [
        _NEW_RECORD((step.handle, step.prompt_tokens, lane.tokens, lane.terminated, lane.offered))
        for step, lane in pairs
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
        step.handle, step.prompt_tokens, lane.tokens, lane.terminated, lane.offered
    )
