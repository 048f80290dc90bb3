"""Graph kinds, graph descriptors and the catalog of prepared programs.

A descriptor says what a prepared program *is*; it never says what the program costs here: native
estimates start indeterminate whatever `estimated_duration_ns` a descriptor was supplied with.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterable

from helios.scheduler.errors import InvalidCatalogError


class GraphKind(enum.IntEnum):
    """The families of prepared programs."""

    INITIALIZE = 0
    """Binds fresh requests to rows: page table, sampling state, counters."""
    PREFILL = 1
    """Consumes up to `token_capacity` prompt tokens of one request; samples after the last one."""
    SCORED_PREFILL = 2
    """Prefill that also writes the log-probability of every consumed prompt token."""
    DECODE = 3
    """One output token for each of up to `batch_capacity` requests."""
    TERMINAL = 4
    """Retires finished requests: reads their final counters and clears their rows."""


KIND_NAMES = {
    GraphKind.INITIALIZE: "initialize",
    GraphKind.PREFILL: "prefill",
    GraphKind.SCORED_PREFILL: "scored-prefill",
    GraphKind.DECODE: "decode",
    GraphKind.TERMINAL: "terminal",
}

MAX_BATCH = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphDescriptor:
    """The catalog identity of one prepared program (kind, B, W, D, P, prompt capacity of mixed).

    Raises InvalidCatalogError for an impossible shape.
    """

    kind: GraphKind
    batch_capacity: int
    """Physical request rows (B), 1 to 64."""
    token_capacity: int = 1
    """Tokens per request row (W); for prefill kinds the prompt capacity."""
    proposal_depth: int = 0
    """Captured proposal depth (D); zero for every kind without proposals."""
    packed_capacity: int = 0
    """Aggregate target rows (P); zero means batch_capacity * token_capacity."""
    prefill_capacity: int = 0
    """Prompt tokens of a mixed graph; zero for every other family."""
    estimated_duration_ns: int = 0
    """Ignored on input: native estimates start indeterminate."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_capacity <= MAX_BATCH:
            raise InvalidCatalogError(f"{self.name}: batch_capacity must be 1 to {MAX_BATCH}")
        if self.token_capacity < 1:
            raise InvalidCatalogError(f"{self.name}: token_capacity must be positive")
        if self.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
            if self.batch_capacity != 1:
                raise InvalidCatalogError(f"{self.name}: a prefill graph has one request row")
        elif self.token_capacity != 1:
            raise InvalidCatalogError(f"{self.name}: token_capacity must be 1 for this kind")
        if self.proposal_depth or self.prefill_capacity:
            raise InvalidCatalogError(f"{self.name}: no proposals or mixed prompt in this kind")
        if self.packed_capacity not in (0, self.batch_capacity * self.token_capacity):
            raise InvalidCatalogError(f"{self.name}: packed_capacity must be B * W for this kind")
        if self.estimated_duration_ns < 0:
            raise InvalidCatalogError(f"{self.name}: estimated_duration_ns must not be negative")

    @property
    def name(self) -> str:
        """A short stable name, such as `decode-b4` or `prefill-c256`."""
        kind = KIND_NAMES[self.kind]
        if self.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
            return f"{kind}-c{self.token_capacity}"
        return f"{kind}-b{self.batch_capacity}"

    @property
    def key(self) -> tuple[int, int, int, int, int, int]:
        """The physical identity that a cost entry is keyed by, and the catalog's total order."""
        return (
            int(self.kind),
            self.batch_capacity,
            self.token_capacity,
            self.proposal_depth,
            self.prefill_capacity,
            self.packed_capacity or self.batch_capacity * self.token_capacity,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Catalog:
    """The prepared programs in their total order; a program's position is its graph index.

    Build it with `Catalog.of`. Raises InvalidCatalogError for duplicates and for a catalog that
    cannot carry a request from admission to retirement.
    """

    graphs: tuple[GraphDescriptor, ...]

    @classmethod
    def of(cls, graphs: Iterable[GraphDescriptor]) -> Catalog:
        """Sort, validate and freeze the descriptors."""
        ordered = tuple(
            sorted(
                (dataclasses.replace(graph, estimated_duration_ns=0) for graph in graphs),
                key=lambda graph: graph.key,
            )
        )
        for left, right in itertools.pairwise(ordered):
            if left.key == right.key:
                raise InvalidCatalogError(f"{left.name} is in the catalog twice")
        required = (GraphKind.INITIALIZE, GraphKind.PREFILL, GraphKind.DECODE, GraphKind.TERMINAL)
        present = [graph.kind for graph in ordered]
        for kind in required:
            if kind not in present:
                raise InvalidCatalogError(f"the catalog has no {KIND_NAMES[kind]} graph")
        return cls(ordered)

    def indices_of(self, kind: GraphKind) -> tuple[int, ...]:
        """Return the graph indices of one kind, smallest capacity first."""
        return tuple(i for i, graph in enumerate(self.graphs) if graph.kind is kind)
