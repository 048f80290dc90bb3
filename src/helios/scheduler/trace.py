"""A committed plan as one line of JSON with every term of its score; format and parse are inverses.

Numbers are written with all their digits, so a parsed line equals the plan it came from.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from helios.scheduler.plan import CandidateScore, ScheduledPlan, SelectionReason
from helios.scheduler.records import RequestHandle


@dataclasses.dataclass(frozen=True, slots=True)
class TraceLane:
    """One lane of a committed plan."""

    slot: int
    generation: int
    row: int
    position: int
    prompt_tokens: int
    output_ceiling: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanTrace:
    """Everything that one committed plan was and was worth."""

    fence: int
    committed_ns: int
    expected_end_ns: int
    queued: bool
    """Another frame was in flight at commit."""
    batch_capacity: int
    token_capacity: int
    proposal_depth: int
    packed_capacity: int
    prefill_capacity: int
    """Prompt tokens of a mixed graph; zero for every other family."""
    prefill_row: int
    """Index of the prompt row in `lanes` of a mixed graph; -1 for none."""
    estimated_duration_ns: int
    lanes: tuple[TraceLane, ...]
    score: CandidateScore


def trace_of_plan(
    plan: ScheduledPlan, *, fence: int, committed_ns: int, expected_end_ns: int, queued: bool
) -> PlanTrace:
    """Return the trace of a plan that the scheduler made and committed."""
    assert plan.terms is not None
    graph = plan.graph
    return PlanTrace(
        fence=fence,
        committed_ns=committed_ns,
        expected_end_ns=expected_end_ns,
        queued=queued,
        batch_capacity=graph.batch_capacity,
        token_capacity=graph.token_capacity,
        proposal_depth=graph.proposal_depth,
        packed_capacity=graph.rows,
        prefill_capacity=graph.prefill_capacity,
        prefill_row=plan.prefill_row,
        estimated_duration_ns=plan.estimated_duration_ns,
        lanes=tuple(
            TraceLane(
                *step.handle, step.row, step.position, step.prompt_tokens, step.output_ceiling
            )
            for step in plan.steps
        ),
        score=plan.terms,
    )


def format_trace(trace: PlanTrace) -> str:
    """Return the line, without a newline."""
    document = dataclasses.asdict(trace)
    document["score"] = {**trace.score._asdict(), "reason": trace.score.reason.value}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def parse_trace(line: str) -> PlanTrace:
    """Return the trace that `format_trace` wrote. Raises ValueError, naming what is wrong."""
    try:
        document: dict[str, Any] = json.loads(line)
        score: dict[str, Any] = dict(document["score"])
        score["reason"] = SelectionReason(score["reason"])
        score["handles"] = tuple(RequestHandle(*handle) for handle in score["handles"])
        document["score"] = CandidateScore(**score)
        document["lanes"] = tuple(TraceLane(**lane) for lane in document["lanes"])
        return PlanTrace(**document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a plan trace: {error}") from error
