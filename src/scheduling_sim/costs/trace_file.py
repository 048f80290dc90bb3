"""Reader of the trace that a server writes with `--trace` (docs/design/trace.md).

Only what replays need is kept: the catalog and resources, arrivals and ends, and for every frame
its graph, its lanes and its times.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    PolicyConfig,
    ProposalSource,
    ResourceConfig,
    RowAllocation,
)
from scheduling_sim.costs.model import LaneWork

_KINDS = {kind.name.lower().replace("_", "-"): kind for kind in GraphKind}


class RecordedRequest(NamedTuple):
    """One request as it came and went; times are those of the trace's clock."""

    request_id: str
    arrival_ns: int
    prompt_tokens: int
    max_output_tokens: int
    output_tokens: int
    reason: str
    finished_ns: int
    weight: float
    tenant: str
    cached_prompt_tokens: int


class RecordedFrame(NamedTuple):
    """One frame that completed without an error."""

    graph: GraphDescriptor
    lanes: tuple[LaneWork, ...]
    request_ids: tuple[str, ...]
    submitted_ns: int
    started_ns: int
    device_ns: int
    observed_ns: int
    """When the engine processed it."""
    host_gap_ns: int | None
    """Since the end of the previous frame; None after idleness."""
    was_queued: bool
    """Another frame was in flight at the submission."""
    delivered: tuple[tuple[int, int, int], ...]
    """(lane, time, characters) of every delivery."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A whole trace."""

    where: str
    model: str
    catalog: Catalog
    resources: ResourceConfig
    policy: PolicyConfig
    requests: tuple[RecordedRequest, ...]
    """Those that ended, in order of arrival."""
    frames: tuple[RecordedFrame, ...]
    unfinished: int
    """Requests without an end in the trace."""
    failed_frames: int
    believed_ns: Mapping[str, int]
    """What the server took each program to cost when it last weighed it."""


def _records(data: bytes, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, record); a last line without a newline is incomplete and skipped."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    lines = data.decode("utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            yield number, {"type": str(record["type"]), **record}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{where}:{number}: {error!r}; an object with a `type` is right"
            ) from error


def descriptor(entry: Mapping[str, Any]) -> GraphDescriptor:
    """Return the descriptor of a header's graph entry.

    What the entry leaves out is in the name: `d` of programs that keep the draft's context, `copy`,
    `device`. Raises ValueError when the descriptor would have another name.
    """
    name = str(entry["name"])
    parts = name.split("-")
    kind = _KINDS[entry["kind"]]
    depth, width = int(entry["proposal_depth"]), int(entry["token_capacity"])
    batch, packed = int(entry["batch_capacity"]), int(entry["packed_capacity"])
    device, wide = "device" in parts, width > 1 and kind in (GraphKind.SPECULATIVE, GraphKind.MIXED)
    copy = ProposalSource.COPY if "copy" in parts else ProposalSource.LEARNED
    allocation = RowAllocation.DEVICE if device else RowAllocation.HOST
    graph = GraphDescriptor(
        kind=kind,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=depth,
        packed_capacity=0 if packed == batch * width else packed,
        prefill_capacity=int(entry["prefill_capacity"]),
        allocation=allocation if wide else RowAllocation.NONE,
        source=copy if depth else ProposalSource.NONE,
        speculation_enabled=kind is GraphKind.SPECULATIVE
        or any(part[:1] == "d" and part[1:].isdigit() for part in parts),
        confidence_width=depth if device else 0,
    )
    if graph.name != name:
        raise ValueError(f"graph {name} reads as {graph.name}")
    return graph


def _lane(graph: GraphDescriptor, planned: Mapping[str, Any], done: Mapping[str, Any]) -> LaneWork:
    tokens = int(done["prompt_tokens"])
    position = int(planned["position"])
    if tokens or int(planned["prompt_tokens"]):
        return LaneWork(max(1, tokens), position, is_prompt=True)
    generates = graph.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)
    rows = max(int(done.get("offered", 0)), 1) if generates else 0
    return LaneWork(rows, position, is_prompt=False)


class _Reading:
    """State of one pass over a trace."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        if header.get("type") != "header" or header.get("version") != 1:
            raise ValueError("a trace begins with a header of version 1")
        self.model = str(header["model"])
        self.graphs = [descriptor(entry) for entry in header["graphs"]]
        self.resources = ResourceConfig(**header["resources"])
        known = [field.name for field in dataclasses.fields(PolicyConfig)]
        policy = {name: value for name, value in header["policy"].items() if name in known}
        self.policy = PolicyConfig(**policy)
        self.arrivals: dict[str, dict[str, Any]] = {}
        self.requests: list[RecordedRequest] = []
        self.plans: dict[int, dict[str, Any]] = {}
        self.frames: list[RecordedFrame] = []
        self.failed = 0
        self.believed: dict[str, int] = dict(header.get("believed_ns", {}))

    def take(self, record: dict[str, Any]) -> None:
        kind = record["type"]
        if kind == "arrival":
            self.arrivals[record["request"]] = record
        elif kind == "finish":
            self._finish(record)
        elif kind == "plan":
            self.plans[int(record["fence"])] = record
            for candidate in record.get("candidates", ()):
                if candidate["cost_ns"] > 0:
                    self.believed[candidate["graph"]] = int(candidate["cost_ns"])
        elif kind == "frame":
            self._frame(record)

    def _finish(self, record: dict[str, Any]) -> None:
        arrival = self.arrivals.pop(record["request"], None)
        if arrival is None:
            raise ValueError(f"{record['request']} ends without an arrival")
        self.requests.append(
            RecordedRequest(
                request_id=record["request"],
                arrival_ns=int(arrival["at_ns"]),
                prompt_tokens=int(arrival["prompt_tokens"]),
                max_output_tokens=int(arrival["max_output_tokens"]),
                output_tokens=int(record["output_tokens"]),
                reason=str(record["reason"]),
                finished_ns=int(record["at_ns"]),
                weight=float(arrival.get("weight", 1.0)),
                tenant=str(arrival.get("tenant") or ""),
                cached_prompt_tokens=int(record.get("cached_prompt_tokens", 0)),
            )
        )

    def _frame(self, record: dict[str, Any]) -> None:
        plan = self.plans.pop(int(record["fence"]), None)
        if plan is None:
            raise ValueError(f"frame {record['fence']} has no plan")
        if record["error"] is not None or int(record["device_ns"]) < 1:
            self.failed += 1
            return
        graph = self.graphs[int(plan["graph_index"])]
        pairs = list(zip(plan["lanes"], record["lanes"], strict=True))
        gap = record["host_gap_ns"]
        self.frames.append(
            RecordedFrame(
                graph=graph,
                lanes=tuple(_lane(graph, planned, done) for planned, done in pairs),
                request_ids=tuple(str(done["request"]) for _, done in pairs),
                submitted_ns=int(record["submitted_ns"]),
                started_ns=int(record["started_ns"]),
                device_ns=int(record["device_ns"]),
                observed_ns=int(record["at_ns"]),
                host_gap_ns=None if gap is None else int(gap),
                was_queued=bool(plan["queued_frames"]),
                delivered=tuple(
                    (index, int(done["delivered_ns"]), int(done["characters"]))
                    for index, (_, done) in enumerate(pairs)
                    if done["delivered_ns"] is not None
                ),
            )
        )


def read_trace(path: Path) -> RecordedRun:
    """Read a trace, plain or gzipped. Raises ValueError, naming file and line, for a bad one."""
    return parse_trace(path.read_bytes(), str(path))


def parse_trace(data: bytes, where: str) -> RecordedRun:
    """Return the run in the bytes of a trace; see `read_trace`."""
    reading: _Reading | None = None
    for number, record in _records(data, where):
        try:
            if reading is None:
                reading = _Reading(record)
            else:
                reading.take(record)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{where}:{number}: {error}") from error
    if reading is None:
        raise ValueError(f"{where}:1: the file is empty; a trace begins with a header")
    return RecordedRun(
        where=where,
        model=reading.model,
        catalog=Catalog.of(reading.graphs),
        resources=reading.resources,
        policy=reading.policy,
        requests=tuple(sorted(reading.requests, key=lambda request: request.arrival_ns)),
        frames=tuple(reading.frames),
        unfinished=len(reading.arrivals),
        failed_frames=reading.failed,
        believed_ns=reading.believed,
    )
