"""The lines of a trace file as records; field meanings are those of docs/design/trace.md.

Only what the renderer uses is declared: a reader skips fields that it does not know (1.1).
"""

from __future__ import annotations

from typing import Final

import msgspec

TRACE_VERSION: Final = 1


class GraphLine(msgspec.Struct, frozen=True, kw_only=True):
    """A graph of the header's catalog."""

    name: str
    kind: str
    batch_capacity: int
    token_capacity: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Section 2."""

    version: int
    at_ns: int
    graphs: list[GraphLine]
    model: str = ""
    started_unix_ns: int | None = None


class PlanLane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a committed plan."""

    request: str
    row: int
    position: int
    prompt_tokens: int
    output_ceiling: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.1."""

    graph: str
    requests: list[str]
    score: float
    terms: dict[str, float]
    reason: str = ""
    cost_ns: int = 0


class PlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3."""

    fence: int
    at_ns: int
    graph: str
    graph_index: int
    reason: str
    cost_ns: int
    value_rate: float
    lanes: list[PlanLane]
    cost_age_ns: int | None = None
    log_scale: float = 0.0
    queued_frames: int = 0
    candidates: list[Candidate] = []
    plan_ns: int = 0
    commit_ns: int = 0


class FrameLaneLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane of a frame did."""

    request: str
    prompt_tokens: int = 0
    tokens: int = 0
    terminated: bool = False
    delivered_ns: int | None = None
    characters: int = 0


class FrameLine(msgspec.Struct, frozen=True, kw_only=True):
    """Section 4."""

    fence: int
    at_ns: int
    submitted_ns: int
    started_ns: int
    finished_ns: int
    device_ns: int
    lanes: list[FrameLaneLine]
    host_gap_ns: int | None = None
    complete_ns: int = 0
    error: str | None = None


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Section 5.1."""

    at_ns: int
    request: str
    prompt_tokens: int
    max_output_tokens: int = 0


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Section 5.2."""

    at_ns: int
    request: str
    reason: str
    prompt_tokens: int = 0
    output_tokens: int = 0
