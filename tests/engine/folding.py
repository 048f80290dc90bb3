"""A device that runs every kind of program, and whose output depends on everything it was fed.

The state of a row is a fold over its tokens, and so is what its pages hold. A wrong position, page,
snapshot row, feature, replay or row mapping changes the output or trips an assertion, and
`expected_output` says what an undisturbed run produces.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helios.engine.ports import Frame, FrameLane, LaneOutput, Sidecar
from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    ResourceConfig,
    RowAllocation,
)
from tests.runtime.counting import EOS, allowed_token, logprobs_of
from tests.support.catalogs import descriptor

PAGE = 16
CONTEXT = 128
ROWS = 4
FEATURES = 32
DEPTH = 3
RANKS = 2
_MASK = 2**64 - 1
_GENERATING = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)

STATE_KINDS = [
    *("initialize-b1", "initialize-b4", "terminal-b1", "terminal-b4"),
    *("prefill-c16", "prefill-c64", "scored-prefill-c64"),
    *("snapshot-b1", "snapshot-b4", "restore-b1", "restore-b4", "vision-c32"),
]
ORDINARY = [*STATE_KINDS, "decode-b1", "decode-b4", "mixed-b4-w1-c64"]
HOST_ROUNDS = [
    *STATE_KINDS,
    *("speculative-b1-d0-w1", "speculative-b4-d0-w1"),
    *("speculative-b1-d3-w4", "speculative-b4-d3-w4", "mixed-b4-d3-w4-c64"),
]
COPY_ROUNDS = [*HOST_ROUNDS[:-2], "speculative-b1-d3-w4-copy", "speculative-b4-d3-w4-copy"]
DEVICE_ROUNDS = [*HOST_ROUNDS[:-2], "speculative-b4-d3-w4-p8-device", "mixed-b4-d3-w4-c64"]


def folded(fold: int, token: int) -> int:
    """Return the state after one more token."""
    mixed = ((fold ^ (token + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 31)


def fold_of(tokens: Sequence[int]) -> int:
    fold = 0
    for token in tokens:
        fold = folded(fold, token)
    return fold


def token_after(fold: int) -> int:
    """Return the model's next token: a letter, or now and then the end token."""
    drawn = (fold >> 7) % 64
    return EOS if drawn == 63 else drawn % 26


def expected_output(prompt: Sequence[int], limit: int) -> list[int]:
    """Return what an undisturbed request with this output limit produces."""
    fold, output = fold_of(prompt), []
    while len(output) < limit and EOS not in output:
        output.append(token_after(fold))
        fold = folded(fold, output[-1])
    return output


@dataclasses.dataclass
class RowState:
    """What one row holds."""

    request_id: str
    incarnation: int
    folds: list[int]
    """The fold after each consumed token."""
    prompt_length: int
    stop_token_ids: tuple[int, ...]
    top_logprobs: int
    output_count: int
    replayed: int
    """Of the output, the tokens that were committed before this binding."""
    pending: int = -1
    is_finished: bool = False
    features: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def fold(self) -> int:
        return self.folds[-1] if self.folds else 0


class FoldingDevice:
    """Rows, pages and snapshot rows, and what each kind of lane does to them."""

    def __init__(self) -> None:
        self.rows: dict[int, RowState] = {}
        self.pages: dict[int, list[int]] = {}
        self.snapshots: dict[int, list[int]] = {}
        self.dead: set[str] = set()
        """Requests of frames that failed: what is queued behind finds nothing of theirs."""
        self.encoded: list[tuple[str, int]] = []

    def run(self, graph: GraphDescriptor, frame: Frame) -> tuple[LaneOutput, ...]:
        """Execute every lane; a generating lane's target rows are given first."""
        assert 1 <= len(frame.lanes) <= graph.batch_capacity
        assert len({lane.row for lane in frame.lanes}) == len(frame.lanes)
        assert sum(lane.is_prompt for lane in frame.lanes) <= 1
        given = target_rows(graph, frame.lanes)
        return tuple(
            self._run_lane(graph, lane, rows) for lane, rows in zip(frame.lanes, given, strict=True)
        )

    def _run_lane(self, graph: GraphDescriptor, lane: FrameLane, rows: int) -> LaneOutput:
        if lane.request_id in self.dead:
            return LaneOutput()
        if graph.kind is GraphKind.INITIALIZE:
            self._bind(lane, self._shared_folds(lane))
            return LaneOutput()
        if graph.kind is GraphKind.RESTORE:
            self._restore(lane)
            return LaneOutput()
        state = self.rows[lane.row]
        assert state.request_id == lane.request_id
        assert state.incarnation == lane.incarnation
        if graph.kind is GraphKind.TERMINAL:
            del self.rows[lane.row]
            return LaneOutput(output_tokens=state.output_count, cached_tokens=len(state.folds))
        if graph.kind is GraphKind.SNAPSHOT:
            self._snapshot(state, lane)
            return LaneOutput()
        if graph.kind is GraphKind.VISION:
            assert not lane.is_prompt
            assert lane.image_index not in state.features
            state.features[lane.image_index] = lane.feature_offset
            self.encoded.append((lane.request_id, lane.image_index))
            return LaneOutput()
        return self._infer(graph, state, lane, rows)

    def _infer(
        self, graph: GraphDescriptor, state: RowState, lane: FrameLane, rows: int
    ) -> LaneOutput:
        if state.is_finished:
            return LaneOutput()
        self._verify(state, lane)
        if lane.is_prompt:
            return self._consume(graph, state, lane)
        assert lane.prompt_token_ids is None
        assert 1 <= rows <= lane.query_length <= graph.token_capacity
        fed = state.prompt_length + state.output_count - state.replayed - 1
        assert lane.position >= len(state.folds) == fed
        accepted = min(rows - 1, (state.fold >> 20) % 5)
        is_copied = graph.source is ProposalSource.COPY
        assert not is_copied or len(lane.copied_token_ids) == rows - 1
        assert lane.masks is None or len(lane.masks) == rows
        self._scribble(state, lane, rows)
        tokens: list[int] = []
        for place in range(rows):
            self._write(state, lane, state.pending)
            tokens.append(self._sample(state, lane, place))
            goes_on = place < accepted
            if is_copied:
                goes_on = lane.copied_token_ids[place : place + 1] == (tokens[-1],)
            if state.is_finished or not goes_on:
                break
        offered = rows if rows < lane.query_length else 0
        return self._output(state, tokens, offered)

    def _consume(self, graph: GraphDescriptor, state: RowState, lane: FrameLane) -> LaneOutput:
        tokens = lane.prompt_token_ids
        assert tokens is not None
        assert tokens.dtype == np.int32
        assert 1 <= len(tokens) <= (graph.prefill_capacity or graph.token_capacity)
        assert lane.position == len(state.folds)
        if lane.image_index >= 0:
            assert state.features[lane.image_index] == lane.feature_offset
        for token in tokens.tolist():
            self._write(state, lane, token)
        assert lane.is_final_chunk == (len(state.folds) == state.prompt_length)
        sampled = [self._sample(state, lane, 0)] if lane.is_final_chunk else []
        output = self._output(state, sampled, 0)
        if graph.kind is not GraphKind.SCORED_PREFILL:
            return output
        followers = [*tokens[1:].tolist(), lane.next_prompt_token_id]
        scores = tuple(logprobs_of(t, max(0, state.top_logprobs)) for t in followers if t >= 0)
        return output._replace(prompt_logprobs=scores)

    def _output(self, state: RowState, tokens: list[int], offered: int) -> LaneOutput:
        wanted = state.top_logprobs >= 0
        scores = tuple(logprobs_of(token, state.top_logprobs) for token in tokens if wanted)
        return LaneOutput(
            tokens=tuple(tokens), terminated=state.is_finished, logprobs=scores, offered=offered
        )

    def _sample(self, state: RowState, lane: FrameLane, place: int) -> int:
        mask = None if lane.masks is None else lane.masks[place]
        state.pending = allowed_token(mask, token_after(state.fold))
        state.output_count += 1
        state.is_finished = state.pending in state.stop_token_ids
        return state.pending

    # Memory ---------------------------------------------------------------------------------

    def _bind(self, lane: FrameLane, folds: list[int]) -> None:
        assert lane.sampling is not None
        assert len(folds) == lane.position < lane.prompt_length
        state = RowState(
            lane.request_id,
            lane.incarnation,
            folds,
            lane.prompt_length,
            lane.sampling.stop_token_ids,
            lane.sampling.top_logprobs,
            lane.replayed_tokens,
            lane.replayed_tokens,
        )
        self.rows[lane.row] = state

    def _shared_folds(self, lane: FrameLane) -> list[int]:
        """What the pages of a shared prefix hold: whole pages only."""
        assert lane.position % PAGE == 0
        return [self.pages[lane.pages[i // PAGE]][i % PAGE] for i in range(lane.position)]

    def _restore(self, lane: FrameLane) -> None:
        folds = list(self.snapshots[lane.snapshot_row])
        self._bind(lane, folds)
        for index in range(len(folds) // PAGE * PAGE, len(folds)):
            self._page(lane, index)[index % PAGE] = folds[index]
        self._verify(self.rows[lane.row], lane)

    def _snapshot(self, state: RowState, lane: FrameLane) -> None:
        self._verify(state, lane)
        if lane.snapshot_row >= 0:
            assert lane.position == len(state.folds)
            self.snapshots[lane.snapshot_row] = copy.copy(state.folds)
        else:
            # Nothing is kept of it: behind an answer that its grammar ended a step had run ahead.
            assert lane.is_retired, "a copy has a destination unless it only lets a row go"
            assert lane.position <= len(state.folds)
        if lane.is_retired:
            del self.rows[lane.row]

    def _verify(self, state: RowState, lane: FrameLane) -> None:
        """Every consumed token is where the lane's pages say."""
        for index, fold in enumerate(state.folds):
            assert self._page(lane, index)[index % PAGE] == fold, (lane.request_id, index)

    def _write(self, state: RowState, lane: FrameLane, token: int) -> None:
        index = len(state.folds)
        state.folds.append(folded(state.fold, token))
        self._page(lane, index)[index % PAGE] = state.fold

    def _scribble(self, state: RowState, lane: FrameLane, rows: int) -> None:
        """A round writes all its target rows; what is not accepted is void."""
        for index in range(len(state.folds), len(state.folds) + rows):
            self._page(lane, index)[index % PAGE] = -1

    def _page(self, lane: FrameLane, index: int) -> list[int]:
        return self.pages.setdefault(lane.pages[index // PAGE], [-2] * PAGE)


def target_rows(graph: GraphDescriptor, lanes: Sequence[FrameLane]) -> list[int]:
    """Target rows of each lane: what the host fixed, or the device's turn by turn within P."""
    if graph.kind not in _GENERATING or graph.allocation is not RowAllocation.DEVICE:
        return [lane.query_length for lane in lanes]
    given = [0 if lane.is_prompt else 1 for lane in lanes]
    room = graph.rows - sum(given)
    while room and any(g < lane.query_length for g, lane in zip(given, lanes, strict=True)):
        for index, lane in enumerate(lanes):
            if room and given[index] < lane.query_length:
                given[index] += 1
                room -= 1
    return given


class FoldingProgram:
    """One program over the shared device."""

    def __init__(self, graph: GraphDescriptor, device: FoldingDevice) -> None:
        self.descriptor = graph
        self._device = device
        self._outputs: tuple[LaneOutput, ...] = ()
        self.confidence: Sidecar | None = None
        self.survival: Sidecar | None = None
        if graph.allocation is RowAllocation.DEVICE:
            self.confidence = falling(0.8)
        if graph.reports_survival:
            self.survival = falling(0.7)

    def load(self, frame: Frame) -> None:
        self._frame = frame

    def replay(self) -> None:
        self._outputs = self._device.run(self.descriptor, self._frame)

    def read(self, frame: Frame) -> tuple[LaneOutput, ...]:
        return self._outputs


def falling(first: float) -> Sidecar:
    """Prefix probabilities of every row on every rank."""
    powers = np.array([first**depth for depth in range(1, DEPTH + 1)], dtype=np.float32)
    return np.broadcast_to(powers, (RANKS, ROWS, DEPTH)).copy()


class FoldingModel:
    """An opened package of every kind of program."""

    def __init__(self, names: Sequence[str], **resources: Any) -> None:
        self.catalog = Catalog.of(
            descriptor(name, reports_survival="-device" in name) for name in names
        )
        self.device = FoldingDevice()
        self.programs = [FoldingProgram(graph, self.device) for graph in self.catalog.graphs]
        sizes = {"row_count": ROWS, "page_count": 24, "page_size_tokens": PAGE}
        self.resources = ResourceConfig(**{**sizes, "context_length_tokens": CONTEXT, **resources})
        self.cost_seeds_ns: Mapping[str, int] = {}

    def void(self, frame: Frame) -> None:
        """The frame never ran: its requests are lost."""
        self.device.dead.update(lane.request_id for lane in frame.lanes)
