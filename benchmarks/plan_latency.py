"""Host time of one scheduling decision: medians and p99 of plan, commit, complete and publication.

Every cell runs the same steady decode load (all slots running, two frames in flight, no device), so
the figures are those of a step of the serving loop. Usage:

    python benchmarks/plan_latency.py [--steps 400] [--slots 1,4,16,64] [--graphs 20,300]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections import deque
from itertools import pairwise

from helios.scheduler import (
    Catalog,
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GraphDescriptor,
    GraphKind,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
    Scheduler,
)

PHASES = ("plan", "commit", "complete", "publish", "sum")
OUTPUT_TOKENS = 4000


def catalog_of(graph_count: int) -> Catalog:
    """Return a catalog of about `graph_count` programs, spread over all kinds."""
    few = 20
    if graph_count <= few:
        batches, chunks = [1, 2, 4, 8, 16, 32, 64], [64, 128, 256, 512, 1024]
        state = [1, 4, 16, 64]
    else:
        batches, state = list(range(1, 65)), list(range(1, 65))
        chunks = [16 * i for i in range(1, (graph_count - 3 * 64) + 1)]
    graphs = [GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=b) for b in batches]
    for kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL):
        graphs += [GraphDescriptor(kind=kind, batch_capacity=b) for b in state]
    graphs += [
        GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=c) for c in chunks
    ]
    return Catalog.of(graphs)


def duration_ns(graph: GraphDescriptor) -> int:
    """Return the modelled duration of a graph."""
    if graph.kind is GraphKind.DECODE:
        return 20_000_000 + 100_000 * graph.batch_capacity
    if graph.kind is GraphKind.PREFILL:
        return 5_000_000 + 1_700_000 * graph.token_capacity
    return 200_000


class Loop:
    """The serving loop at its smallest; the modelled device takes no host time."""

    def __init__(self, slots: int, catalog: Catalog) -> None:
        self.scheduler = Scheduler(
            catalog=catalog,
            resources=ResourceConfig(
                row_count=slots,
                page_count=slots * 300,
                page_size_tokens=16,
                context_length_tokens=8192,
            ),
        )
        # Seeded costs skip discovery; decode is fresh after its first frame.
        self.scheduler.seed_costs({g.name: duration_ns(g) for g in catalog.graphs})
        for _ in range(slots):
            self.scheduler.admit(RequestSpec(prompt_tokens=64, max_output_tokens=OUTPUT_TOKENS))
        self.now_ns = 0
        self.free_ns = 0
        self.fence = 0
        self.flights: deque[tuple[int, ScheduledPlan, int, int]] = deque()
        self.samples: list[dict[str, int]] = []

    def turn(self) -> str:
        """Run one turn of the loop and return the kind of frame that it completed."""
        spent = dict.fromkeys(PHASES, 0)
        self.scheduler.advance_to(self.now_ns)
        while len(self.flights) < 2:
            marks = [time.perf_counter_ns()]
            plan = self.scheduler.plan()
            marks.append(time.perf_counter_ns())
            if plan is None:
                break
            self.fence += 1
            self.scheduler.commit(plan, Fence(self.fence))
            marks.append(time.perf_counter_ns())
            self.free_ns = max(self.free_ns, self.now_ns) + duration_ns(plan.graph)
            self.flights.append((self.fence, plan, self.now_ns, self.free_ns))
            for phase, (start, end) in zip(PHASES, pairwise(marks), strict=False):
                spent[phase] = end - start
        fence, plan, started_ns, end_ns = self.flights.popleft()
        self.now_ns = max(self.now_ns, end_ns)
        records = [
            CompletionRecord(step.handle, step.prompt_tokens, (1,) * step.output_ceiling)
            for step in plan.steps
        ]
        timing = ExecutionTiming(
            device_ns=(duration_ns(plan.graph),), wall_ns=self.now_ns - started_ns
        )
        self.scheduler.advance_to(self.now_ns)
        begin = time.perf_counter_ns()
        tokens = self.scheduler.complete(Fence(fence), records, timing)
        spent["complete"] = time.perf_counter_ns() - begin
        begin = time.perf_counter_ns()
        for token in tokens:
            self.scheduler.published_output(token.handle, Fence(fence))
        spent["publish"] = time.perf_counter_ns() - begin
        spent["sum"] = spent["plan"] + spent["commit"] + spent["complete"]
        self.samples.append(spent)
        return plan.graph.name


def measure(slots: int, graph_count: int, steps: int) -> None:
    """Print one row per phase."""
    loop = Loop(slots, catalog_of(graph_count))
    running = [RequestHandle(slot, 0) for slot in range(slots)]
    while any(loop.scheduler.output_count_of(handle) < 2 for handle in running):
        loop.turn()
    loop.samples.clear()
    names = [loop.turn() for _ in range(steps)]
    row = "  ".join(
        f"{phase} {statistics.median(values) / 1e3:7.1f} {percentile(values, 99) / 1e3:7.1f}"
        for phase in PHASES
        for values in ([sample[phase] for sample in loop.samples],)
    )
    common = max(sorted(set(names)), key=names.count)
    print(f"{slots:5d} {graph_count:6d}  {row}   {common}")


def percentile(values: list[int], percent: int) -> float:
    """Return the value that `percent` percent of the sorted values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--slots", default="1,4,16,64")
    parser.add_argument("--graphs", default="20,300")
    options = parser.parse_args()
    print(f"Python {platform.python_version()} on {platform.machine()}; median and p99 in us")
    print("slots graphs")
    for graph_count in map(int, options.graphs.split(",")):
        for slots in map(int, options.slots.split(",")):
            measure(slots, graph_count, options.steps)


if __name__ == "__main__":
    main()
