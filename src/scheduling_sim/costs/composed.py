"""A step's time composed from measured operators.

A step is `layers * (dense parts + attention) + embedding + last norm + output head + sampler`.
Dense parts go by physical rows: those of the captured capacities in a prepared graph, those of the
lanes in a free shape (rounded up to the sizes that the modelled engine captured). Attention goes by
the lanes that are really there and by their contexts; padded rows have no keys to read.

Checked against real vLLM 0.19 runs: see `docs/costs.md`. Nothing is added for the host; what a host
adds is a platform's `HostCosts`.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource
from scheduling_sim.costs.attention import TILE_ROWS
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.costs.operators import OperatorTable

VLLM_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Row counts that vLLM 0.19 captures by default, as its runs record them."""

_PROMPT_KINDS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
_STATE_KINDS = (
    GraphKind.INITIALIZE,
    GraphKind.TERMINAL,
    GraphKind.RESTORE,
    GraphKind.SNAPSHOT,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComposedOptions:
    """What the operator tables do not say."""

    pad_rows: tuple[int, ...] = VLLM_SIZES
    """Captured row counts that free shapes are rounded up to; larger steps keep their rows."""
    draft_layers: int = 1
    """Layers of the learned draft, of the target's own shape: one for EAGLE and MTP heads."""
    draft_head: bool = True
    """The draft runs the target's output head for every proposed token."""
    draft_prompts: bool = False
    """Prompts run through the draft too: platforms that speculate keep its context."""
    state_ns: int = 20_000
    """One state program (binding rows, retiring, snapshot, restore): a few small kernels."""
    image_row_ns: int = 2_000
    """One feature row of an image encoder; no table here measured one."""

    def __post_init__(self) -> None:
        if list(self.pad_rows) != sorted(set(self.pad_rows)) or min(self.pad_rows, default=1) < 1:
            raise ValueError("pad_rows must ascend from at least 1")
        for name in ("draft_layers", "state_ns", "image_row_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


class _Program(NamedTuple):
    """What a prepared graph costs whoever rides along, and what it holds."""

    graph: GraphDescriptor
    fixed_us: float
    layers: int
    """Layers whose attention a step runs, the draft's passes included."""
    prompt_limit: int
    width_limit: int


class _Load(NamedTuple):
    """The lanes of a step, gathered for the attention tables."""

    chunks: list[tuple[int, int]]
    """(tokens, cached) of prompt lanes and of lanes wider than a tile."""
    lanes: int
    context: int
    """Sum over the generating lanes of one tile, the rows of the step included."""
    longest: int
    rows: int
    """Of generating lanes."""
    widest: int
    """Rows of the widest generating lane."""
    prompts: int
    prompt_tokens: int
    largest_prompt: int


class ComposedCosts:
    """CostModel over an operator table; pure, what it keeps are memos of dense rows."""

    def __init__(self, table: OperatorTable, options: ComposedOptions | None = None) -> None:
        self.table = table
        self.options = options or ComposedOptions()
        self._layers = table.facts.layers
        self._dense: dict[int, float] = {}
        self._layer: dict[int, float] = {}
        self._head: dict[int, float] = {}
        # By identity: hashing a descriptor takes as long as the interpolation. The entry keeps
        # its descriptor alive, so that an identity is never reused.
        self._programs: dict[int, _Program] = {}

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the device time of a step in ns; see `CostModel`."""
        if not lanes:
            raise ValueError("a step without lanes has no time")
        if graph is None:
            return self._free_ns(lanes)
        kind = graph.kind
        if kind in _STATE_KINDS or kind is GraphKind.VISION:
            return self._plain_ns(graph, lanes)
        program = self._programs.get(id(graph)) or self._prepare(graph)
        load = _gather(lanes)
        if len(lanes) > graph.batch_capacity or not (
            load.prompts <= (1 if program.prompt_limit else 0)
            and load.largest_prompt <= program.prompt_limit
            and load.widest <= program.width_limit
            and load.rows <= graph.rows
        ):
            raise ValueError(_misfit(program, len(lanes), load))
        attention = program.layers * self._attention_us(load)
        return max(1, round(1000 * (program.fixed_us + attention)))

    def _plain_ns(self, graph: GraphDescriptor, lanes: Sequence[LaneWork]) -> int:
        if len(lanes) > graph.batch_capacity:
            raise ValueError(f"{graph.name}: {len(lanes)} lanes, it holds {graph.batch_capacity}")
        rows = graph.token_capacity if graph.kind is GraphKind.VISION else 0
        return max(1, self.options.state_ns + rows * self.options.image_row_ns)

    def _prepare(self, graph: GraphDescriptor) -> _Program:
        rows = physical_rows(graph)
        fixed = self.dense_us(rows) + self.head_us(sampled_rows(graph))
        prompt, width = graph.prefill_capacity, graph.token_capacity
        if graph.kind in _PROMPT_KINDS:
            prompt, width = width, 0
        program = _Program(
            graph, fixed + self._draft_us(graph, rows), self._depth(graph), prompt, width
        )
        self._programs[id(graph)] = program
        return program

    def _free_ns(self, lanes: Sequence[LaneWork]) -> int:
        load = _gather(lanes)
        rows = load.rows + load.prompt_tokens
        sampled = load.rows
        if load.prompts:
            sampled += sum(lane.is_prompt and lane.samples for lane in lanes)
        pads = self.options.pad_rows
        if pads and rows <= pads[-1]:
            rows = pads[bisect_left(pads, rows)]
        total = self.dense_us(rows) + self.head_us(sampled)
        return max(1, round(1000 * (total + self._layers * self._attention_us(load))))

    def dense_us(self, rows: int) -> float:
        """Return everything of a step but attention and output head, in us."""
        found = self._dense.get(rows)
        if found is None:
            found = self._layers * self.layer_us(rows) + self.table.once_us(rows)
            self._dense[rows] = found
        return found

    def layer_us(self, rows: int) -> float:
        """Return one layer without attention, in us."""
        found = self._layer.get(rows)
        if found is None:
            found = self._layer[rows] = self.table.layer_us(rows)
        return found

    def head_us(self, rows: int) -> float:
        """Return output head and sampler for `rows` rows, in us."""
        found = self._head.get(rows)
        if found is None:
            found = self._head[rows] = self.table.head_us(rows)
        return found

    def _draft_us(self, graph: GraphDescriptor, rows: int) -> float:
        """Return the draft's dense work.

        One pass over the step's rows keeps its context and yields the first proposal; each further
        depth is a pass over one row per lane. Copied proposals need the first pass alone.
        """
        options = self.options
        prompts = options.draft_prompts and graph.kind in _PROMPT_KINDS
        if not (prompts or graph.speculation_enabled):
            return 0.0
        total = options.draft_layers * self.layer_us(rows)
        if graph.source is ProposalSource.LEARNED:
            batch, depth = graph.batch_capacity, graph.proposal_depth
            total += (depth - 1) * options.draft_layers * self.layer_us(batch)
            if options.draft_head:
                total += depth * self.head_us(batch)
        return total

    def _depth(self, graph: GraphDescriptor) -> int:
        """Return how many layers' attention a step runs, the draft's passes included."""
        draft = 0
        if graph.speculation_enabled:
            learned = graph.source is ProposalSource.LEARNED
            draft = graph.proposal_depth if learned else 1
        elif self.options.draft_prompts and graph.kind in _PROMPT_KINDS:
            draft = 1
        return self._layers + draft * self.options.draft_layers

    def _attention_us(self, load: _Load) -> float:
        """Return one layer's attention; see `attention` for how lanes become table points."""
        grid, chunks = self.table.attention, load.chunks
        count, total, longest = load.lanes, load.context, load.longest
        if not chunks:
            if load.widest == 1:
                return grid.decode_us(count, total / count, longest)
            others = max(1, count - 1)
            mean = (total - longest) / others
            return grid.mixed_us(TILE_ROWS, longest, count - 1, mean, longest)
        if len(chunks) > 1:
            chunks, count, total, longest = _fold(chunks, count, total, longest)
        return grid.chunks_us(chunks, count, total / count if count else 0.0, longest)


def _gather(lanes: Sequence[LaneWork]) -> _Load:
    chunks: list[tuple[int, int]] = []
    contexts: list[int] = []
    rows = widest = prompts = prompt_tokens = largest = 0
    for tokens, cached, is_prompt, _ in lanes:
        if tokens < 1 or cached < 0:
            raise ValueError(f"a lane of {tokens} new and {cached} cached tokens cannot be")
        if is_prompt:
            prompts += 1
            prompt_tokens += tokens
            largest = max(largest, tokens)
            chunks.append((tokens, cached))
            continue
        rows += tokens
        if tokens != widest:
            widest = max(widest, tokens)
        if tokens > TILE_ROWS:
            chunks.append((tokens, cached))
        else:
            contexts.append(cached + tokens)
    count, longest = len(contexts), max(contexts, default=0)
    total = sum(contexts)
    return _Load(chunks, count, total, longest, rows, widest, prompts, prompt_tokens, largest)


def _misfit(program: _Program, lanes: int, load: _Load) -> str:
    graph = program.graph
    return (
        f"{graph.name}: {lanes} lanes with {load.prompts} prompts of up to {load.largest_prompt} "
        f"tokens, rows {load.rows}, widest {load.widest}; it holds {graph.batch_capacity} lanes, "
        f"a prompt of {program.prompt_limit}, rows {graph.rows}, widest {program.width_limit}"
    )


def _fold(
    chunks: list[tuple[int, int]], count: int, total: int, longest: int
) -> tuple[list[tuple[int, int]], int, int, int]:
    """Let chunks of one tile ride as lanes, the largest chunk excepted."""
    ordered = sorted(chunks, reverse=True)
    kept = [ordered[0]]
    for tokens, cached in ordered[1:]:
        if tokens > TILE_ROWS:
            kept.append((tokens, cached))
            continue
        count += 1
        total += cached + tokens
        longest = max(longest, cached + tokens)
    return kept, count, total, longest


def physical_rows(graph: GraphDescriptor) -> int:
    """Return the token positions that a program computes whoever rides along."""
    if graph.kind is GraphKind.MIXED:
        return graph.prefill_capacity + (graph.batch_capacity - 1) * graph.token_capacity
    return graph.rows


def sampled_rows(graph: GraphDescriptor) -> int:
    """Return the rows that a program's output head covers."""
    if graph.kind is GraphKind.PREFILL:
        return 1
    if graph.kind is GraphKind.MIXED:
        return 1 + (graph.batch_capacity - 1) * graph.token_capacity
    return graph.rows
