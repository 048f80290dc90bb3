"""Reads a trace file into memory, and says which line is wrong when one is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from flare.trace.records import (
    TRACE_VERSION,
    Arrival,
    Finish,
    FrameLine,
    GraphLine,
    Header,
    PlanLine,
)


class TraceError(Exception):
    """The file is not a trace that this version can read."""


class _TypedLine(msgspec.Struct, frozen=True):
    type: str


@dataclasses.dataclass(slots=True, kw_only=True)
class Trace:
    """A whole trace; plans in commit order, frames by fence."""

    header: Header
    plans: list[PlanLine] = dataclasses.field(default_factory=list)
    frames: dict[int, FrameLine] = dataclasses.field(default_factory=dict)
    arrivals: dict[str, Arrival] = dataclasses.field(default_factory=dict)
    finishes: dict[str, Finish] = dataclasses.field(default_factory=dict)
    skipped_lines: int = 0
    """Lines of a type that this version does not know, and an incomplete last line."""

    def graph_of(self, plan: PlanLine) -> GraphLine:
        """Return the catalog entry of a plan's graph."""
        return self.header.graphs[plan.graph_index]


def read_trace(path: Path) -> Trace:
    """Read a trace file. Raises TraceError, naming file and line, and OSError."""
    with path.open("rb") as file:
        lines = file.readlines()
    if not lines or not lines[0].endswith(b"\n"):
        raise TraceError(f"{path}: the file has no complete line; a trace starts with a header")
    header = _header(path, lines[0])
    trace = Trace(header=header)
    for number, line in enumerate(lines[1:], 2):
        if not line.endswith(b"\n"):
            trace.skipped_lines += 1
            continue
        try:
            _take(trace, line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
    return trace


def _header(path: Path, line: bytes) -> Header:
    try:
        kind = msgspec.json.decode(line, type=_TypedLine).type
        if kind != "header":
            raise TraceError(f"{path}, line 1: a trace starts with a header, not with {kind!r}")
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}, line 1: not a trace header: {error}") from error
    if header.version != TRACE_VERSION:
        raise TraceError(
            f"{path}: trace version {header.version}; this flare reads version {TRACE_VERSION}"
        )
    return header


def _take(trace: Trace, line: bytes) -> None:
    """Add one line to the trace. Raises msgspec.MsgspecError and changes nothing then."""
    match msgspec.json.decode(line, type=_TypedLine).type:
        case "plan":
            plan = msgspec.json.decode(line, type=PlanLine)
            if not 0 <= plan.graph_index < len(trace.header.graphs):
                raise msgspec.ValidationError(
                    f"graph_index {plan.graph_index} is not in the header's catalog"
                )
            trace.plans.append(plan)
        case "frame":
            frame = msgspec.json.decode(line, type=FrameLine)
            trace.frames[frame.fence] = frame
        case "arrival":
            arrival = msgspec.json.decode(line, type=Arrival)
            trace.arrivals[arrival.request] = arrival
        case "finish":
            finish = msgspec.json.decode(line, type=Finish)
            trace.finishes[finish.request] = finish
        case _:
            trace.skipped_lines += 1
