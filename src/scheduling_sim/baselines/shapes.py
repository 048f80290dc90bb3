"""Shapes: which step can hold which lanes; the smallest prepared graph, or any shape at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphDescriptor,
    GraphKind,
    InvalidCatalogError,
    ProposalSource,
    RowAllocation,
)
from scheduling_sim.baselines.policy import Lane

FREE_GRAPH_INDEX: Final = -1
"""Graph index of a step of any shape: its cost is that of its own lanes."""
FREE_GRAPH: Final = GraphDescriptor(
    kind=GraphKind.MIXED, batch_capacity=64, token_capacity=1, prefill_capacity=2048
)
"""Nominal descriptor of such a step; its capacities bind nothing."""


class Fit(NamedTuple):
    """The graph that a step runs in."""

    number: int
    graph: GraphDescriptor


class Shapes(Protocol):
    """What steps can look like."""

    is_free: bool
    lanes: int
    """Most lanes of one step."""
    rows: int
    """Most resident requests."""
    budget_tokens: int
    """Most tokens of one step."""
    prompts_per_step: int
    mode: DecodeMode
    """The mode that mixed lanes run in."""

    def prompt_room(self, beside: int) -> int:
        """Return the most prompt tokens beside `beside` generating lanes; 0 if none fits."""
        ...

    def widths(self) -> Sequence[int]:
        """Return the widths that rounds can have, ascending."""
        ...

    def round_room(self, width: int) -> int:
        """Return the most lanes of a round of this width."""
        ...

    def fit(self, lanes: Sequence[Lane]) -> Fit:
        """Return the smallest graph that holds the lanes. Raises ValueError when none does."""
        ...

    def prompt_fit(self, tokens: int) -> Fit:
        """Return the smallest graph for a prompt chunk by itself. Raises ValueError."""
        ...

    def decode_fit(self) -> Fit:
        """Return the smallest graph for one decoder."""
        ...

    def state_fit(self, kind: GraphKind, lanes: int) -> Fit:
        """Return the smallest graph of INITIALIZE or TERMINAL, or the largest if none holds all."""
        ...


class FreeShapes:
    """Steps of any shape, as engines have that capture nothing or pad to fine buckets."""

    def __init__(self, *, max_sequences: int, max_batched_tokens: int) -> None:
        if max_sequences < 1 or max_batched_tokens < max_sequences:
            raise ValueError(
                f"max_sequences is {max_sequences}, max_batched_tokens {max_batched_tokens}: "
                "both must be positive, and every sequence needs a token of the step"
            )
        self.is_free = True
        self.lanes = self.rows = self.prompts_per_step = max_sequences
        self.budget_tokens = max_batched_tokens
        self.mode = DecodeMode.ORDINARY

    def prompt_room(self, beside: int) -> int:
        """Return what generating lanes leave of the token budget."""
        return max(0, self.budget_tokens - beside)

    def widths(self) -> Sequence[int]:
        """Return (1,): a free step has no draft model to pay for."""
        return (1,)

    def round_room(self, width: int) -> int:
        """Return the most sequences."""
        return self.lanes if width == 1 else 0

    def fit(self, lanes: Sequence[Lane]) -> Fit:
        """Return the nominal graph; any lanes fit."""
        del lanes
        return Fit(FREE_GRAPH_INDEX, FREE_GRAPH)

    def prompt_fit(self, tokens: int) -> Fit:
        """Return the nominal graph."""
        del tokens
        return Fit(FREE_GRAPH_INDEX, FREE_GRAPH)

    def decode_fit(self) -> Fit:
        """Return the nominal graph."""
        return Fit(FREE_GRAPH_INDEX, FREE_GRAPH)

    def state_fit(self, kind: GraphKind, lanes: int) -> Fit:
        """Return the nominal graph: state operations are no steps here."""
        del kind, lanes
        return Fit(FREE_GRAPH_INDEX, FREE_GRAPH)


class PreparedShapes:
    """Steps in the graphs of a catalog, which the production scheduler chooses from too."""

    def __init__(self, catalog: Catalog, *, rows: int, speculates: bool = False) -> None:
        graphs = list(enumerate(catalog.graphs))
        has_decode = any(graph.kind is GraphKind.DECODE for _, graph in graphs)
        self._keeps_draft = speculates or not has_decode
        self._prefill = [Fit(i, g) for i, g in graphs if g.kind is GraphKind.PREFILL]
        usable = [Fit(i, g) for i, g in graphs if self._is_usable(g)]
        self._rounds = sorted((f for f in usable if not f.graph.prefill_capacity), key=_size)
        self._mixed = sorted((f for f in usable if f.graph.prefill_capacity), key=_size)
        self._state = {
            kind: sorted((Fit(i, g) for i, g in graphs if g.kind is kind), key=_size)
            for kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL)
        }
        self._check()
        self.is_free = False
        self.prompts_per_step = 1
        self.rows = rows
        self.lanes = self.round_room(1)
        self.budget_tokens = max(
            self._prefill[-1].graph.token_capacity,
            max(
                (f.graph.batch_capacity + f.graph.prefill_capacity for f in self._mixed), default=0
            ),
        )
        self.mode = DecodeMode.ADAPTIVE if self._keeps_draft else DecodeMode.ORDINARY

    def _is_usable(self, graph: GraphDescriptor) -> bool:
        """Tell whether lanes may generate in a graph: the host decides rows and proposals."""
        if graph.kind is GraphKind.DECODE:
            return not self._keeps_draft
        return (
            graph.kind in (GraphKind.SPECULATIVE, GraphKind.MIXED)
            and graph.speculation_enabled == self._keeps_draft
            and graph.allocation is not RowAllocation.DEVICE
            and graph.source is not ProposalSource.COPY
        )

    def _check(self) -> None:
        if not self._rounds or self._rounds[0].graph.token_capacity != 1:
            raise InvalidCatalogError(
                "the catalog has no graph of width one for the baselines' decoders; "
                "a decode graph, or a speculative one with D = 0, would do"
            )
        if not self._state[GraphKind.TERMINAL]:
            raise InvalidCatalogError(
                "the catalog has no terminal graph, which the baselines retire requests by"
            )

    def prompt_room(self, beside: int) -> int:
        """Return the largest prompt capacity beside `beside` decode lanes."""
        if beside == 0:
            return self._prefill[-1].graph.token_capacity
        rooms = [f.graph.prefill_capacity for f in self._mixed if f.graph.batch_capacity > beside]
        return max(rooms, default=0)

    def widths(self) -> Sequence[int]:
        """Return the widths of the rounds."""
        return sorted({f.graph.token_capacity for f in self._rounds})

    def round_room(self, width: int) -> int:
        """Return the most lanes of a round of this width."""
        return max(
            (f.graph.batch_capacity for f in self._rounds if f.graph.token_capacity == width),
            default=0,
        )

    def fit(self, lanes: Sequence[Lane]) -> Fit:
        """Return the smallest graph for at most one prompt beside lanes of one width.

        The host fixes the query lengths, so that a wider graph holds narrower lanes too.
        """
        prompt = sum(lane.prompt_tokens for lane in lanes)
        count = len(lanes)
        if prompt and count == 1:
            return self.prompt_fit(prompt)
        width = max(lane.width for lane in lanes if not lane.prompt_tokens)
        for fit in self._mixed if prompt else self._rounds:
            graph = fit.graph
            if (
                graph.prefill_capacity >= prompt
                and graph.batch_capacity >= count
                and graph.token_capacity >= width
            ):
                return fit
        raise ValueError(
            f"no prepared graph holds {count} lanes of width {width} with {prompt} prompt tokens; "
            "a policy has to stay within its view's rooms"
        )

    def prompt_fit(self, tokens: int) -> Fit:
        """Return the smallest graph for a prompt chunk by itself. Raises ValueError."""
        for fit in self._prefill:
            if fit.graph.token_capacity >= tokens:
                return fit
        raise ValueError(f"no prepared graph takes a prompt chunk of {tokens} tokens")

    def decode_fit(self) -> Fit:
        """Return the smallest graph for one decoder."""
        return self._rounds[0]

    def state_fit(self, kind: GraphKind, lanes: int) -> Fit:
        """Return the smallest graph for a state operation, or the largest there is."""
        fits = self._state[kind]
        return next((fit for fit in fits if fit.graph.batch_capacity >= lanes), fits[-1])


def _size(fit: Fit) -> tuple[int, int]:
    """Order graphs by the token positions that they compute, then by index."""
    return fit.graph.rows + fit.graph.prefill_capacity, fit.number
