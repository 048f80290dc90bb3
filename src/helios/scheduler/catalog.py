"""Graph kinds, graph descriptors and the catalog of prepared programs.

A descriptor says what a prepared program *is*; it never says what the program costs here: native
estimates start indeterminate whatever `estimated_duration_ns` a descriptor was supplied with.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterable

from helios.scheduler.checks import LARGEST_INTEGER, check_integer, check_type
from helios.scheduler.config import DecodeMode, SpeculationConfig
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
    SPECULATIVE = 5
    """A complete round: proposals, row allocation, target verification, accepted-state commit."""
    MIXED = 6
    """At most one prompt row of `prefill_capacity` tokens beside rows that generate."""
    VISION = 7
    """Encodes one image of at most `token_capacity` feature rows for one request."""
    RESTORE = 8
    """Binds fresh rows to the state kept in snapshot rows; stands in for their initialisation."""
    SNAPSHOT = 9
    """Copies the complete state of rows; a terminal row may ride along and is retired by it."""


class RowAllocation(enum.IntEnum):
    """Who decides how many target rows each lane of a round gets."""

    NONE = 0
    """Every lane has one row."""
    HOST = 1
    """The host fixes exact query lengths before the proposals are drawn."""
    DEVICE = 2
    """The host fixes ceilings; the program allocates by causal confidence within P."""


class ProposalSource(enum.IntEnum):
    """Where a round's proposals come from."""

    NONE = 0
    LEARNED = 1
    """A trained draft produces D candidates."""
    COPY = 2
    """The host supplies a prefix of at most D candidates."""


KIND_NAMES = {
    GraphKind.INITIALIZE: "initialize",
    GraphKind.PREFILL: "prefill",
    GraphKind.SCORED_PREFILL: "scored-prefill",
    GraphKind.DECODE: "decode",
    GraphKind.TERMINAL: "terminal",
    GraphKind.SPECULATIVE: "speculative",
    GraphKind.MIXED: "mixed",
    GraphKind.VISION: "vision",
    GraphKind.RESTORE: "restore",
    GraphKind.SNAPSHOT: "snapshot",
}

MAX_BATCH = 64
MAX_DEPTH = 4096
"""Estimates have a cell for every row and depth of the catalog."""
COMPLETION_TOKENS = 8
"""Most tokens that a lane of a mixed graph can complete with where a catalog declares nothing."""
PROMPT_ALIGNMENT_TOKENS = 64
"""Prompt capacities of mixed graphs are multiples of it."""

_CAPACITIES = ("batch_capacity", "token_capacity")
_INTEGERS = (
    *_CAPACITIES,
    "proposal_depth",
    "packed_capacity",
    "prefill_capacity",
    "confidence_width",
    "estimated_duration_ns",
)

_ONE_ROW = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.VISION)
_GENERATING = (GraphKind.SPECULATIVE, GraphKind.MIXED)

GraphKey = tuple[int, int, int, int, int, int, int, int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphDescriptor:
    """The catalog identity of one prepared program (kind, B, W, D, P, prompt capacity of mixed).

    Raises InvalidCatalogError for an impossible shape.
    """

    kind: GraphKind
    batch_capacity: int
    """Physical request rows (B), 1 to 64."""
    token_capacity: int = 1
    """Target rows per request (W); prompt capacity of prefill kinds, feature rows of vision."""
    proposal_depth: int = 0
    """Captured proposal depth (D); zero for every kind without proposals."""
    packed_capacity: int = 0
    """Aggregate target rows (P); zero means batch_capacity * token_capacity."""
    prefill_capacity: int = 0
    """Prompt tokens of a mixed graph; zero for every other family."""
    allocation: RowAllocation = RowAllocation.NONE
    """Who allocates target rows; NONE for programs of width one."""
    source: ProposalSource = ProposalSource.NONE
    speculation_enabled: bool = False
    """Keeps the draft context: always for speculative rounds, by choice for mixed graphs."""
    confidence_width: int = 0
    """Produced prefixes whose confidence the program reports: D, or zero for none."""
    reports_survival: bool = False
    """Writes min(1, p/q) products for evaluated prefixes."""
    context_intervals: tuple[int, ...] = ()
    """Ascending upper bounds of the mean cached length that split the cost entry; empty: one."""
    estimated_duration_ns: int = 0
    """Ignored on input: native estimates start indeterminate."""

    def __post_init__(self) -> None:
        self._check_types()
        if not 1 <= self.batch_capacity <= MAX_BATCH:
            raise InvalidCatalogError(f"{self.name}: batch_capacity must be 1 to {MAX_BATCH}")
        if self.token_capacity < 1:
            raise InvalidCatalogError(f"{self.name}: token_capacity must be positive")
        if self.batch_capacity * self.token_capacity > LARGEST_INTEGER:
            raise InvalidCatalogError(f"{self.name}: B * W is above 2**62")
        if self.kind in _ONE_ROW:
            if self.batch_capacity != 1:
                raise InvalidCatalogError(f"{self.name}: a prefill graph has one request row")
        elif self.token_capacity != 1 and self.kind not in _GENERATING:
            raise InvalidCatalogError(f"{self.name}: token_capacity must be 1 for this kind")
        if self.kind in _GENERATING:
            self._check_generating()
        else:
            self._check_plain()
        if self.estimated_duration_ns < 0:
            raise InvalidCatalogError(f"{self.name}: estimated_duration_ns must not be negative")
        bounds = (0, *self.context_intervals)
        if any(left >= right for left, right in itertools.pairwise(bounds)):
            raise InvalidCatalogError(f"{self.name}: context_intervals must ascend from above 0")

    def _check_types(self) -> None:
        """Check every field by itself; only then has the graph a name to be called by."""
        error = InvalidCatalogError
        check_type(error, "graph.kind", self.kind, GraphKind, "a GraphKind")
        check_type(error, "graph.allocation", self.allocation, RowAllocation, "a RowAllocation")
        check_type(error, "graph.source", self.source, ProposalSource, "a ProposalSource")
        for name in ("speculation_enabled", "reports_survival"):
            check_type(error, f"graph.{name}", getattr(self, name), bool, "a bool")
        for name in _INTEGERS:
            least = 1 if name in _CAPACITIES else 0
            check_integer(error, f"graph.{name}", getattr(self, name), least=least)
        bounds = self.context_intervals
        check_type(error, "graph.context_intervals", bounds, tuple, "a tuple of integers")
        for index, bound in enumerate(bounds):
            check_integer(error, f"graph.context_intervals[{index}]", bound, least=1)

    def _check_plain(self) -> None:
        if self.proposal_depth or self.prefill_capacity:
            raise InvalidCatalogError(f"{self.name}: no proposals or mixed prompt in this kind")
        if self.allocation or self.source or self.speculation_enabled:
            raise InvalidCatalogError(f"{self.name}: no speculation in this kind")
        if self.confidence_width or self.reports_survival:
            raise InvalidCatalogError(f"{self.name}: no sidecar in this kind")
        if self.packed_capacity not in (0, self.batch_capacity * self.token_capacity):
            raise InvalidCatalogError(f"{self.name}: packed_capacity must be B * W for this kind")

    def _check_generating(self) -> None:
        if self.kind is GraphKind.MIXED:
            self._check_mixed()
        depth, width, device = self.proposal_depth, self.token_capacity, RowAllocation.DEVICE
        packed = self.batch_capacity <= self.rows <= self.batch_capacity * width
        rules = (
            (depth <= MAX_DEPTH, f"proposal_depth must be at most {MAX_DEPTH}"),
            (self.kind is GraphKind.MIXED or not self.prefill_capacity, "no mixed prompt here"),
            (self.kind is GraphKind.MIXED or self.speculation_enabled, "rounds keep draft state"),
            (depth >= 0 and (depth == 0) == (width == 1), "D = 0 and W = 1 go together"),
            (width <= depth + 1, f"W is at most D + 1 = {depth + 1}"),
            (packed, "packed_capacity must be B to B * W"),
            ((depth == 0) == (not self.allocation), "allocation is NONE exactly at width one"),
            ((depth == 0) == (not self.source), "source is NONE exactly at depth zero"),
            (depth == 0 or self.speculation_enabled, "proposals need speculation_enabled"),
            (self.confidence_width in (0, depth), f"confidence_width must be 0 or D = {depth}"),
            (
                self.allocation is not device or self.confidence_width > 0,
                "device allocation needs confidence_width = D",
            ),
            (depth > 0 or not self.reports_survival, "no survival without proposals"),
        )
        for holds, rule in rules:
            if not holds:
                raise InvalidCatalogError(f"{self.name}: {rule}")

    def _check_mixed(self) -> None:
        batch, prompt = self.batch_capacity, self.prefill_capacity
        if batch < 2 or batch & (batch - 1):
            raise InvalidCatalogError(
                f"{self.name}: batch_capacity must be a power of two, 2 to 64"
            )
        if prompt < 1 or prompt % PROMPT_ALIGNMENT_TOKENS:
            raise InvalidCatalogError(
                f"{self.name}: prefill_capacity must be a positive multiple of "
                f"{PROMPT_ALIGNMENT_TOKENS}"
            )
        if prompt < self.token_capacity:
            raise InvalidCatalogError(f"{self.name}: prefill_capacity is below token_capacity")
        if self.packed_capacity not in (0, batch * self.token_capacity):
            raise InvalidCatalogError(f"{self.name}: packed_capacity must be B * W for this kind")

    @property
    def rows(self) -> int:
        """Aggregate target rows (P)."""
        return self.packed_capacity or self.batch_capacity * self.token_capacity

    @property
    def name(self) -> str:
        """A short stable name, such as `decode-b4`, `prefill-c256` or `speculative-b4-d3-w4-p8`."""
        kind = KIND_NAMES[self.kind]
        if self.kind in _ONE_ROW:
            return f"{kind}-c{self.token_capacity}"
        parts = [f"{kind}-b{self.batch_capacity}"]
        if self.kind in _GENERATING:
            if self.speculation_enabled:
                parts.append(f"d{self.proposal_depth}")
            parts.append(f"w{self.token_capacity}")
            if self.rows != self.batch_capacity * self.token_capacity:
                parts.append(f"p{self.rows}")
            if self.prefill_capacity:
                parts.append(f"c{self.prefill_capacity}")
            if self.source is ProposalSource.COPY:
                parts.append("copy")
            if self.allocation is RowAllocation.DEVICE:
                parts.append("device")
        return "-".join(parts)

    @property
    def key(self) -> GraphKey:
        """The physical identity that a cost entry is keyed by, and the catalog's total order."""
        return (
            int(self.kind),
            self.batch_capacity,
            self.token_capacity,
            self.proposal_depth,
            self.prefill_capacity,
            self.rows,
            int(self.source),
            int(self.allocation),
            int(self.speculation_enabled),
        )


_REQUIRED = (
    (GraphKind.INITIALIZE,),
    (GraphKind.PREFILL,),
    (GraphKind.DECODE, GraphKind.SPECULATIVE),
    (GraphKind.TERMINAL, GraphKind.SNAPSHOT),
)
"""At least one kind of each group carries a request from admission to retirement."""


@dataclasses.dataclass(frozen=True, slots=True)
class Catalog:
    """The prepared programs in their total order; a program's position is its graph index.

    Build it with `Catalog.of`, which checks it; a scheduler takes no other (`check`).
    """

    graphs: tuple[GraphDescriptor, ...]

    def check(self) -> None:
        """Raise InvalidCatalogError for a catalog that `Catalog.of` would not have made."""
        made = "the tuple that Catalog.of makes"
        check_type(InvalidCatalogError, "graphs", self.graphs, tuple, made)
        if Catalog.of(self.graphs, completion_tokens=1 << 32).graphs != self.graphs:
            raise InvalidCatalogError(
                "graphs must be in the order of Catalog.of, without estimates"
            )

    @classmethod
    def of(
        cls, graphs: Iterable[GraphDescriptor], *, completion_tokens: int = COMPLETION_TOKENS
    ) -> Catalog:
        """Sort, validate and freeze the descriptors.

        Raises InvalidCatalogError for duplicates and for a catalog that cannot carry a request from
        admission to retirement.

        `completion_tokens` bounds the decode width of mixed graphs: what one lane's completion has
        room for.
        """
        error = InvalidCatalogError
        check_integer(error, "completion_tokens", completion_tokens, least=1)
        check_type(error, "graphs", graphs, Iterable, "descriptors")
        given = tuple(graphs)
        for index, graph in enumerate(given):
            check_type(error, f"graphs[{index}]", graph, GraphDescriptor, "a GraphDescriptor")
        ordered = tuple(
            sorted(
                (dataclasses.replace(graph, estimated_duration_ns=0) for graph in given),
                key=lambda graph: graph.key,
            )
        )
        for left, right in itertools.pairwise(ordered):
            if left.key == right.key:
                raise InvalidCatalogError(f"{left.name} is in the catalog twice")
        for graph in ordered:
            if graph.kind is GraphKind.MIXED and graph.token_capacity > completion_tokens:
                raise InvalidCatalogError(
                    f"{graph.name}: token_capacity is above the {completion_tokens} tokens that a "
                    "lane can complete with"
                )
        present = {graph.kind: None for graph in ordered}
        for kinds in _REQUIRED:
            if not any(kind in present for kind in kinds):
                raise InvalidCatalogError(f"the catalog has no {KIND_NAMES[kinds[0]]} graph")
        return cls(ordered)

    def check_mode(self, speculation: SpeculationConfig) -> None:
        """Raise InvalidCatalogError when decoders have no graph in this decode mode."""
        if not any(self.generates(graph, speculation) for graph in self.graphs):
            raise InvalidCatalogError(
                f"the catalog has no graph for decoders in mode {speculation.mode.value}"
                + (f" at width {speculation.fixed_width}" if speculation.fixed_width else "")
            )

    @staticmethod
    def generates(graph: GraphDescriptor, speculation: SpeculationConfig) -> bool:
        """Tell whether decoders may run in `graph` in this decode mode.

        DECODE would lose the draft context that speculative rounds rely on, and device allocation
        needs adaptive selection.
        """
        mode = speculation.mode
        if mode is DecodeMode.ORDINARY:
            return graph.kind is GraphKind.DECODE or (
                graph.kind is GraphKind.MIXED and not graph.speculation_enabled
            )
        if graph.kind not in _GENERATING or not graph.speculation_enabled:
            return False
        if mode is DecodeMode.ADAPTIVE:
            return True
        return (
            graph.token_capacity == speculation.fixed_width
            and graph.allocation is not RowAllocation.DEVICE
        )

    def indices_of(self, kind: GraphKind) -> tuple[int, ...]:
        """Return the graph indices of one kind, smallest capacity first."""
        return tuple(i for i, graph in enumerate(self.graphs) if graph.kind is kind)
