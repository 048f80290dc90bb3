"""Replay of a recorded run by the vLLM baseline on composed costs.

What is taken from the run: when its engine received each request, prompt and output lengths, the
engine's limits, the cache's blocks. What is taken from elsewhere: operator times measured by
themselves, vLLM's rules (policy `vllm-free`: running requests first, chunks up to the budget, whole
prompts admitted only if they fit, preemption of the last arrival by recomputation, found blocks of
its own cache). Nothing is fitted to a run, and no host time is added: vLLM 0.19 schedules the next
step while one runs, so that the device is the clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from helios.scheduler import Catalog, GraphDescriptor, GraphKind, ResourceConfig
from scheduling_sim.checkers import Checks
from scheduling_sim.costs.composed import ComposedCosts
from scheduling_sim.costs.shipped import load_shipped
from scheduling_sim.platform import Platform
from scheduling_sim.replay.real_run import RealRun
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest

COSTS: Final[Mapping[tuple[str, str, int], str]] = {
    ("RTX4090", "meta-llama/Llama-3.1-8B", 1): "rtx-4090/llama-3.1-8b",
    ("RTXPRO6000", "meta-llama/Llama-3.1-8B", 1): "rtx-pro-6000/llama-3.1-8b",
    ("RTXPRO6000", "Qwen/Qwen3-32B", 2): "rtx-pro-6000/qwen3-32b",
}
"""Shipped operator tables by hardware, model and devices of a run."""
STATISTICS: Final = ("mean", "p50", "p90", "p99")
NULL_BLOCKS: Final = 1
"""vLLM sets one block aside that stands for no block."""

_MS_PER_NS = 1e-6
_CATALOG = Catalog.of(
    (
        GraphDescriptor(kind=GraphKind.INITIALIZE, batch_capacity=1),
        GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=2048),
        GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=1),
        GraphDescriptor(kind=GraphKind.TERMINAL, batch_capacity=1),
    )
)
"""Steps of any shape use none of it; a platform has to have one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """TTFT and time per output token behind the first, in ms, by statistic."""

    ttft_ms: tuple[float, ...]
    """In the order of STATISTICS; from the engine's receipt of the request."""
    tpot_ms: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A run and its replay."""

    run: RealRun
    real: Figures
    simulated: Figures
    preemptions: int
    log: RunLog

    def errors(self) -> dict[str, float]:
        """Return the relative error by `ttft.mean` and so on; 0.01 is one per cent too slow."""
        pairs = {}
        for name in ("ttft", "tpot"):
            real, simulated = (getattr(f, f"{name}_ms") for f in (self.real, self.simulated))
            for statistic, left, right in zip(STATISTICS, real, simulated, strict=True):
                pairs[f"{name}.{statistic}"] = right / left - 1.0
        return pairs


def replay(run: RealRun) -> Replayed:
    """Replay a run. Raises ValueError for a machine or model without shipped costs."""
    log = simulate(
        Setup(
            platform=platform_of(run),
            workload=workload_of(run),
            policy="vllm-free",
            options={
                "max_sequences": run.max_sequences,
                "max_batched_tokens": run.max_batched_tokens,
                "budget_tokens": run.max_batched_tokens,
                "prefix_cache": True,
            },
            checks=Checks(dear_every=0),
        )
    )
    requests = run.requests
    real = figures(
        [request.first_token_ns - request.queued_ns for request in requests],
        [request.last_token_ns - request.first_token_ns for request in requests],
        [request.output_tokens for request in requests],
    )
    simulated = figures(
        [entry.delivery_ns[0] - entry.arrival_ns for entry in log.requests],
        [entry.delivery_ns[-1] - entry.delivery_ns[0] for entry in log.requests],
        [sum(entry.delivery_tokens) for entry in log.requests],
    )
    return Replayed(run=run, real=real, simulated=simulated, preemptions=log.preemptions, log=log)


def figures(waits_ns: Sequence[int], streams_ns: Sequence[int], outputs: Sequence[int]) -> Figures:
    """Return the figures of requests: waits for the first token, then time up to the last."""
    per_token = [
        stream / (count - 1) for stream, count in zip(streams_ns, outputs, strict=True) if count > 1
    ]
    return Figures(ttft_ms=_statistics(waits_ns), tpot_ms=_statistics(per_token))


def _statistics(values_ns: Sequence[float]) -> tuple[float, ...]:
    values = np.asarray(values_ns, dtype=np.float64) * _MS_PER_NS
    return (float(values.mean()), *(float(q) for q in np.percentile(values, (50, 90, 99))))


def platform_of(run: RealRun) -> Platform:
    """Return the run's machine. Raises ValueError for one without shipped costs."""
    name = COSTS.get((run.hardware, run.model, run.devices))
    if name is None:
        known = ", ".join(f"{h} {m} on {d}" for h, m, d in COSTS)
        raise ValueError(f"no costs for {run.model} on {run.devices} {run.hardware}; for: {known}")
    table = load_shipped(name)
    blocks = run.blocks
    if blocks is None:
        left = run.memory_bytes - table.facts.weight_bytes
        blocks = left // (table.facts.kv_bytes_per_token * run.block_tokens)
    return Platform(
        name=name,
        catalog=_CATALOG,
        resources=ResourceConfig(
            row_count=64,
            page_count=blocks - NULL_BLOCKS,
            page_size_tokens=run.block_tokens,
            context_length_tokens=table.facts.context_length_tokens,
            waiting_limit=max(1, len(run.requests)),
            page_growth=True,
            page_prefixes=True,
        ),
        costs=ComposedCosts(table),
        source=table.source,
    )


def workload_of(run: RealRun) -> Workload:
    """Return the run's requests; contents are not recorded, so no two share a prefix."""
    return Workload(
        name=run.name,
        source="recorded vLLM 0.19 run of LLMServingSim's bench, MIT",
        requests=tuple(
            WorkloadRequest(
                request_id=request.request_id,
                arrival_ns=request.queued_ns,
                prompt=(Segment(2 * number + 1, request.prompt_tokens),),
                output=Segment(2 * number + 2, request.output_tokens),
                max_output_tokens=request.output_tokens,
            )
            for number, request in enumerate(run.requests)
        ),
    )
