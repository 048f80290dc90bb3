"""Capacity planning: which programs to prepare, and what rows, pages and memory they are given.

Planning is arithmetic on the model's geometry. It reads no weights and asks the machine nothing:
the memory of the machine comes in as a number, so the same options always give the same plan.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    ResourceConfig,
)
from ignition.capacity_costs import compile_seconds, prepare_seconds
from ignition.capacity_errors import CapacityError
from ignition.capacity_memory import MemoryPlan, program_buffers
from ignition.capacity_pages import memory_needs, page_count
from ignition.capacity_pairs import (
    PairMemory,
    pair_memory,
    pair_note,
    pair_seconds,
)
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.mixed_shapes import mixed_batches, mixed_graphs, mixed_prompts
from ignition.programs.buffers import BufferSpec
from ignition.purposes import SOURCE_WORDS, purpose_of
from ignition.round_shapes import DEFAULT_TOKEN_CAPACITY, Depths, round_graphs, telling_survival

MAX_CONCURRENCY: Final = 64
DEFAULT_PREFILL_CAPACITIES: Final = {
    "native": (16, 32, 64, 128),
    "eager": (16, 32, 64, 128, 256, 512),
    "cuda": (16, 32, 64, 128, 256, 512),
}
"""A native program of 64 rows already runs at the processor's rate per token: larger ones would
only stall whoever waits, so there is one size above the knee for prompts that end in it."""
DEFAULT_SCORED_CAPACITIES: Final = (64, 256)
MAX_ROUND_TOKENS: Final = 512
"""Most target rows of a round: each needs a row of logits in the workspace."""
BACKENDS: Final = ("native", "eager", "cuda")
PRECISIONS: Final = ("int8", "fp32")
PAGE_SIZES: Final = (16, 32, 64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """What the caller asks for; None means that planning decides."""

    backend: str
    """native, eager or cuda."""
    precision: str
    """int8 (native only) or fp32."""
    concurrency: int = 16
    """Resident request rows, 1 to MAX_CONCURRENCY."""
    context_length_tokens: int | None = None
    """Longest prompt plus output; None: the model's own."""
    page_size_tokens: int = 16
    memory_bytes: int | None = None
    """Budget for everything the engine allocates for the model; None: pages for every row up to the
    context, of at most 4 GiB or a quarter of the machine's memory."""
    prefill_capacities: tuple[int, ...] | None = None
    scored_capacities: tuple[int, ...] | None = None
    request_buckets: tuple[int, ...] | None = None
    """Row capacities of initialize, decode and terminal programs; the largest covers every row."""
    draft_tokens: int = 0
    """Most copied proposals of a request in one round; zero prepares no such rounds."""
    learned_tokens: int = 0
    """Most proposals of a draft head for a request in one round; zero prepares no such rounds."""
    head_tokens: int = 0
    """Tokens that the draft head can propose; zero: there is no head."""
    draft_model: ModelGeometry | None = None
    """A separate draft model in the place of a head."""
    speculative_token_capacity: int = DEFAULT_TOKEN_CAPACITY
    """Most target rows, pending tokens included, of a round of all its requests."""
    mixed_prefill: bool = False
    """Prepare programs that consume a prompt chunk beside rows that generate."""
    row_sharing: str = "off"
    """Prepare rounds whose requests share target rows, dealt by the host, with device also by the
    programs themselves; off: none (ignition.round_shapes)."""
    survival: bool = False
    """Prepare rounds that write the chance of every prefix of proposals beside what they drew."""

    @property
    def depths(self) -> Depths:
        """The most proposals of a request by source, for sources that there are programs of."""
        asked = {
            ProposalSource.COPY: self.draft_tokens,
            ProposalSource.LEARNED: self.learned_tokens,
        }
        return {source: depth for source, depth in asked.items() if depth}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProgram:
    """One program to prepare."""

    graph: GraphDescriptor
    purpose: str
    buffers: tuple[BufferSpec, ...]
    prepare_s: float
    """Estimated seconds that this program adds to preparing."""

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the program's own static inputs and outputs."""
        return sum(buffer.size_bytes for buffer in self.buffers)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What `prepare` will build and what it will cost."""

    geometry: ModelGeometry
    pool: PoolGeometry
    backend: str
    precision: str
    programs: tuple[PlannedProgram, ...]
    """In catalog order."""
    memory: MemoryPlan
    compile_s: float
    """Estimated seconds of preparing that no single program causes."""
    draft_model: ModelGeometry | None = None
    """The model that proposes, where a separate one does."""
    draft_memory: PairMemory | None = None
    """What of `memory` is the separate draft model's."""
    notes: tuple[str, ...] = ()
    """Decisions that a reader should know of, one sentence each."""

    @property
    def needs_draft(self) -> bool:
        """Whether a program proposes by itself, with a draft head or a separate draft model."""
        return any(program.graph.source is ProposalSource.LEARNED for program in self.programs)

    @property
    def catalog(self) -> Catalog:
        """The planned programs as the scheduler sees them."""
        return Catalog.of(program.graph for program in self.programs)

    @property
    def resources(self) -> ResourceConfig:
        """The planned rows and pages as the scheduler sees them."""
        return resources_of(self.pool)

    @property
    def prepare_s(self) -> float:
        """Estimated seconds of preparing everything."""
        return self.compile_s + sum(program.prepare_s for program in self.programs)

    def to_document(self) -> dict[str, object]:
        """Return the plan as plain JSON values."""
        programs = [
            {
                "name": program.graph.name,
                "kind": kind_name(program.graph.kind),
                "batch_capacity": program.graph.batch_capacity,
                "token_capacity": program.graph.token_capacity,
                "proposal_depth": program.graph.proposal_depth,
                "purpose": program.purpose,
                "buffer_bytes": program.buffer_bytes,
                "prepare_s": program.prepare_s,
                "buffers": [dataclasses.asdict(buffer) for buffer in program.buffers],
            }
            for program in self.programs
        ]
        return {
            "geometry": dataclasses.asdict(self.geometry),
            "pool": dataclasses.asdict(self.pool),
            "backend": self.backend,
            "precision": self.precision,
            "programs": programs,
            "memory": {
                **dataclasses.asdict(self.memory),
                "total_bytes": self.memory.total_bytes,
            },
            "draft_model": _document_of(self.draft_model),
            "draft_memory": _document_of(self.draft_memory),
            "compile_s": self.compile_s,
            "prepare_s": self.prepare_s,
            "notes": list(self.notes),
        }


def _document_of(record: ModelGeometry | PairMemory | None) -> dict[str, object] | None:
    return None if record is None else dataclasses.asdict(record)


def kind_name(kind: GraphKind) -> str:
    """Return the name of a kind as catalogs and manifests spell it."""
    return kind.name.lower().replace("_", "-")


def resources_of(pool: PoolGeometry) -> ResourceConfig:
    """Return a pool as the scheduler sees it."""
    return ResourceConfig(
        row_count=pool.row_count,
        page_count=pool.page_count,
        page_size_tokens=pool.page_size_tokens,
        context_length_tokens=pool.context_length_tokens,
    )


def plan_capacity(
    geometry: ModelGeometry, options: CapacityOptions, *, machine_memory_bytes: int
) -> CapacityPlan:
    """Plan programs, rows and pages. Raises CapacityError, naming the option."""
    _check_options(options)
    context = _context_of(geometry, options)
    graphs = plan_graphs(options, context)
    pool = PoolGeometry(
        row_count=options.concurrency,
        page_count=1,
        page_size_tokens=options.page_size_tokens,
        context_length_tokens=context,
    )
    needs = memory_needs(
        geometry,
        pool,
        graphs,
        backend=options.backend,
        precision=options.precision,
        head_tokens=options.head_tokens,
        draft=options.draft_model,
    )
    pages, notes = page_count(
        needs,
        budget_bytes=options.memory_bytes,
        machine_bytes=machine_memory_bytes,
        is_context_asked=options.context_length_tokens is not None,
    )
    if pages * options.page_size_tokens < context:
        shorter = dataclasses.replace(
            options, context_length_tokens=pages * options.page_size_tokens
        )
        reduced = plan_capacity(geometry, shorter, machine_memory_bytes=machine_memory_bytes)
        return dataclasses.replace(reduced, notes=(*notes, *reduced.notes))

    pool = dataclasses.replace(pool, page_count=pages)
    draft = options.draft_model
    return CapacityPlan(
        geometry=geometry,
        pool=pool,
        backend=options.backend,
        precision=options.precision,
        programs=tuple(_planned(geometry, options, graph, pool) for graph in graphs),
        memory=dataclasses.replace(needs.fixed, kv_bytes=pages * needs.page_bytes),
        compile_s=compile_seconds(options.backend) * (1 if draft is None else 2),
        draft_model=draft,
        draft_memory=pair_memory(draft, options.precision, pool, graphs, options.backend),
        notes=(*notes, *pair_note(draft, context)),
    )


def plan_graphs(options: CapacityOptions, context: int) -> tuple[GraphDescriptor, ...]:
    """Return the descriptors to prepare, in catalog order. Raises CapacityError."""
    buckets = _buckets(options)
    prefill = _prompt_capacities(
        "--prefill-capacities",
        options.prefill_capacities,
        DEFAULT_PREFILL_CAPACITIES[options.backend],
        context,
    )
    scored = _prompt_capacities(
        "--scored-capacities", options.scored_capacities, DEFAULT_SCORED_CAPACITIES, context
    )
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
    if options.mixed_prefill:
        graphs += _mixed_graphs(options, buckets, prefill)
    if options.depths:
        _check_rounds(options, context)
        capacity, sharing = options.speculative_token_capacity, options.row_sharing
        graphs += round_graphs(buckets, options.depths, token_capacity=capacity, sharing=sharing)
    return Catalog.of(telling_survival(graphs) if options.survival else graphs).graphs


def _mixed_graphs(
    options: CapacityOptions, buckets: tuple[int, ...], prefill: tuple[int, ...]
) -> tuple[GraphDescriptor, ...]:
    """Return the mixed programs. Raises CapacityError where there can be none."""
    if options.backend == "cuda":
        raise CapacityError(
            "--mixed-prefill", "cuda programs do not mix yet; native and eager ones do"
        )
    batches, prompts = mixed_batches(buckets), mixed_prompts(prefill)
    if not batches:
        raise CapacityError(
            "--mixed-prefill", f"needs a request bucket of 2, 4, 8, ..., there are only {buckets}"
        )
    if not prompts:
        raise CapacityError(
            "--mixed-prefill", f"needs a prefill capacity in multiples of 64, not only {prefill}"
        )
    capacity = options.speculative_token_capacity
    return tuple(mixed_graphs(batches, prompts, options.depths, token_capacity=capacity))


def _check_rounds(options: CapacityOptions, context: int) -> None:
    if options.backend == "cuda":
        sources = " or ".join(SOURCE_WORDS[source] for source in options.depths)
        raise CapacityError(
            "--speculation",
            f"cuda programs take no {sources} proposals yet; native and eager ones do",
        )
    longest, deepest = min(context, MAX_ROUND_TOKENS) - 1, max(options.depths.values())
    if min(options.depths.values()) < 1 or deepest > longest:
        raise CapacityError("--draft-tokens", f"must be 1 to {longest}, not {deepest}")
    least, most = deepest + 1, MAX_ROUND_TOKENS
    if not least <= options.speculative_token_capacity <= most:
        raise CapacityError(
            "--speculative-token-capacity",
            f"must be {least} (one request's proposals and its pending token) to {most}, not "
            f"{options.speculative_token_capacity}",
        )


def _check_options(options: CapacityOptions) -> None:
    if options.backend not in BACKENDS:
        raise CapacityError("--backend", f"{options.backend!r} is none of {', '.join(BACKENDS)}")
    if options.precision not in PRECISIONS:
        raise CapacityError(
            "--precision", f"{options.precision!r} is none of {', '.join(PRECISIONS)}"
        )
    if options.precision == "int8" and options.backend != "native":
        raise CapacityError("--precision", f"int8 needs native programs, not {options.backend}")
    if not 1 <= options.concurrency <= MAX_CONCURRENCY:
        raise CapacityError(
            "--concurrency", f"must be 1 to {MAX_CONCURRENCY}, not {options.concurrency}"
        )
    if options.head_tokens and options.draft_model is not None:
        raise CapacityError("--draft", "a head and a draft model cannot both propose")
    if bool(options.learned_tokens) != (options.head_tokens > 0 or options.draft_model is not None):
        raise CapacityError(
            "--speculation",
            "learned proposals need a draft head or a draft model, and a draft such proposals",
        )
    if options.page_size_tokens not in PAGE_SIZES:
        raise CapacityError(
            "--page-size", f"must be one of {PAGE_SIZES}, not {options.page_size_tokens}"
        )


def _context_of(geometry: ModelGeometry, options: CapacityOptions) -> int:
    longest = geometry.context_length_tokens
    context = longest if options.context_length_tokens is None else options.context_length_tokens
    if not 2 <= context <= longest:
        raise CapacityError("--context", f"must be 2 to the model's {longest}, not {context}")
    return context


def _buckets(options: CapacityOptions) -> tuple[int, ...]:
    if options.request_buckets is None:
        padded = 1 << (options.concurrency - 1).bit_length()
        return tuple(1 << power for power in range(padded.bit_length()))
    buckets = tuple(sorted(set(options.request_buckets)))
    if not buckets or buckets[0] < 1 or buckets[-1] > MAX_CONCURRENCY:
        raise CapacityError("--request-buckets", f"each must be 1 to {MAX_CONCURRENCY}")
    if buckets[-1] < options.concurrency:
        raise CapacityError(
            "--request-buckets",
            f"the largest is {buckets[-1]}, which leaves the {options.concurrency} rows of "
            "--concurrency without a program that holds them all",
        )
    return buckets


def _prompt_capacities(
    option: str, asked: tuple[int, ...] | None, default: tuple[int, ...], context: int
) -> tuple[int, ...]:
    if asked is None:
        return tuple(capacity for capacity in default if capacity <= context) or (context,)
    capacities = tuple(sorted(set(asked)))
    if not capacities or capacities[0] < 1 or capacities[-1] > context:
        raise CapacityError(option, f"each must be 1 to the context of {context} tokens")
    return capacities


def _planned(
    geometry: ModelGeometry, options: CapacityOptions, graph: GraphDescriptor, pool: PoolGeometry
) -> PlannedProgram:
    seconds = prepare_seconds(
        geometry,
        graph,
        precision=options.precision,
        backend=options.backend,
        head_tokens=options.head_tokens,
    )
    seconds += pair_seconds(options.draft_model, graph, options.precision)
    return PlannedProgram(
        graph=graph,
        purpose=purpose_of(graph),
        buffers=program_buffers(geometry, graph, pool, options.backend),
        prepare_s=seconds,
    )
