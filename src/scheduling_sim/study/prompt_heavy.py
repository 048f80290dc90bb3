"""Fifteen minutes of long prompts with short answers at 95 % load: how long does a stream wait.

Prompts are lognormal with a median of 6,000 tokens (mean 9,000), answers with one of 120. A load of
100 % is what the `vllm` and `helios` rules serve of a backlog of such requests, scaled to the mean.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduling_sim.metrics.latency import gaps_ns
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    Verdict,
    as_served,
    latencies,
    number,
    run_of,
)
from scheduling_sim.workload.named import workload

BAR_MS: Final = 1000.0
FULL_RATE: Final = 1.15
LOAD: Final = 0.95
DURATION_S: Final = 900.0
_POLICIES: Final = ("helios", "helios-throughput", "chunked", "vllm", "prefill-first", "vllm-free")


def run_policy(policy: str, *, duration_s: float = DURATION_S) -> Row:
    """Return what streams and prompts saw under a policy."""
    asked = workload("prompt-heavy", seed=1, rate_per_s=LOAD * FULL_RATE, duration_s=duration_s)
    chosen = platform(PLATFORM, mode="mixed", slots=64, page_growth=True)
    setup = Setup(platform=chosen, workload=asked, policy=policy, options=as_served(policy))
    log, metrics = run_of(setup)
    gaps = [int(gap) for one in log.requests for gap in gaps_ns(one)]
    return {
        "policy": policy,
        "requests": len(log.requests),
        "device busy %": 100 * sum(log.steps.device_ns) / log.ended_ns,
        **latencies(metrics),
        "gaps over 1 s": sum(gap > BAR_MS * 1e6 for gap in gaps),
        "of": len(gaps),
        "preemptions": log.preemptions,
        "frames in the worst gap": worst_gap_frames(log),
    }


def _run(policy: str, data: Path) -> Row:
    del data
    return run_policy(policy)


def worst_gap_frames(log: RunLog) -> str:
    """Return what ran during the longest gap of all streams, by kind of program."""
    longest_ns, begin_ns = 0, 0
    for one in log.requests:
        gaps = gaps_ns(one)
        if len(gaps) and int(gaps.max()) > longest_ns:
            longest_ns = int(gaps.max())
            begin_ns = one.delivery_ns[int(gaps.argmax())]
    steps, kinds = log.steps, Counter[str]()
    for started_ns, device_ns, graph in zip(
        steps.started_ns, steps.device_ns, steps.graph_index, strict=True
    ):
        if started_ns + device_ns > begin_ns and started_ns < begin_ns + longest_ns:
            kinds["step" if graph < 0 else log.graph_names[graph].split("-")[0]] += 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge every policy that was run."""
    found = []
    for name, row in rows.items():
        worst_ms = number(row, "worst gap ms")
        found.append(
            Verdict(
                f"worst gap of `{name}`",
                f"{worst_ms:.0f} ms",
                f"{BAR_MS:.0f} ms",
                worst_ms <= BAR_MS,
                f"{worst_ms / BAR_MS:.2g} of it",
                f"{row['gaps over 1 s']} of {row['of']} gaps are longer; in the worst ran "
                f"{row['frames in the worst gap']}.",
            )
        )
    return found


GROUP = Group(
    "prompt-heavy",
    tuple(Cell(policy, functools.partial(_run, policy)) for policy in _POLICIES),
    (
        "policy",
        "requests",
        "device busy %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        "gaps over 1 s",
        "of",
        "preemptions",
        "frames in the worst gap",
    ),
    verdicts,
)
