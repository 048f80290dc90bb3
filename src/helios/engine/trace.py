"""Trace records of the engine (docs/design/trace.md); building them changes nothing.

A record is a plain mapping of JSON values. The sink decides where it goes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from helios.engine.messages import Finished, Submit
from helios.engine.ports import FrameResult
from helios.engine.requests import LiveRequest
from helios.scheduler import (
    CandidateScore,
    Catalog,
    GraphDescriptor,
    PolicyConfig,
    RequestHandle,
    ResourceConfig,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
)

TRACE_VERSION: Final = 1
NANOSECONDS_PER_MS: Final = 1_000_000
MAX_CANDIDATES: Final = 16
"""Candidates written per plan, best first."""

TraceRecord = Mapping[str, object]


class TraceSink(Protocol):
    """Where trace records go."""

    def write(self, record: TraceRecord) -> None:
        """Take one record; must not fail the engine."""
        ...


class Tracer:
    """Writes the engine's records to a sink; without one it costs a comparison."""

    __slots__ = ("_sink",)

    def __init__(self, sink: TraceSink | None) -> None:
        self._sink = sink

    @property
    def is_on(self) -> bool:
        """Whether records go anywhere: what only they need is not worth computing otherwise."""
        return self._sink is not None

    def on_arrival(self, request: Submit, live: LiveRequest) -> None:
        """Write an accepted request."""
        if self._sink is not None:
            self._sink.write(arrival_record(request, live))

    def on_finish(self, finished: Finished, *, at_ns: int) -> None:
        """Write a request's end."""
        if self._sink is not None:
            self._sink.write(finish_record(finished, at_ns=at_ns))

    def on_plan(
        self,
        plan: ScheduledPlan,
        decision: DecisionTrace,
        *,
        fence: int,
        requests: Sequence[LiveRequest],
        queued_frames: int,
        commit_ns: int,
    ) -> None:
        """Write a committed plan."""
        if self._sink is not None:
            self._sink.write(
                plan_record(
                    plan,
                    decision,
                    fence=fence,
                    requests=requests,
                    queued_frames=queued_frames,
                    commit_ns=commit_ns,
                )
            )

    def on_frame(
        self,
        result: FrameResult,
        lanes: Sequence[LaneTrace],
        *,
        at_ns: int,
        complete_ns: int,
        follows_idle: bool,
        error: str | None,
    ) -> None:
        """Write a completed or failed frame."""
        if self._sink is not None:
            self._sink.write(
                frame_record(
                    result,
                    lanes,
                    at_ns=at_ns,
                    complete_ns=complete_ns,
                    follows_idle=follows_idle,
                    error=error,
                )
            )


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionTrace:
    """What is known of a decision besides its plan."""

    at_ns: int
    plan_ns: int
    """Host time of plan()."""
    candidates: Sequence[CandidateScore] = ()
    """Best first."""
    request_ids: Mapping[RequestHandle, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class LaneTrace:
    """What one lane of a completed frame came to."""

    request_id: str
    prompt_tokens: int
    tokens: int
    terminated: bool
    delivered_ns: int | None = None
    characters: int = 0
    offered: int = 0
    """Target rows that the program gave a lane that committed tokens."""


def void_lane(request: LiveRequest) -> LaneTrace:
    """Return the lane of a frame whose outputs are void."""
    return LaneTrace(request.request_id, prompt_tokens=0, tokens=0, terminated=False)


def header_record(
    *,
    model: str,
    catalog: Catalog,
    policy: PolicyConfig,
    resources: ResourceConfig,
    at_ns: int,
    started_unix_ns: int | None,
) -> TraceRecord:
    """Return the first record of a trace."""
    return {
        "type": "header",
        "version": TRACE_VERSION,
        "at_ns": at_ns,
        "started_unix_ns": started_unix_ns,
        "model": model,
        "policy": dataclasses.asdict(policy),
        "resources": dataclasses.asdict(resources),
        "graphs": [_graph_entry(graph) for graph in catalog.graphs],
    }


def arrival_record(request: Submit, live: LiveRequest) -> TraceRecord:
    """Return the record of an accepted request."""
    return {
        "type": "arrival",
        "at_ns": live.arrival_ns,
        "request": live.request_id,
        "prompt_tokens": live.accepted.spec.prompt_tokens,
        "max_output_tokens": live.accepted.spec.max_output_tokens,
        "weight": request.weight,
        "tenant": request.tenant,
    }


def finish_record(finished: Finished, *, at_ns: int) -> TraceRecord:
    """Return the record of a request's end."""
    return {
        "type": "finish",
        "at_ns": at_ns,
        "request": finished.request_id,
        "reason": finished.reason,
        "prompt_tokens": finished.prompt_tokens,
        "output_tokens": finished.output_tokens,
        "cached_prompt_tokens": finished.cached_prompt_tokens,
    }


def plan_record(
    plan: ScheduledPlan,
    decision: DecisionTrace,
    *,
    fence: int,
    requests: Sequence[LiveRequest],
    queued_frames: int,
    commit_ns: int,
) -> TraceRecord:
    """Return the record of a committed plan."""
    # The first candidate is the plan's own, so its terms need not be made once more.
    terms = decision.candidates[0] if decision.candidates else plan.terms
    return {
        "type": "plan",
        "fence": fence,
        "at_ns": decision.at_ns,
        "graph": plan.graph.name,
        "graph_index": plan.graph_index,
        "reason": plan.reason.value,
        "cost_ns": plan.estimated_duration_ns,
        "cost_age_ns": None if terms is None else terms.cost_age_ns,
        "credit_ms": 0.0 if terms is None else terms.exploration_credit_ms,
        "value_rate": plan.selection_value_rate(),
        "log_scale": plan.selection_log_scale(),
        "needs_empty_queue": plan.needs_empty_queue,
        "queued_frames": queued_frames,
        "lanes": [
            plan_lane(step, request) for step, request in zip(plan.steps, requests, strict=True)
        ],
        "candidates": [
            candidate_entry(score, [decision.request_ids[handle] for handle in score.handles])
            for score in decision.candidates[:MAX_CANDIDATES]
        ],
        "plan_ns": decision.plan_ns,
        "commit_ns": commit_ns,
    }


def plan_lane(step: ScheduledStep, request: LiveRequest) -> dict[str, object]:
    """Return one lane of a plan; what its kind has no use for is left out."""
    lane: dict[str, object] = {
        "request": request.request_id,
        "row": step.row,
        "position": step.position,
        "prompt_tokens": step.prompt_tokens,
        "output_ceiling": step.output_ceiling,
    }
    if step.output_ceiling > 1:
        lane["expected_tokens"] = step.expected_tokens
    if step.mixed is not None:
        lane["role"] = step.mixed.role.name.lower()
    if step.snapshot_row >= 0:
        lane["snapshot_row"] = step.snapshot_row
    if step.is_retired:
        lane["is_retired"] = True
    if step.image_index >= 0:
        lane["image_index"], lane["feature_offset"] = step.image_index, step.feature_offset
    return lane


def frame_record(
    result: FrameResult,
    lanes: Sequence[LaneTrace],
    *,
    at_ns: int,
    complete_ns: int,
    follows_idle: bool,
    error: str | None,
) -> TraceRecord:
    """Return the record of a completed or failed frame."""
    return {
        "type": "frame",
        "fence": result.fence,
        "at_ns": at_ns,
        "submitted_ns": result.submitted_ns,
        "started_ns": result.started_ns,
        "finished_ns": result.finished_ns,
        "device_ns": result.device_ns,
        "readiness_ns": result.readiness_ns,
        "host_gap_ns": None if follows_idle else result.host_gap_ns,
        "complete_ns": complete_ns,
        "error": error,
        "lanes": [
            {
                "request": lane.request_id,
                "prompt_tokens": lane.prompt_tokens,
                "tokens": lane.tokens,
                "offered": lane.offered,
                "terminated": lane.terminated,
                "delivered_ns": lane.delivered_ns,
                "characters": lane.characters,
            }
            for lane in lanes
        ],
    }


def candidate_entry(score: CandidateScore, request_ids: Sequence[str]) -> TraceRecord:
    """Return one ranked candidate; its terms add up to its score.

    An indeterminate candidate is scored by its work, any other by its value per ms.
    """
    whole_ms = score.duration_ms + score.following_ms
    per = whole_ms if score.reason is not SelectionReason.DISCOVERY and whole_ms > 0 else 1.0
    return {
        "graph": score.graph,
        "graph_index": score.graph_index,
        "following": score.following,
        "reason": score.reason.value,
        "requests": list(request_ids),
        "needs_empty_queue": score.needs_empty_queue,
        "cost_ns": round(score.duration_ms * NANOSECONDS_PER_MS),
        "following_ns": round(score.following_ms * NANOSECONDS_PER_MS),
        "cost_age_ns": score.cost_age_ns,
        "padding": score.padding,
        "score": score.value_rate,
        "terms": {
            "tokens": score.service_value / per,
            "deliveries": score.delivery_value / per,
            "ages": score.age_credit / per,
            "terminals": score.terminal_value / per,
            "saved": score.saved_waiting / per,
            "continuation": score.continuation_value / per,
            "waiting": -score.waiting_cost,
        },
    }


def _graph_entry(graph: GraphDescriptor) -> TraceRecord:
    """Return a graph's physical identity (B, W, D, P and the prompt capacity)."""
    return {
        "name": graph.name,
        "kind": graph.kind.name.lower().replace("_", "-"),
        "batch_capacity": graph.batch_capacity,
        "token_capacity": graph.token_capacity,
        "proposal_depth": graph.proposal_depth,
        "packed_capacity": graph.packed_capacity or graph.batch_capacity * graph.token_capacity,
        "prefill_capacity": graph.prefill_capacity,
    }
