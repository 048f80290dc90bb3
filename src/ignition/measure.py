"""Measures freshly opened programs by running each a few times on made-up prompts.

The durations seed the scheduler's estimates as stale ones: they steer the first choices and are
replaced by what serving observes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from helios.engine.ports import (
    DelayedProgram,
    Frame,
    FrameLane,
    PreparedModel,
    PreparedProgram,
    SamplingParams,
)
from helios.scheduler import Fence, GraphDescriptor, GraphKind, ProposalSource, RequestHandle
from ignition.capacity_costs import PREPARE_REPLAYS, WARM_CONTEXT_TOKENS
from ignition.measured_costs import at_most_larger, swept
from ignition.programs.buffers import is_mixed, is_round, prompt_capacity

_GENERATING = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)

SHORT_PROMPT_TOKENS = 64
"""Longest prompt capacity that is worth measuring again at every start."""


_PREPARE_SWEEPS = (PREPARE_REPLAYS // 2, PREPARE_REPLAYS - PREPARE_REPLAYS // 2)
_START_SWEEPS = (2, 1)
"""Replays of each sweep: the very first touches a program's buffers, so it warms up."""


def measure_programs(model: PreparedModel, on_measured: Callable[[str], None]) -> dict[str, int]:
    """Return graph name -> shortest replay nanoseconds. Every row is clear again afterwards.

    The shortest of a few replays in two sweeps is what the program costs when nothing else runs; an
    estimate that is too long would keep the scheduler from finding out for half a minute and more.
    `on_measured` hears a graph's name when its last sweep is done.
    """
    graphs, seen = model.catalog.graphs, set[str]()

    def shortest_ns(graph: GraphDescriptor, replays: int) -> int:
        cost_ns = _Measurement(model, graph).shortest_ns(replays)
        if graph.name in seen:
            on_measured(graph.name)
        seen.add(graph.name)
        return cost_ns

    return at_most_larger(graphs, swept(graphs, _PREPARE_SWEEPS, shortest_ns))


def calibrated_seeds(model: PreparedModel) -> dict[str, int]:
    """Run the short programs three times in two sweeps and return cost seeds for this process.

    Long prefills, rounds with proposals and mixed programs keep the package's seeds, scaled by how
    the short ones changed since, because the machine that prepared may have been busier than this
    one is; running them all would make every start seconds longer.
    """
    packaged = model.cost_seeds_ns
    short = [
        graph
        for graph in model.catalog.graphs
        if graph.token_capacity <= SHORT_PROMPT_TOKENS
        and not is_round(graph)
        and not is_mixed(graph)
    ]
    measured = swept(
        short,
        _START_SWEEPS,
        lambda graph, replays: _Measurement(model, graph).shortest_ns(replays),
    )
    seeds = at_most_larger(short, measured)
    ratios = [
        seeds[graph.name] / packaged[graph.name]
        for graph in short
        if graph.kind is GraphKind.PREFILL and graph.name in packaged
    ]
    factor = statistics.median(ratios) if ratios else 1.0
    for name, cost_ns in packaged.items():
        if name not in seeds:
            seeds[name] = max(1, round(cost_ns * factor))
    return seeds


class _Measurement:
    """Runs one program of a model whose rows nobody else uses."""

    def __init__(self, model: PreparedModel, graph: GraphDescriptor) -> None:
        self._model = model
        self._graph = graph
        self._fences = itertools.count(1)
        self._lanes = min(graph.batch_capacity, model.resources.row_count)
        self._pages = min(
            model.resources.page_count // self._lanes,
            model.resources.pages_for(model.resources.context_length_tokens),
        )
        if self._pages == 0:
            # More rows than pages is a legal pool; then fewer rows are measured.
            self._lanes, self._pages = model.resources.page_count, 1

    def shortest_ns(self, replays: int) -> int:
        kind = self._graph.kind
        program = self._program(kind, self._graph.batch_capacity)
        if kind is not GraphKind.INITIALIZE:
            self._run_all(GraphKind.INITIALIZE)
        if kind in _GENERATING:
            for row in range(is_mixed(self._graph), self._lanes):
                self._fill(row)
        # A prefill starts at the same position every time; a decode step goes on from the last
        # one, and the other two kinds may be repeated on the same rows.
        lanes = self._frame_lanes(kind)
        durations = [self._run(program, lanes) for _ in range(replays)]
        self._run_all(GraphKind.TERMINAL)
        return max(1, min(durations))

    def _frame_lanes(self, kind: GraphKind) -> list[FrameLane]:
        if kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
            return [self._prompt_lane(0, self._graph.token_capacity, self._deep_position())]
        if is_mixed(self._graph):
            prompt = self._prompt_lane(0, self._graph.prefill_capacity, self._deep_position())
            length = self._target_rows()
            return [prompt, *(self._round_lane(row, length) for row in range(1, self._lanes))]
        if is_round(self._graph):
            return self._round_lanes()
        return [self._lane(row) for row in range(self._lanes)]

    def _target_rows(self) -> int:
        """Return the target rows of each lane: all, where its pages have room for every replay."""
        most = max(1, (self._room() - 1) // PREPARE_REPLAYS)
        return min(self._graph.token_capacity, most)

    def _room(self) -> int:
        """Return the tokens that a row's pages hold."""
        resources = self._model.resources
        return min(self._pages * resources.page_size_tokens, resources.context_length_tokens)

    def _deep_position(self) -> int:
        """Return where in a long prompt a chunk is measured: a quarter into what a row can hold.

        A chunk costs more the more tokens lie before it, and a cost has no position. Measured at
        its cheapest, a capacity not tried lately would look better than one observed deep in a
        prompt, be tried there, and stall every running stream for its true duration.
        """
        room = self._room()
        return max(0, min(room // 4, room - prompt_capacity(self._graph)))

    def _run_all(self, kind: GraphKind) -> None:
        """Run a bookkeeping program over all measured rows, in as many frames as it takes."""
        program = self._program(kind, self._lanes)
        size = program.descriptor.batch_capacity
        for start in range(0, self._lanes, size):
            rows = range(start, min(start + size, self._lanes))
            self._run(program, [self._lane(row) for row in rows])

    def _fill(self, row: int) -> None:
        """Give a row a context, leaving room for the tokens that are measured."""
        capacities = self._model.catalog.indices_of(GraphKind.PREFILL)
        graphs = [self._model.catalog.graphs[index] for index in capacities]
        fitting = [g for g in graphs if g.token_capacity <= WARM_CONTEXT_TOKENS] or graphs[:1]
        graph = fitting[-1]
        program = self._model.programs[self._model.catalog.graphs.index(graph)]
        fed = self._target_rows() if self._graph.kind in _GENERATING else 1
        room = max(1, self._room() - PREPARE_REPLAYS * fed)
        self._run(program, [self._prompt_lane(row, min(graph.token_capacity, room))])

    def _program(self, kind: GraphKind, lanes: int) -> PreparedProgram:
        """Return the smallest program of a kind for some lanes, or else its largest."""
        if kind is self._graph.kind:
            return self._model.programs[self._model.catalog.graphs.index(self._graph)]
        indices = self._model.catalog.indices_of(kind)
        sizes = [self._model.catalog.graphs[index].batch_capacity for index in indices]
        chosen = next((i for i, size in zip(indices, sizes, strict=True) if size >= lanes), None)
        return self._model.programs[indices[-1] if chosen is None else chosen]

    def _run(self, program: PreparedProgram, lanes: list[FrameLane]) -> int:
        frame = Frame(
            fence=Fence(next(self._fences)),
            graph_index=self._model.catalog.graphs.index(program.descriptor),
            lanes=tuple(lanes),
        )
        program.load(frame)
        started = time.perf_counter_ns()
        program.replay()
        spent_ns = time.perf_counter_ns() - started
        lost_ns = program.readiness_ns() if isinstance(program, DelayedProgram) else 0
        return max(1, spent_ns - lost_ns)

    def _lane(self, row: int) -> FrameLane:
        return FrameLane(
            handle=RequestHandle(row, 1),
            row=row,
            position=0,
            pages=tuple(self._row_pages(row)),
            sampling=SamplingParams(temperature=0.0),
        )

    def _round_lanes(self) -> list[FrameLane]:
        """Return lanes that fill the program: where they share its rows, the first ones take all.

        So as many proposals follow each other as in any frame of it.
        """
        spare = self._graph.rows - self._lanes
        lanes = []
        for row in range(self._lanes):
            more = min(self._target_rows() - 1, spare)
            spare -= more
            lanes.append(self._round_lane(row, 1 + more))
        return lanes

    def _round_lane(self, row: int, length: int) -> FrameLane:
        """Return a lane of that many target rows; few of its proposals will be accepted."""
        is_copy = self._graph.source is ProposalSource.COPY
        copied = (0,) * (length - 1 if is_copy else 0)
        return self._lane(row)._replace(query_length=length, copied_token_ids=copied)

    def _prompt_lane(self, row: int, tokens: int, position: int = 0) -> FrameLane:
        fitting = min(tokens, self._room() - position)
        return FrameLane(
            handle=RequestHandle(row, 1),
            row=row,
            position=position,
            pages=tuple(self._row_pages(row)),
            prompt_token_ids=np.arange(fitting, dtype=np.int32) % 32,
            is_final_chunk=True,
        )

    def _row_pages(self, row: int) -> Iterator[int]:
        return iter(range(row * self._pages, (row + 1) * self._pages))
