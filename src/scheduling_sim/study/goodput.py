"""Goodput on public traces: requests within objectives, by load and policy.

Objectives: TTFT 2 s and the P99 of a request's gaps at most 100 ms (those of MLPerf's server
scenario for Llama 3.1 8B) on the Azure conversation trace; 30 s and 100 ms on Mooncake's, whose
paper uses 30 s. A load of 100 % is fixed per trace: the rate above which chunked prefill no longer
keeps up with the window, and for Mooncake the share at which its device is all but busy.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from scheduling_sim.metrics import Objectives
from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, latencies, run_of
from scheduling_sim.workload.named import workload

POLICIES: Final = (
    "helios",
    "helios-table",
    "helios-throughput",
    "chunked",
    "vllm",
    "prefill-first",
    "fcfs",
    "srpt",
    "vllm-free",
    "chunked-free",
)
LOADS: Final = (0.70, 0.85, 0.95)
AZURE: Final = "azure/AzureLLMInferenceTrace_conv.csv"
AZURE_FULL_RATE: Final = 7.0
"""Requests per second at 100 % load, on RTX PRO 6000 with Llama-3.1-8B and 64 slots."""
MOONCAKE: Final = "mooncake/conversation_trace.jsonl"
MOONCAKE_FULL_SHARE: Final = 0.137
"""Share of the trace at 100 % load. Its times have a tick of 3 s, so stretching them would
make bursts; requests are sampled instead."""
MOONCAKE_POLICIES: Final = ("helios", "helios-throughput", "chunked", "vllm", "prefill-first")
AZURE_OBJECTIVES: Final = Objectives(ttft_ms=2000.0, gap_ms=100.0, gap_quantile=0.99)
_OBJECTIVES: Final = {
    "azure": AZURE_OBJECTIVES,
    "mooncake": Objectives(ttft_ms=30_000.0, gap_ms=100.0, gap_quantile=0.99),
}


def _run(trace: str, load: float, policy: str, data: Path) -> Row:
    if trace == "azure":
        rate = load * AZURE_FULL_RATE
        asked = workload(f"azure-conv:{data / AZURE}", start_s=600, length_s=60, rate_per_s=rate)
    else:
        share = load * MOONCAKE_FULL_SHARE
        asked = workload(
            f"mooncake-conv:{data / MOONCAKE}", start_s=600, length_s=360, share=share, seed=1
        )
    chosen = platform(PLATFORM, mode="mixed", slots=64, page_growth=True)
    log, metrics = run_of(Setup(platform=chosen, workload=asked, policy=policy), _OBJECTIVES[trace])
    figures = metrics.figures()
    return {
        "trace": trace,
        "load %": round(100 * load),
        "policy": policy,
        "requests": len(log.requests),
        "within objectives %": 100 * (figures["goodput_share"] or 0.0),
        "goodput req/s": figures["goodput"],
        **latencies(metrics),
    }


GROUP = Group(
    "goodput",
    tuple(
        Cell(
            f"{trace} {load:.0%} {policy}",
            functools.partial(_run, trace, load, policy),
            AZURE if trace == "azure" else MOONCAKE,
        )
        for trace, policies in (("azure", POLICIES), ("mooncake", MOONCAKE_POLICIES))
        for load in LOADS
        for policy in policies
    ),
    (
        "trace",
        "load %",
        "policy",
        "requests",
        "within objectives %",
        "goodput req/s",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
    ),
)
