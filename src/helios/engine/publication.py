"""Publication: what a completed frame's outputs become for the clients.

Reads the frame's outputs and the tokens that the scheduler committed; the requests change, the
scheduler does not. A request whose text side fails is reported, not raised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from helios.engine.flight import Flight, Roster
from helios.engine.messages import Delta, EngineEvent
from helios.engine.ports import FrameResult, LaneOutput, TokenLogprobs
from helios.engine.requests import LiveRequest
from helios.engine.trace import LaneTrace
from helios.scheduler import GeneratedToken, GraphKind


@dataclasses.dataclass(slots=True)
class Publication:
    """The visible side of one completed frame, in the lane order of its plan."""

    events: list[EngineEvent]
    delivered: list[tuple[LiveRequest, int]]
    """Requests with visible output, and how many tokens each delivery carries."""
    stopped: list[LiveRequest]
    """Requests whose output a stop string ended: the scheduler does not know yet."""
    retired: list[LiveRequest]
    """Requests whose response is complete."""
    faults: list[tuple[LiveRequest, str]]
    """Requests whose text side failed."""
    lanes: list[LaneTrace]


def publish(
    flight: Flight, result: FrameResult, generated: Sequence[GeneratedToken], roster: Roster
) -> Publication:
    """Return what the frame makes visible; lanes of requests that have left make nothing."""
    published = Publication([], [], [], [], [], [])
    tokens_by_lane = _by_lane(flight, generated)
    for index, request in enumerate(flight.requests):
        lane, tokens = result.lanes[index], tokens_by_lane[index]
        trace = LaneTrace(
            request_id=request.request_id,
            prompt_tokens=flight.plan.steps[index].prompt_tokens,
            tokens=len(tokens),
            terminated=lane.terminated,
        )
        published.lanes.append(trace)
        if roster.with_handle(request.handle) is not request:
            continue
        if flight.plan.graph.kind is GraphKind.TERMINAL:
            published.retired.append(request)
            continue
        try:
            _publish_lane(flight, index, lane, tokens, published)
        except Exception as fault:  # noqa: BLE001 - one request's fault must not end the loop.
            published.faults.append((request, f"{type(fault).__name__}: {fault}"))
    return published


def _publish_lane(
    flight: Flight,
    index: int,
    lane: LaneOutput,
    tokens: Sequence[GeneratedToken],
    published: Publication,
) -> None:
    """Pass one lane's outputs through its request."""
    request = flight.requests[index]
    if flight.plan.graph.kind is GraphKind.SCORED_PREFILL:
        request.add_prompt_logprobs(flight.plan.steps[index].position, lane.prompt_logprobs)
        scores = request.take_prompt_logprobs()
        if scores is not None:
            published.events.append(scores)
    text = ""
    for position, generated in enumerate(tokens):
        text += request.commit_token(
            generated.token,
            _logprobs_at(lane, position),
            terminated=lane.terminated and position == len(lane.tokens) - 1,
            is_last=generated.is_last,
        )
    if request.stop_string_ended:
        published.stopped.append(request)
    if tokens and request.is_deliverable(text):
        delta = request.take_delta(text)
        _deliver(delta, request, published)


def _deliver(delta: Delta, request: LiveRequest, published: Publication) -> None:
    """Add a Delta; it counts as a delivery when the client can see something of it."""
    published.events.append(delta)
    published.lanes[-1].characters = len(delta.text)
    # The last Delta may carry nothing but a hidden stop token, which nobody sees.
    if delta.text or request.finish_reason is None:
        published.delivered.append((request, len(delta.token_ids)))


def _logprobs_at(lane: LaneOutput, position: int) -> TokenLogprobs | None:
    return lane.logprobs[position] if lane.logprobs else None


def _by_lane(flight: Flight, generated: Sequence[GeneratedToken]) -> list[list[GeneratedToken]]:
    """Sort the committed tokens into the plan's lanes, keeping their order."""
    lanes: list[list[GeneratedToken]] = [[] for _ in flight.requests]
    index_of = {request.handle: index for index, request in enumerate(flight.requests)}
    for token in generated:
        lanes[index_of[token.handle]].append(token)
    return lanes
