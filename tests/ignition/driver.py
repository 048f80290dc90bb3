"""Drives prepared programs by hand: what the engine does, one frame at a time, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from helios.engine.ports import Frame, FrameLane, LaneOutput, SamplingParams
from helios.scheduler import (
    Catalog,
    Fence,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    RequestHandle,
    RowAllocation,
)

GREEDY = SamplingParams(temperature=0.0)


def catalog_of(
    prefill: Sequence[int] = (16, 64),
    scored: Sequence[int] = (32,),
    buckets: Sequence[int] = (1, 2, 4, 8),
    rounds: Sequence[tuple[int, int]] = (),
    mixed: Sequence[tuple[int, int, int]] = (),
) -> Catalog:
    """`rounds` are batch capacities and target rows of programs that take copied proposals, `mixed`
    those and prompt capacities; with one target row they are of the ordinary mode."""
    graphs = [
        GraphDescriptor(kind=kind, batch_capacity=bucket)
        for kind in (GraphKind.INITIALIZE, GraphKind.DECODE, GraphKind.TERMINAL)
        for bucket in buckets
    ]
    for kind, capacities in ((GraphKind.PREFILL, prefill), (GraphKind.SCORED_PREFILL, scored)):
        graphs += [
            GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=capacity)
            for capacity in capacities
        ]
    graphs += [round_graph(batch, width) for batch, width in rounds]
    return Catalog.of([*graphs, *(mixed_graph(*shape) for shape in mixed)])


def round_graph(batch: int, width: int) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        source=ProposalSource.COPY if width > 1 else ProposalSource.NONE,
        speculation_enabled=True,
    )


def mixed_graph(batch: int, width: int, prompt: int) -> GraphDescriptor:
    wide = width > 1
    return GraphDescriptor(
        kind=GraphKind.MIXED,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        prefill_capacity=prompt,
        allocation=RowAllocation.HOST if wide else RowAllocation.NONE,
        source=ProposalSource.COPY if wide else ProposalSource.NONE,
        speculation_enabled=wide,
    )


class Driver:
    """Runs frames on the programs of one model; pages are dealt by the caller."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._fences = itertools.count(1)

    def program(self, name: str) -> Any:
        for program in self.model.programs:
            if program.descriptor.name == name:
                return program
        raise KeyError(name)

    def run(self, name: str, *lanes: FrameLane) -> tuple[LaneOutput, ...]:
        program = self.program(name)
        index = self.model.catalog.graphs.index(program.descriptor)
        frame = Frame(fence=Fence(next(self._fences)), graph_index=index, lanes=lanes)
        program.load(frame)
        program.replay()
        return tuple(program.read(frame))

    def smallest(self, kind: str, lanes: int) -> str:
        names = [p.descriptor.name for p in self.model.programs]
        sizes = sorted(int(n.rsplit("-b", 1)[1]) for n in names if n.startswith(f"{kind}-b"))
        return f"{kind}-b{next(size for size in sizes if size >= lanes)}"

    def initialize(
        self,
        rows: Sequence[int],
        pages: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] = GREEDY,
        program: str | None = None,
    ) -> None:
        each = [sampling] * len(rows) if isinstance(sampling, SamplingParams) else sampling
        lanes = [
            lane(row, pages=tuple(own), sampling=params, prompt_length=1)
            for row, own, params in zip(rows, pages, each, strict=True)
        ]
        self.run(program or self.smallest("initialize", len(rows)), *lanes)

    def prefill(
        self, row: int, prompt: Sequence[int], chunks: Sequence[tuple[str, int]]
    ) -> LaneOutput:
        """Consume the prompt as (program, count) chunks; return the last chunk's output."""
        position, output = 0, LaneOutput()
        for name, count in chunks:
            tokens = np.asarray(prompt[position : position + count], np.int32)
            position += count
            has_next = position < len(prompt)
            (output,) = self.run(
                name,
                lane(
                    row,
                    position=position - count,
                    prompt_token_ids=tokens,
                    next_prompt_token_id=prompt[position] if has_next else -1,
                    is_final_chunk=not has_next,
                ),
            )
        assert position == len(prompt)
        return output

    def decode(self, rows: Sequence[int], program: str | None = None) -> tuple[LaneOutput, ...]:
        return self.run(program or self.smallest("decode", len(rows)), *map(lane, rows))

    def round(self, proposals: dict[int, Sequence[int]], program: str) -> dict[int, LaneOutput]:
        """Verify the proposals of each row; return what each row produced."""
        lanes = [
            lane(row, query_length=len(tokens) + 1, copied_token_ids=tuple(tokens))
            for row, tokens in proposals.items()
        ]
        return dict(zip(proposals, self.run(program, *lanes), strict=True))

    def terminal(self, rows: Sequence[int]) -> tuple[LaneOutput, ...]:
        return self.run(self.smallest("terminal", len(rows)), *map(lane, rows))


def lane(row: int, *, position: int = 0, pages: tuple[int, ...] = (), **fields: Any) -> FrameLane:
    return FrameLane(
        handle=RequestHandle(row, 1), row=row, position=position, pages=pages, **fields
    )
