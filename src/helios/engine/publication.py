"""Publication: what a completed frame's outputs become for the clients.

Reads the frame's outputs and the tokens that the scheduler committed; the requests change, the
scheduler does not. A request whose text side fails is reported, not raised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from helios.engine.flight import Flight, Roster
from helios.engine.messages import Delta, EngineEvent
from helios.engine.ports import FrameResult, LaneOutput
from helios.engine.requests import LiveRequest
from helios.engine.trace import LaneTrace
from helios.scheduler import GeneratedToken, GraphKind, ScheduledStep


@dataclasses.dataclass(slots=True)
class Publication:
    """The visible side of one completed frame, in the lane order of its plan."""

    events: list[EngineEvent] = dataclasses.field(default_factory=list)
    delivered: list[tuple[LiveRequest, int]] = dataclasses.field(default_factory=list)
    """Requests with visible output, and how many tokens each delivery carries."""
    stopped: list[LiveRequest] = dataclasses.field(default_factory=list)
    """Requests whose output a stop string or the end of their grammar ended: the scheduler does not
    know yet."""
    ended: list[LiveRequest] = dataclasses.field(default_factory=list)
    """Requests whose last token this frame committed, stopped ones included."""
    left: list[LiveRequest] = dataclasses.field(default_factory=list)
    """Requests whose row was retired: over, or preempted and to come back."""
    faults: list[tuple[LiveRequest, str]] = dataclasses.field(default_factory=list)
    """Requests whose text side failed."""
    lanes: list[LaneTrace] = dataclasses.field(default_factory=list)
    """What each lane came to; empty when nobody traces."""


def publish(
    flight: Flight,
    result: FrameResult,
    generated: Sequence[GeneratedToken],
    roster: Roster,
    *,
    is_traced: bool = True,
) -> Publication:
    """Return what the frame makes visible; lanes of requests that have left make nothing.

    `generated` are the frame's committed tokens in lane order. The tokens of one lane are one
    delivery, however many there are.
    """
    published, plan = Publication(), flight.plan
    is_retirement, start, total = plan.graph.kind is GraphKind.TERMINAL, 0, len(generated)
    for step, request, lane in zip(plan.steps, flight.requests, result.lanes, strict=True):
        end, handle = start, request.handle
        while end < total and generated[end].handle == handle:
            end += 1
        tokens, start = generated[start:end], end
        if is_traced:
            published.lanes.append(_trace_of(step, request, lane, len(tokens)))
        if roster.with_handle(handle) is not request:
            continue
        if is_retirement or step.is_retired:
            published.left.append(request)
        elif (
            len(tokens) == 1
            and request.is_plain
            and not (tokens[0].is_last or step.prompt_tokens or lane.logprobs)
        ):
            # Nearly every lane of nearly every frame.
            _publish_single(request, tokens[0].token, published)
        elif tokens or step.prompt_tokens:
            _publish_safely(step, request, lane, tokens, published)
    assert start == total, "the core returns the tokens of the frame's own lanes, in their order"
    return published


def _trace_of(
    step: ScheduledStep, request: LiveRequest, lane: LaneOutput, tokens: int
) -> LaneTrace:
    return LaneTrace(
        request_id=request.request_id,
        prompt_tokens=step.prompt_tokens,
        tokens=tokens,
        terminated=lane.terminated,
        offered=(lane.offered or step.output_ceiling) if tokens else 0,
    )


def _publish_single(request: LiveRequest, token: int, published: Publication) -> None:
    """Pass the one token of a plain lane whose answer goes on through its request."""
    try:
        delta = request.take_single(token)
    except Exception as fault:  # noqa: BLE001 - as in `_publish_safely`.
        published.faults.append((request, _text_of(fault)))
        return
    if delta is not None:
        _deliver(delta, request, published)


def _publish_safely(
    step: ScheduledStep,
    request: LiveRequest,
    lane: LaneOutput,
    tokens: Sequence[GeneratedToken],
    published: Publication,
) -> None:
    """Pass one lane's outputs through its request; its fault is reported, not raised."""
    try:
        _publish_lane(step, request, lane, tokens, published)
    except Exception as fault:  # noqa: BLE001 - one request's fault must not end the loop.
        published.faults.append((request, _text_of(fault)))


def _text_of(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"


def _publish_lane(
    step: ScheduledStep,
    request: LiveRequest,
    lane: LaneOutput,
    tokens: Sequence[GeneratedToken],
    published: Publication,
) -> None:
    if lane.prompt_logprobs:
        request.add_prompt_logprobs(step.position, lane.prompt_logprobs)
    if request.accepted.spec.scored:
        scores = request.take_prompt_logprobs()
        if scores is not None:
            published.events.append(scores)
    if not tokens:
        return
    text = request.commit(
        [each.token for each in tokens],
        lane.logprobs,
        terminated=lane.terminated,
        is_last=tokens[-1].is_last,
    )
    if request.finish_reason is not None:
        published.ended.append(request)
        if request.host_ended:
            published.stopped.append(request)
    if request.is_deliverable(text):
        _deliver(request.take_delta(text), request, published)
    request.raise_grammar_fault()


def _deliver(delta: Delta, request: LiveRequest, published: Publication) -> None:
    """Add a Delta; it counts as a delivery when the client can see something of it."""
    published.events.append(delta)
    if published.lanes:
        published.lanes[-1].characters = len(delta.text)
    # The last Delta may carry nothing but a hidden stop token, which nobody sees.
    if delta.text or request.finish_reason is None:
        published.delivered.append((request, len(delta.token_ids)))
