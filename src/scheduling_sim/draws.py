"""What the lanes of a frame produce: answers from their content, rounds from an acceptance model.

The tokens of a request are its answer whatever is scheduled, so policies differ in time only. The
modelled device refuses a lane that a real one would corrupt something with: a row that is bound to
another request, a position that is not where the row stands, a snapshot row of other content.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from helios.engine.ports import FrameLane, LaneOutput
from helios.scheduler import GraphDescriptor, GraphKind, RequestHandle, RowAllocation
from scheduling_sim.acceptance_model import AcceptanceModel, RoundDraw
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.run_log import RequestLog
from scheduling_sim.workload.content import END_TOKEN, segment_ids, token_ids
from scheduling_sim.workload.records import WorkloadRequest

_NOTHING: Final = LaneOutput()
_STATE_KINDS: Final = (
    GraphKind.INITIALIZE,
    GraphKind.TERMINAL,
    GraphKind.VISION,
    GraphKind.RESTORE,
    GraphKind.SNAPSHOT,
)


@functools.cache
def _decode_work(cached: int) -> LaneWork:
    """Return the work of a lane that decodes; a lookup costs a quarter of a new record."""
    return LaneWork(1, cached, False)


@functools.cache
def _one_token(token: int) -> LaneOutput:
    """Return the output of one token; see `_decode_work`."""
    return LaneOutput((token,))


class MisuseError(Exception):
    """A frame would have corrupted the state of a real device."""


class SimulatedRequest:
    """One request on the device: its answer and how far it has come."""

    __slots__ = (
        "answer",
        "cached",
        "committed",
        "delivered",
        "furthest",
        "handle",
        "has_ended",
        "log",
        "produced",
        "request",
        "watched",
        "watched_ns",
    )

    def __init__(self, request: WorkloadRequest, log: RequestLog) -> None:
        self.request = request
        self.log = log
        self.answer: list[int] | None = None
        """Token ids, made when the first one is sampled."""
        self.produced = 0
        """Output tokens that frames have sampled, the end token not included."""
        self.cached = 0
        """Tokens in the cache."""
        self.has_ended = False
        """The end token was sampled; the row produces nothing any more."""
        self.handle: RequestHandle | None = None
        """Under which the scheduler knows it, from its admission on."""
        # What a checker follows.
        self.committed = 0
        """Output tokens that completions committed, the end token included."""
        self.delivered = 0
        """Of these, the tokens that were made visible."""
        self.furthest = -1
        """Highest prompt position that any frame was to reach."""
        self.watched = (0, -1)
        """Committed tokens and furthest position when they last differed from the look before."""
        self.watched_ns = log.arrival_ns
        """When that was."""

    def sample(self, count: int) -> LaneOutput:
        """Return the next tokens of the answer, at most `count`; the end token behind its last."""
        if self.has_ended:
            return _NOTHING
        answer, first = self.answer, self.produced
        if answer is None:
            answer = self.answer = segment_ids(self.request.output).tolist()
        tokens = tuple(answer[first : first + count])
        self.produced = first + len(tokens)
        if len(tokens) == count:
            return LaneOutput(tokens)
        self.has_ended = True
        return LaneOutput((*tokens, END_TOKEN), terminated=True)


class Executed(NamedTuple):
    """What a frame produced and what it cost its lanes."""

    outputs: tuple[LaneOutput, ...]
    works: list[LaneWork]
    """Of every lane of a prepared program; of a free step only those that run tokens."""
    offered: int = 0
    """Proposals that were verified."""
    accepted: int = 0
    confidence: npt.NDArray[np.float32] | None = None
    survival: npt.NDArray[np.float32] | None = None


class _Kept(NamedTuple):
    """The state in a snapshot row."""

    request: WorkloadRequest
    tokens: int


class Draws:
    """Every request's progress, the rows that requests are bound to, and the snapshot rows."""

    def __init__(
        self, acceptance: AcceptanceModel | None, *, row_count: int, draft_capacity: int
    ) -> None:
        self.requests: dict[RequestHandle, SimulatedRequest] = {}
        """By the scheduler's handle, every live request."""
        self._acceptance = acceptance
        self._plane_shape = (1, row_count, draft_capacity)
        self._bound: list[SimulatedRequest | None] = [None] * row_count
        self._snapshots: dict[int, _Kept] = {}

    def execute(self, graph: GraphDescriptor | None, lanes: Sequence[FrameLane]) -> Executed:
        """Run every lane, whether or not anyone still wants it. Raises MisuseError."""
        if graph is None:
            return self._generate(None, lanes)
        if graph.kind is GraphKind.DECODE:
            return self._decode(lanes)
        if graph.kind in _STATE_KINDS:
            return self._operate(graph, lanes)
        return self._generate(graph, lanes)

    # Inference ------------------------------------------------------------------------------------

    def _decode(self, lanes: Sequence[FrameLane]) -> Executed:
        """Run one row of every lane; the most frequent frame by far."""
        bound = self._bound
        outputs: list[LaneOutput] = []
        works: list[LaneWork] = []
        for lane in lanes:
            state = bound[lane.row]
            if state is None or state.handle != lane.handle:
                raise self._stranger(lane)
            cached = state.cached
            works.append(_decode_work(cached))
            if state.has_ended:
                outputs.append(_NOTHING)
                continue
            if cached != lane.position:
                raise _misplaced(lane, state)
            state.cached = cached + 1
            answer, index = state.answer, state.produced
            if answer is not None and index < len(answer):
                state.produced = index + 1
                outputs.append(_one_token(answer[index]))
            else:
                outputs.append(state.sample(1))
        return Executed(tuple(outputs), works)

    def _generate(self, graph: GraphDescriptor | None, lanes: Sequence[FrameLane]) -> Executed:
        """Run prompt chunks and generating lanes side by side."""
        rounds = self._rounds(graph, lanes)
        rows = _target_rows(graph, lanes, rounds)
        outputs, works = [], []
        offered = accepted = 0
        for lane, given, drawn in zip(lanes, rows, rounds, strict=True):
            state = self._state_of(lane, is_bound=graph is not None)
            if graph is None and lane.is_prompt:
                # A free step has no initialisation: its chunks say where they begin.
                state.cached = lane.position
            cached = state.cached
            if lane.prompt_token_ids is not None:
                works.append(LaneWork(given, cached, True, lane.is_final_chunk))
                outputs.append(_consume(lane, state))
                continue
            if not given:
                outputs.append(_retire(state))
                continue
            works.append(LaneWork(given, cached, False))
            kept = 0 if drawn is None else min(drawn.accepted, given - 1)
            offered += given - 1
            accepted += 0 if state.has_ended else kept
            output = state.sample(kept + 1)
            state.cached = cached + len(output.tokens)
            outputs.append(output._replace(offered=given if given < lane.query_length else 0))
        confidence, survival = self._planes(graph, lanes, rounds)
        return Executed(tuple(outputs), works, offered, accepted, confidence, survival)

    def _rounds(
        self, graph: GraphDescriptor | None, lanes: Sequence[FrameLane]
    ) -> list[RoundDraw | None]:
        """Draw the proposals of every generating lane; None where nothing is proposed."""
        if graph is None or not graph.proposal_depth:
            return [None] * len(lanes)
        if self._acceptance is None:
            raise ValueError(f"{graph.name} proposes tokens; the run needs an acceptance model")
        depth, source, draw = graph.proposal_depth, graph.source, self._acceptance.draw
        drawn: list[RoundDraw | None] = []
        for lane in lanes:
            state = self.requests[lane.handle]
            is_prompt = lane.prompt_token_ids is not None
            drawn.append(None if is_prompt else draw(state.request, state.produced, depth, source))
        return drawn

    def _planes(
        self,
        graph: GraphDescriptor | None,
        lanes: Sequence[FrameLane],
        rounds: Sequence[RoundDraw | None],
    ) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.float32] | None]:
        """Return what a program reports beside its tokens; NaN where no prefix was produced."""
        confidence = survival = None
        if graph is not None and graph.confidence_width:
            confidence = np.full(self._plane_shape, np.nan, dtype=np.float32)
        if graph is not None and graph.reports_survival:
            survival = np.full(self._plane_shape, np.nan, dtype=np.float32)
        for lane, drawn in zip(lanes, rounds, strict=True):
            if drawn is not None and confidence is not None:
                confidence[0, lane.row, : len(drawn.confidence)] = drawn.confidence
            if drawn is not None and survival is not None:
                survival[0, lane.row, : len(drawn.survival)] = drawn.survival
        return confidence, survival

    # State operations -----------------------------------------------------------------------------

    def _operate(self, graph: GraphDescriptor, lanes: Sequence[FrameLane]) -> Executed:
        """Bind, copy, retire or encode; nothing is sampled."""
        kind = graph.kind
        works, outputs = [], []
        for lane in lanes:
            if kind is GraphKind.INITIALIZE or kind is GraphKind.RESTORE:
                self._bind(lane, is_restored=kind is GraphKind.RESTORE)
            state = self._state_of(lane, is_bound=True)
            new = graph.token_capacity if kind is GraphKind.VISION else 0
            works.append(LaneWork(new, state.cached, kind is GraphKind.VISION, False))
            if kind is GraphKind.SNAPSHOT:
                self._keep(lane, state)
            if kind is GraphKind.TERMINAL or lane.is_retired:
                self._bound[lane.row] = None
            outputs.append(_retire(state) if kind is GraphKind.TERMINAL else _NOTHING)
        return Executed(tuple(outputs), works)

    def _bind(self, lane: FrameLane, *, is_restored: bool) -> None:
        """Bind a row to a request, at the beginning or behind a state that was kept."""
        state = self.requests[lane.handle]
        if is_restored and lane.snapshot_row >= 0:
            kept = self._snapshots.get(lane.snapshot_row)
            if kept is None or kept.tokens < lane.position:
                raise MisuseError(f"snapshot row {lane.snapshot_row} holds no {lane.position}")
            _check_same_content(kept.request, state.request, lane.position)
        self._bound[lane.row] = state
        state.cached = lane.position

    def _keep(self, lane: FrameLane, state: SimulatedRequest) -> None:
        """Copy a row's state into its snapshot row."""
        if lane.snapshot_row >= 0:
            self._snapshots[lane.snapshot_row] = _Kept(state.request, state.cached)

    def _state_of(self, lane: FrameLane, *, is_bound: bool) -> SimulatedRequest:
        """Return the request of a lane, after checking that its row is its own."""
        if not is_bound:
            return self.requests[lane.handle]
        state = self._bound[lane.row]
        if state is None or state.handle != lane.handle:
            raise self._stranger(lane)
        return state

    def _stranger(self, lane: FrameLane) -> MisuseError:
        request, bound = self.requests[lane.handle].request, self._bound[lane.row]
        whom = "nobody" if bound is None else f"request {bound.request.request_id}"
        return MisuseError(f"row {lane.row} is bound to {whom}, not to {request.request_id}")


def _consume(lane: FrameLane, state: SimulatedRequest) -> LaneOutput:
    """Consume a prompt chunk; the last one samples."""
    if state.cached != lane.position:
        raise _misplaced(lane, state)
    assert lane.prompt_token_ids is not None
    state.cached += len(lane.prompt_token_ids)
    return state.sample(1) if lane.is_final_chunk else _NOTHING


def _retire(state: SimulatedRequest) -> LaneOutput:
    """Return what a lane reports that runs no token and ends its request."""
    return LaneOutput(cached_tokens=state.cached, output_tokens=state.produced)


def _misplaced(lane: FrameLane, state: SimulatedRequest) -> MisuseError:
    return MisuseError(
        f"request {state.request.request_id} has {state.cached} tokens in its cache, the frame "
        f"takes it for {lane.position}"
    )


def _check_same_content(kept: WorkloadRequest, wanted: WorkloadRequest, tokens: int) -> None:
    """Raise MisuseError when two requests do not share their first tokens."""
    if kept is wanted:
        return
    left = token_ids((*kept.prompt, kept.output))[:tokens]
    right = token_ids((*wanted.prompt, wanted.output))[:tokens]
    if not np.array_equal(left, right):
        raise MisuseError(
            f"request {wanted.request_id} resumes from {tokens} tokens of {kept.request_id}, "
            "which are others"
        )


# Row allocation -----------------------------------------------------------------------------------


def _target_rows(
    graph: GraphDescriptor | None,
    lanes: Sequence[FrameLane],
    rounds: Sequence[RoundDraw | None],
) -> list[int]:
    """Return how many rows every lane gets: its tokens, its query length, or by confidence."""
    if graph is not None and graph.allocation is RowAllocation.DEVICE:
        return allocate(graph.rows, lanes, rounds)
    least = 0 if graph is None else 1
    return [
        max(least, lane.query_length)
        if lane.prompt_token_ids is None
        else len(lane.prompt_token_ids)
        for lane in lanes
    ]


def allocate(
    rows: int, lanes: Sequence[FrameLane], rounds: Sequence[RoundDraw | None]
) -> list[int]:
    """Give every generating lane its pending row, then the rest by causal confidence.

    The next row goes to the lane whose next longer prefix has the highest joint probability, within
    its query length and the program's rows; of equal ones to the shorter prefix, then the lower
    row. Prompt lanes keep their tokens and take none of the rows.
    """
    given: list[int] = []
    frontier: list[tuple[float, int, int, int]] = []
    for index, (lane, drawn) in enumerate(zip(lanes, rounds, strict=True)):
        if lane.prompt_token_ids is not None:
            given.append(len(lane.prompt_token_ids))
            continue
        given.append(1)
        rows -= 1
        if drawn is not None and lane.query_length > 1:
            frontier.append((-drawn.confidence[0], 1, lane.row, index))
    heapq.heapify(frontier)
    while rows > 0 and frontier:
        _, length, row, index = heapq.heappop(frontier)
        given[index] += 1
        rows -= 1
        drawn = rounds[index]
        assert drawn is not None
        if given[index] < lanes[index].query_length:
            heapq.heappush(frontier, (-drawn.confidence[length], length + 1, row, index))
    return given
