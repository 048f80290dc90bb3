"""The catalog planner: which programs to capture under a memory limit, and what padding they cost.

A catalog has state programs and generating programs per request bucket, prefill programs per
prompt capacity, and, by mode, rounds (B, W, D, P) and mixed graphs. Mixed shapes follow the source
document: every prompt capacity at width one, and for each wider width within the row envelope the
one capacity P that balances its distance to the shortest and the longest, max(P / P_min, P_max /
P), the smaller of equals.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    ResourceConfig,
    RowAllocation,
)
from scheduling_sim.costs.operators import ModelFacts
from scheduling_sim.costs.padding import best_capacities, even_load, padding

MODES = ("ordinary", "mixed", "speculative", "speculative-mixed")
RULES = ("powers", "steps")
MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """What to capture. Raises ValueError, naming the field, for what cannot be."""

    slots: int = 64
    """Resident requests, 1 to 64."""
    mode: str = "ordinary"
    """One of MODES."""
    buckets: str | tuple[int, ...] = "powers"
    """Request buckets: powers of two, or 1, 2, 4 and steps of 8, or these."""
    prefills: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    """Prompt capacities in tokens."""
    depths: tuple[int, ...] = (1, 2, 3, 5)
    """Proposal depths D of rounds; a rectangular round has W = D + 1."""
    row_envelope: int = 256
    """Most aggregate target rows of programs wider than one: B * W, or P of ragged ones."""
    ragged: tuple[float, ...] = ()
    """Shares of B * W that ragged rounds hold, such as 0.5; their host-fixed rows are uneven."""
    device_allocation: bool = False
    """Ragged rounds whose rows the device allocates by confidence."""
    copy: bool = False
    """Rounds with copied proposals beside the learned ones."""
    states: bool = False
    """Snapshot and restore programs."""
    context_intervals: tuple[int, ...] = ()
    """Upper bounds of the mean context that split every cost entry of generating programs."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 64:
            raise ValueError(f"slots must be 1 to 64, not {self.slots}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if isinstance(self.buckets, str):
            if self.buckets not in RULES:
                raise ValueError(f"buckets must be one of {', '.join(RULES)}, or sizes")
        elif not _ascends(self.buckets) or self.buckets[-1] != self.slots:
            raise ValueError(f"buckets must ascend to slots = {self.slots}, not {self.buckets}")
        for name in ("prefills", "depths"):
            if not _ascends(getattr(self, name)):
                raise ValueError(f"{name} must ascend from at least 1, not {getattr(self, name)}")
        if not all(0 < share < 1 for share in self.ragged):
            raise ValueError(f"ragged shares must lie between 0 and 1, not {self.ragged}")

    @property
    def speculates(self) -> bool:
        """Rounds keep a draft's context."""
        return self.mode.startswith("speculative")

    @property
    def mixes(self) -> bool:
        """Mixed graphs are captured."""
        return self.mode.endswith("mixed")


def _ascends(sizes: tuple[int, ...]) -> bool:
    return bool(sizes) and sizes[0] >= 1 and all(a < b for a, b in itertools.pairwise(sizes))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What the machine's memory goes to."""

    memory_bytes: int
    """All devices together."""
    utilization: float = 0.9
    """Share of the memory that the server may take."""
    graph_bytes: int = 16 * MIB
    """Per captured graph; engines report 0.5 to 1 GiB for some fifty graphs of this model size."""
    graph_limit_bytes: int | None = None
    """Most memory for graphs; the planner leaves out the least useful ones beyond it."""
    workspace_bytes: int = 2048 * MIB
    """Activations of the largest step, sampling and communication buffers."""
    page_size_tokens: int = 64
    snapshot_rows: int = 0
    draft_layers: int = 0
    """Layers whose cache the draft adds, with the pages of the model's own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Executed over useful rows on a load."""

    buckets: tuple[int, ...]
    prefills: tuple[int, ...]
    decode: float
    prefill: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPlan:
    """What the planner chose and what is left."""

    catalog: Catalog
    padding: Padding
    graph_bytes: int
    left_out: tuple[str, ...]
    """Programs beyond the graph limit, least useful first."""
    page_count: int
    draft_extent_tokens: int

    def resources(
        self, options: CatalogOptions, memory: MemoryOptions, facts: ModelFacts
    ) -> ResourceConfig:
        """Return the resources that the plan leaves."""
        tokens = self.page_count * memory.page_size_tokens
        return ResourceConfig(
            row_count=options.slots,
            page_count=self.page_count,
            page_size_tokens=memory.page_size_tokens,
            context_length_tokens=min(facts.context_length_tokens, tokens),
            snapshot_rows=memory.snapshot_rows,
            draft_extent_tokens=self.draft_extent_tokens,
        )


def request_buckets(slots: int, rule: str | tuple[int, ...]) -> tuple[int, ...]:
    """Return the request capacities of a rule, the last one `slots`."""
    if not isinstance(rule, str):
        return rule
    sizes = [1, 2, 4, *range(8, slots, 8)] if rule == "steps" else [1 << i for i in range(7)]
    return (*(size for size in sizes if size < slots), slots)


def balanced_prompt(prompts: tuple[int, ...]) -> int:
    """Return the capacity that minimises max(P / P_min, P_max / P), the smaller of equals."""
    shortest, longest = prompts[0], prompts[-1]
    return min(prompts, key=lambda prompt: (max(prompt / shortest, longest / prompt), prompt))


def mixed_shapes(
    batches: tuple[int, ...], prompts: tuple[int, ...], widths: tuple[int, ...], envelope: int
) -> list[tuple[int, int, int]]:
    """Return (batch, prompt capacity, width) of the mixed graphs to capture."""
    shapes = []
    for batch in batches:
        if batch < 2 or batch & (batch - 1):
            continue
        shapes += [(batch, prompt, 1) for prompt in prompts]
        shapes += [
            (batch, balanced_prompt(prompts), width)
            for width in widths
            if width > 1 and batch * width <= envelope
        ]
    return shapes


def plan_catalog(
    facts: ModelFacts,
    options: CatalogOptions,
    memory: MemoryOptions,
    *,
    decode_load: Mapping[int, float] | None = None,
    chunk_load: Mapping[int, float] | None = None,
) -> CatalogPlan:
    """Choose the catalog and count the pages that are left.

    Under `graph_limit_bytes` the programs that are needed come first (state programs, the smallest
    and the largest generating buckets, prefills); of the others those go that the catalog can do
    without, mixed graphs and ragged rounds before wide rounds before buckets. Loads default to
    every number of requests, and every chunk length, equally often. Raises ValueError when memory
    is too small for the weights, the needed programs and one page per slot.
    """
    buckets = request_buckets(options.slots, options.buckets)
    graphs = list(_graphs(options, buckets))
    needed = sum(rank == 0 for rank, _ in graphs)
    limit = memory.graph_limit_bytes
    room = len(graphs) if limit is None else limit // memory.graph_bytes
    if room < needed:
        raise ValueError(
            f"graph_limit_bytes = {limit} holds {room} programs of {memory.graph_bytes} bytes, "
            f"a catalog of {options.slots} slots needs {needed}"
        )
    ordered = sorted(graphs, key=lambda entry: entry[0])
    kept = [graph for _, graph in ordered[:room]]
    catalog = Catalog.of(kept)
    pages = _pages(facts, memory, len(kept))
    if pages < options.slots:
        raise ValueError(
            f"{facts.name}: {pages} pages of {memory.page_size_tokens} tokens are left of "
            f"{memory.memory_bytes} bytes, {options.slots} slots need one each"
        )
    return CatalogPlan(
        catalog=catalog,
        padding=_padding(catalog, decode_load, chunk_load),
        graph_bytes=len(kept) * memory.graph_bytes,
        left_out=tuple(graph.name for _, graph in reversed(ordered[room:])),
        page_count=pages,
        draft_extent_tokens=max((graph.proposal_depth for graph in kept), default=0),
    )


def fewest_padding(
    slots: int, count: int, load: Mapping[int, float] | None = None
) -> tuple[int, ...]:
    """Return at most `count` request buckets, `slots` the last, that pad the load least."""
    chosen = dict(load or even_load(slots))
    return best_capacities(chosen, count, range(1, slots + 1))


def _pages(facts: ModelFacts, memory: MemoryOptions, graphs: int) -> int:
    usable = int(memory.memory_bytes * memory.utilization)
    usable -= facts.weight_bytes + memory.workspace_bytes + graphs * memory.graph_bytes
    layers = facts.layers + memory.draft_layers
    page = facts.kv_bytes_per_token * layers * memory.page_size_tokens // facts.layers
    return max(0, usable // page)


def _padding(
    catalog: Catalog,
    decode_load: Mapping[int, float] | None,
    chunk_load: Mapping[int, float] | None,
) -> Padding:
    generating = (GraphKind.DECODE, GraphKind.SPECULATIVE)
    sizes = {g.batch_capacity: None for g in catalog.graphs if g.kind in generating}
    chunks = {g.token_capacity: None for g in catalog.graphs if g.kind is GraphKind.PREFILL}
    buckets, prefills = tuple(sorted(sizes)), tuple(sorted(chunks))
    return Padding(
        buckets=buckets,
        prefills=prefills,
        decode=padding(buckets, decode_load or even_load(buckets[-1])),
        prefill=padding(prefills, chunk_load or even_load(prefills[-1])),
    )


def _graphs(
    options: CatalogOptions, buckets: tuple[int, ...]
) -> Iterator[tuple[int, GraphDescriptor]]:
    """Yield (rank, program); rank 0 is needed, the highest is given up first."""
    kinds = [GraphKind.INITIALIZE, GraphKind.TERMINAL]
    kinds += [GraphKind.SNAPSHOT, GraphKind.RESTORE] if options.states else []
    ends = (buckets[0], buckets[-1])
    for batch in buckets:
        rank = 0 if batch in ends else 1
        for kind in kinds:
            yield rank, GraphDescriptor(kind=kind, batch_capacity=batch)
        yield rank, _one_row(options, batch)
    for tokens in options.prefills:
        yield (
            0 if tokens == options.prefills[-1] else 1,
            GraphDescriptor(
                kind=GraphKind.PREFILL,
                batch_capacity=1,
                token_capacity=tokens,
                context_intervals=options.context_intervals,
            ),
        )
    if options.speculates:
        yield from _rounds(options, buckets)
    if options.mixes:
        yield from _mixed(options, buckets)


def _one_row(options: CatalogOptions, batch: int) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE if options.speculates else GraphKind.DECODE,
        batch_capacity=batch,
        speculation_enabled=options.speculates,
        context_intervals=options.context_intervals,
    )


def _rounds(
    options: CatalogOptions, buckets: tuple[int, ...]
) -> Iterator[tuple[int, GraphDescriptor]]:
    sources = [ProposalSource.LEARNED] + ([ProposalSource.COPY] if options.copy else [])
    for batch, depth, source in itertools.product(buckets, options.depths, sources):
        width = depth + 1
        if batch * width <= options.row_envelope:
            yield 2, _round(options, batch, depth, source, 0)
        if source is ProposalSource.COPY or batch < 2:
            continue
        sizes = {max(batch, int(share * batch * width)): None for share in options.ragged}
        for rows in sorted(sizes):
            if batch < rows <= options.row_envelope and rows < batch * width:
                yield 3, _round(options, batch, depth, source, rows)


def _round(
    options: CatalogOptions, batch: int, depth: int, source: ProposalSource, rows: int
) -> GraphDescriptor:
    device = options.device_allocation and rows > 0
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=depth + 1,
        proposal_depth=depth,
        packed_capacity=rows,
        allocation=RowAllocation.DEVICE if device else RowAllocation.HOST,
        source=source,
        speculation_enabled=True,
        confidence_width=depth if device else 0,
        context_intervals=options.context_intervals,
    )


def _mixed(
    options: CatalogOptions, buckets: tuple[int, ...]
) -> Iterator[tuple[int, GraphDescriptor]]:
    prompts = tuple(tokens for tokens in options.prefills if tokens % 64 == 0)
    if not prompts:
        raise ValueError("mixed graphs need a prompt capacity that is a multiple of 64")
    widths = tuple(depth + 1 for depth in options.depths if depth < 8) if options.speculates else ()
    for batch, prompt, width in mixed_shapes(buckets, prompts, widths, options.row_envelope):
        wide = width > 1
        yield (
            5 if wide else 4,
            GraphDescriptor(
                kind=GraphKind.MIXED,
                batch_capacity=batch,
                token_capacity=width,
                proposal_depth=width - 1,
                prefill_capacity=prompt,
                allocation=RowAllocation.HOST if wide else RowAllocation.NONE,
                source=ProposalSource.LEARNED if wide else ProposalSource.NONE,
                speculation_enabled=options.speculates,
                context_intervals=options.context_intervals,
            ),
        )
