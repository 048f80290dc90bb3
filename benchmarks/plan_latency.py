"""Host time of one scheduling decision by slots and catalog size, for ordinary and for rounds.

Every cell runs a steady generation load (all slots running, two frames in flight, no device), so
the figures are those of a step of the serving loop. In the modes that end in `-arrivals` requests
are short, so that prompts come in and requests end all the time: their p99 is that of decisions
about newcomers, prompts beside streams, and retirement. The catalogs are those of a recipe with
concurrency 64: rounds of every width at every request bucket, ragged ones, mixed graphs, prefills,
scored prefills and state operations. Usage:

    python benchmarks/plan_latency.py [--steps 400] [--slots 1,4,16,64] [--graphs 20,100,300]
        [--modes ordinary,speculative,ordinary-arrivals,speculative-arrivals] [--cpu]

`--cpu` counts processor time of the thread instead of wall time, for a machine that is shared.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from helios.scheduler import (
    Catalog,
    CompletionRecord,
    DecodeMode,
    ExecutionTiming,
    Fence,
    GraphDescriptor,
    GraphKind,
    Phase,
    ProposalSource,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    RowAllocation,
    ScheduledPlan,
    Scheduler,
    SpeculationConfig,
)

MODES = ("ordinary", "speculative", "ordinary-arrivals", "speculative-arrivals")
PHASES = ("plan", "commit", "complete", "publish", "sum")
OUTPUT_TOKENS = 4000
SHORT_OUTPUTS = (20, 200)
"""Fewest and most output tokens where requests come and go."""
SHORT_PROMPTS = (30, 2000)
WAITING = 4
"""Requests that wait for a row at any time."""
BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PROMPTS = (64, 128, 256, 512, 1024, 2048, 4096)
DEPTH = 7
clock = time.perf_counter_ns
ACCEPTANCE = 0.7
"""Chance that a proposal is accepted once those before it were."""


def catalog_of(graph_count: int, *, speculative: bool) -> Catalog:
    """Return the first `graph_count` programs of a recipe, those first that serving needs."""
    programs = _speculative() if speculative else _ordinary()
    chosen: dict[str, GraphDescriptor] = {}
    for graph in programs:
        if len(chosen) < graph_count:
            chosen.setdefault(graph.name, graph)
    assert len(chosen) == graph_count, f"the recipe has only {len(chosen)} programs"
    return Catalog.of(chosen.values())


def _states(buckets: tuple[int, ...]) -> Iterator[GraphDescriptor]:
    for kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL):
        for batch in buckets:
            yield GraphDescriptor(kind=kind, batch_capacity=batch)


def _prefills(kind: GraphKind, capacities: tuple[int, ...]) -> Iterator[GraphDescriptor]:
    for capacity in capacities:
        yield GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=capacity)


def _ordinary() -> Iterator[GraphDescriptor]:
    yield from _states((1, 64))
    yield from _prefills(GraphKind.PREFILL, (64, 512, 4096))
    for batch in (*BUCKETS, *range(1, 65)):
        yield GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=batch)
    for batch in BUCKETS[1:]:
        for prompt in PROMPTS:
            yield GraphDescriptor(
                kind=GraphKind.MIXED, batch_capacity=batch, prefill_capacity=prompt
            )
    yield from _states(tuple(range(1, 65)))
    yield from _prefills(GraphKind.PREFILL, tuple(range(64, 4097, 64)))
    yield from _prefills(GraphKind.SCORED_PREFILL, PROMPTS)


def _round(
    batch: int, width: int, rows: int = 0, *, device: bool = False, prompt: int = 0
) -> GraphDescriptor:
    depth = width - 1
    return GraphDescriptor(
        kind=GraphKind.MIXED if prompt else GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=depth,
        packed_capacity=rows,
        prefill_capacity=prompt,
        allocation=_allocation(depth, device=device),
        source=ProposalSource.LEARNED if depth else ProposalSource.NONE,
        speculation_enabled=True,
        confidence_width=depth if device else 0,
    )


def _allocation(depth: int, *, device: bool) -> RowAllocation:
    if not depth:
        return RowAllocation.NONE
    return RowAllocation.DEVICE if device else RowAllocation.HOST


def _speculative() -> Iterator[GraphDescriptor]:
    yield from _states((1, 64))
    yield from _prefills(GraphKind.PREFILL, (64, 512))
    for width in (1, 4, *range(1, DEPTH + 2)):
        for batch in BUCKETS:
            yield _round(batch, width)
    for width in range(2, DEPTH + 2):
        for batch in BUCKETS[1:]:
            yield _round(batch, width, batch * (width + 1) // 2)
    for batch in BUCKETS[1:]:
        for prompt in PROMPTS:
            yield _round(batch, 1, prompt=prompt)
        for width in range(2, DEPTH + 2):
            yield _round(batch, width, prompt=512)
    for width in range(3, DEPTH + 2):
        for batch in BUCKETS[1:]:
            yield _round(batch, width, batch * 2, device=True)
    for kind in (GraphKind.SNAPSHOT, GraphKind.RESTORE):
        for batch in BUCKETS:
            yield GraphDescriptor(kind=kind, batch_capacity=batch)
    yield from _states(BUCKETS)
    yield from _prefills(GraphKind.PREFILL, PROMPTS)
    yield from _prefills(GraphKind.SCORED_PREFILL, PROMPTS)
    for quarters in (3, 2):
        for batch in BUCKETS[1:]:
            for width in (4, 8):
                yield _round(batch, width, batch * width * quarters // 4)
                yield _round(batch, width, batch * width * quarters // 4, device=True)


def duration_ns(graph: GraphDescriptor) -> int:
    """Return the modelled duration of a graph."""
    if graph.kind is GraphKind.DECODE:
        return 20_000_000 + 100_000 * graph.batch_capacity
    if graph.kind in (GraphKind.SPECULATIVE, GraphKind.MIXED):
        prompt_ns = 1_700_000 * graph.prefill_capacity // 100
        return 20_000_000 + 500_000 * graph.proposal_depth + 100_000 * graph.rows + prompt_ns
    if graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        return 5_000_000 + 1_700_000 * graph.token_capacity
    return 200_000


class Loop:
    """The serving loop at its smallest; the modelled device takes no host time."""

    def __init__(
        self, slots: int, catalog: Catalog, *, speculative: bool, has_arrivals: bool = False
    ) -> None:
        mode = DecodeMode.ADAPTIVE if speculative else DecodeMode.ORDINARY
        self.scheduler = Scheduler(
            catalog=catalog,
            resources=ResourceConfig(
                row_count=slots,
                page_count=slots * 300,
                page_size_tokens=16,
                context_length_tokens=8192,
            ),
            speculation=SpeculationConfig(mode=mode),
        )
        # Seeded costs skip discovery; what runs is fresh after its first frame.
        self.scheduler.seed_costs({g.name: duration_ns(g) for g in catalog.graphs})
        if not has_arrivals:
            for _ in range(slots):
                self.scheduler.admit(RequestSpec(prompt_tokens=64, max_output_tokens=OUTPUT_TOKENS))
        self.has_arrivals = has_arrivals
        self.lengths = np.random.default_rng(6)
        self.slots = slots
        self.now_ns = self.free_ns = self.fence = 0
        self.flights: deque[tuple[int, ScheduledPlan, int, int]] = deque()
        self.samples: list[dict[str, int]] = []
        self.tokens = 0
        self.random = np.random.default_rng(5)

    def _record(self, plan: ScheduledPlan, index: int) -> CompletionRecord:
        step = plan.steps[index]
        if step.output_ceiling < 2:
            return CompletionRecord(step.handle, step.prompt_tokens, (1,) * step.output_ceiling)
        rows = max(1, min(step.output_ceiling, round(step.expected_tokens)))
        offered = rows if plan.graph.allocation is RowAllocation.DEVICE else step.output_ceiling
        accepted = 1 + int(np.argmin(np.append(self.random.random(offered - 1) < ACCEPTANCE, 0)))
        return CompletionRecord(step.handle, 0, (1,) * accepted, offered=offered)

    def _arrive(self) -> None:
        """Admit requests until a few wait for a row."""
        while self.scheduler.usage().waiting < WAITING:
            prompt = int(self.lengths.integers(*SHORT_PROMPTS))
            output = int(self.lengths.integers(*SHORT_OUTPUTS))
            self.scheduler.admit(RequestSpec(prompt_tokens=prompt, max_output_tokens=output))

    def turn(self) -> str:
        """Run one turn of the loop and return the name of the graph that it completed."""
        spent = dict.fromkeys(PHASES, 0)
        self.scheduler.advance_to(self.now_ns)
        if self.has_arrivals:
            self._arrive()
        while len(self.flights) < 2:
            marks = [clock()]
            plan = self.scheduler.plan()
            marks.append(clock())
            if plan is None:
                break
            self.fence += 1
            self.scheduler.commit(plan, Fence(self.fence))
            marks.append(clock())
            self.free_ns = max(self.free_ns, self.now_ns) + duration_ns(plan.graph)
            self.flights.append((self.fence, plan, self.now_ns, self.free_ns))
            for phase, (start, end) in zip(PHASES, pairwise(marks), strict=False):
                spent[phase] = end - start
        self._complete(spent)
        return self.name

    def _complete(self, spent: dict[str, int]) -> None:
        fence, plan, started_ns, end_ns = self.flights.popleft()
        self.now_ns = max(self.now_ns, end_ns)
        records = [self._record(plan, index) for index in range(len(plan.steps))]
        timing = ExecutionTiming(
            device_ns=(duration_ns(plan.graph),), wall_ns=self.now_ns - started_ns
        )
        self.scheduler.advance_to(self.now_ns)
        is_packed = plan.graph.allocation is RowAllocation.DEVICE
        shape = (1, self.slots, DEPTH)
        confidence = np.full(shape, ACCEPTANCE, dtype=np.float32).cumprod(axis=2, dtype=np.float32)
        begin = clock()
        if is_packed:
            tokens = self.scheduler.complete_packed_round(Fence(fence), records, timing, confidence)
        else:
            tokens = self.scheduler.complete(Fence(fence), records, timing)
        spent["complete"] = clock() - begin
        begin = clock()
        for handle in dict.fromkeys(token.handle for token in tokens):
            if self.scheduler.phase_of(handle) is Phase.DECODE:
                self.scheduler.published_output(handle, Fence(fence))
        spent["publish"] = clock() - begin
        spent["sum"] = spent["plan"] + spent["commit"] + spent["complete"]
        self.samples.append(spent)
        self.tokens += len(tokens)
        self.name = plan.graph.name


def measure(slots: int, graph_count: int, steps: int, mode: str) -> float:
    """Print one row; return the median of plan + commit + complete in microseconds."""
    speculative, has_arrivals = mode.startswith("speculative"), mode.endswith("-arrivals")
    catalog = catalog_of(graph_count, speculative=speculative)
    loop = Loop(slots, catalog, speculative=speculative, has_arrivals=has_arrivals)
    running = [] if has_arrivals else [RequestHandle(slot, 0) for slot in range(slots)]
    while any(loop.scheduler.output_count_of(handle) < 2 for handle in running):
        loop.turn()
    for _ in range(6 * slots if has_arrivals else 40):
        loop.turn()
    gc.collect()
    loop.samples.clear()
    loop.tokens = 0
    names = [loop.turn() for _ in range(steps)]
    cells = []
    for phase in PHASES:
        values = [sample[phase] / 1e3 for sample in loop.samples]
        cells.append(f"{phase} {statistics.median(values):6.1f} {percentile(values, 99):6.1f}")
    common = max(sorted(set(names)), key=names.count)
    print(
        f"{slots:5d} {graph_count:6d}  {'  '.join(cells)}  {loop.tokens / steps:6.1f}  {common}",
        flush=True,
    )
    return statistics.median(sample["sum"] / 1e3 for sample in loop.samples)


def percentile(values: list[float], percent: int) -> float:
    """Return the value that `percent` percent of the sorted values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def print_growth(sums: dict[tuple[int, int], float]) -> None:
    """Print how the median sum grows from the smallest to the largest slots and catalog."""
    slots = sorted(dict.fromkeys(slot for slot, _ in sums))
    sizes = sorted(dict.fromkeys(size for _, size in sums))
    by_slots = sums[slots[-1], sizes[-1]] / sums[slots[0], sizes[-1]]
    by_graphs = sums[slots[-1], sizes[-1]] / sums[slots[-1], sizes[0]]
    print(f"growth: x{by_slots:.2f} from {slots[0]} to {slots[-1]} slots at {sizes[-1]} graphs,")
    print(f"        x{by_graphs:.2f} from {sizes[0]} to {sizes[-1]} graphs at {slots[-1]} slots")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--slots", default="1,4,16,64")
    parser.add_argument("--graphs", default="20,100,300")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    if options.cpu:
        global clock  # noqa: PLW0603
        clock = time.thread_time_ns
    print(f"Python {platform.python_version()} on {platform.machine()}; median and p99 in us")
    for mode in options.modes.split(","):
        print(f"{mode}: slots, graphs, phases, tokens per step, most frequent program")
        sums = {}
        for graph_count in map(int, options.graphs.split(",")):
            for slots in map(int, options.slots.split(",")):
                sums[slots, graph_count] = measure(slots, graph_count, options.steps, mode)
        print_growth(sums)


if __name__ == "__main__":
    main()
