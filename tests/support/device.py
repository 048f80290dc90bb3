"""What a modelled device does with the lanes of a frame: the part of a `World` that has no clock.

A stream's proposals are accepted or not by its own `Acceptance`, which looks at the stream and the
output position alone. So the same stream commits the same tokens whatever the scheduler decides,
and two schedules differ in time only.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from helios.scheduler import CompletionRecord, GraphKind, RowAllocation, ScheduledStep

if TYPE_CHECKING:
    from tests.support.world import Flight, Stream

Sidecar = npt.NDArray[np.float32]

STATE_KINDS = (GraphKind.INITIALIZE, GraphKind.TERMINAL, GraphKind.VISION)


class Acceptance(Protocol):
    """Which of a stream's proposals are accepted, and what the draft believes about them."""

    def accepted(self, name: str, output_index: int, offered: int) -> int:
        """Return how many of `offered` proposals behind output `output_index` are accepted."""
        ...

    def confidence(self, depth: int) -> float:
        """Return the joint probability that the draft gives its first `depth` proposals."""
        ...

    def survival(self, depth: int) -> float:
        """Return the product of min(1, p/q) over the first `depth` proposals."""
        ...


@dataclasses.dataclass(frozen=True)
class Always:
    """The same number of proposals is accepted in every round."""

    count: int

    def accepted(self, name: str, output_index: int, offered: int) -> int:
        return min(self.count, offered)

    def confidence(self, depth: int) -> float:
        return self.survival(depth)

    def survival(self, depth: int) -> float:
        sure = 63 / 64
        return sure**depth if depth <= self.count else sure**self.count / 64 ** (depth - self.count)


@dataclasses.dataclass(frozen=True)
class Chance:
    """A proposal at depth d is accepted with a probability, by a hash of stream and position."""

    probabilities: tuple[float, ...]
    """Conditional on the proposals before it; the last one holds for every deeper one."""
    belief: float = 1.0
    """Exponent of what the draft believes: below 1 it is overconfident."""

    def accepted(self, name: str, output_index: int, offered: int) -> int:
        for depth in range(1, offered + 1):
            draw = zlib.crc32(f"{name}/{output_index + depth}".encode()) / 2**32
            if draw >= self._probability(depth):
                return depth - 1
        return offered

    def confidence(self, depth: int) -> float:
        return self.survival(depth) ** self.belief

    def survival(self, depth: int) -> float:
        product = 1.0
        for each in range(1, depth + 1):
            product *= self._probability(each)
        return product

    def _probability(self, depth: int) -> float:
        return self.probabilities[min(depth, len(self.probabilities)) - 1]


@dataclasses.dataclass(frozen=True)
class Scripted:
    """The count by output position, cyclic: what a test wants to happen at a moment."""

    counts: tuple[int, ...]

    def accepted(self, name: str, output_index: int, offered: int) -> int:
        return min(self.counts[output_index % len(self.counts)], offered)

    def confidence(self, depth: int) -> float:
        return 0.5**depth

    def survival(self, depth: int) -> float:
        return 0.5**depth


class Executed:
    """The records of a frame's lanes in lane order, and the rows that a round writes beside."""

    __slots__ = ("confidence", "records", "survival")

    def __init__(self, records: tuple[CompletionRecord, ...]) -> None:
        self.records = records
        self.confidence: Sidecar | None = None
        """[lanes, D]; the world gives it the shape of the sidecar."""
        self.survival: Sidecar | None = None


def execute(flight: Flight, streams: Sequence[Stream], device: Device) -> Executed:
    """Run every lane, whether or not anyone still wants it."""
    graph = flight.plan.graph
    lanes = list(zip(flight.plan.steps, streams, strict=True))
    offered = target_rows(flight, streams)
    records = tuple(
        execute_lane(graph.kind, step, stream, rows, device)
        for (step, stream), rows in zip(lanes, offered, strict=True)
    )
    done = Executed(records)
    if graph.confidence_width:
        done.confidence = _rows(streams, graph.confidence_width, "confidence")
    if graph.reports_survival:
        done.survival = _rows(streams, graph.proposal_depth, "survival")
    return done


def _rows(streams: Sequence[Stream], depth: int, what: str) -> Sidecar:
    values = [
        [getattr(stream.acceptance, what)(d) for d in range(1, depth + 1)] for stream in streams
    ]
    return np.asarray(values, dtype=np.float32)


def target_rows(flight: Flight, streams: Sequence[Stream]) -> list[int]:
    """Target rows that the program gives its lanes: the ceilings, or by confidence within P.

    The dumb form of the rule: look for the best frontier once per row.
    """
    graph, steps = flight.plan.graph, flight.plan.steps
    ceilings = [step.output_ceiling for step in steps]
    if graph.allocation is not RowAllocation.DEVICE:
        return ceilings
    generating = [step.prompt_tokens == 0 for step in steps]
    given = [1 if is_decoder else c for is_decoder, c in zip(generating, ceilings, strict=True)]
    room = graph.rows - sum(generating)
    while room:
        frontier = [
            (-streams[i].acceptance.confidence(given[i]), given[i], steps[i].row, i)
            for i in range(len(steps))
            if generating[i] and given[i] < ceilings[i]
        ]
        if not frontier:
            break
        given[min(frontier)[-1]] += 1
        room -= 1
    return given


def execute_lane(
    kind: GraphKind, step: ScheduledStep, stream: Stream, rows: int, device: Device
) -> CompletionRecord:
    """Run one lane, which the program gives `rows` target rows."""
    handle = step.handle
    if kind is GraphKind.INITIALIZE:
        # A fresh binding stands at zero, or behind the shared pages of a prefix.
        stream.consumed = step.position
    if kind in STATE_KINDS:
        return CompletionRecord(handle)
    if kind is GraphKind.SNAPSHOT:
        device.keep(step, stream)
        return CompletionRecord(handle)
    if kind is GraphKind.RESTORE:
        device.bring_back(step, stream)
        return CompletionRecord(handle)
    stream.consumed += step.prompt_tokens
    if step.output_ceiling == 0 or stream.produced >= stream.ends_at:
        return CompletionRecord(handle, prompt_tokens=step.prompt_tokens)
    count = 1 + stream.acceptance.accepted(stream.name, stream.produced, rows - 1)
    count = min(count, stream.ends_at - stream.produced)
    first = stream.produced
    stream.produced += count
    return CompletionRecord(
        handle,
        prompt_tokens=step.prompt_tokens,
        tokens=tuple(token_of(stream.name, index) for index in range(first, first + count)),
        terminated=stream.produced >= stream.ends_at,
        offered=rows if rows < step.output_ceiling else 0,
    )


@dataclasses.dataclass(frozen=True)
class Kept:
    """The state in a snapshot row: whose, and how far it had come."""

    name: str
    position: int
    produced: int


class Device:
    """Snapshot rows and what is in them."""

    def __init__(self) -> None:
        self.snapshots: dict[int, Kept] = {}

    def keep(self, step: ScheduledStep, stream: Stream) -> None:
        """Copy a row's state into its snapshot row."""
        if step.snapshot_row >= 0:
            kept = Kept(stream.name, step.position, stream.produced)
            self.snapshots[step.snapshot_row] = kept

    def bring_back(self, step: ScheduledStep, stream: Stream) -> None:
        """Bind a row to the state in its snapshot row, its own or a shared prefix."""
        kept = self.snapshots[step.snapshot_row]
        assert kept.position == step.position, "a row is bound to the state of another endpoint"
        stream.consumed = step.position

    def contents(self) -> Mapping[int, Kept]:
        """What each snapshot row holds."""
        return self.snapshots


def token_of(name: str, index: int) -> int:
    """A token value that depends on the request and the position alone."""
    return (sum(name.encode()) * 1_000 + index) % 50_000
