"""Goodput on public traces: requests within objectives, by load and policy, over three windows.

Objectives: TTFT 2 s and gaps of at most 100 ms (those of MLPerf's server scenario for Llama 3.1 8B)
on the Azure conversation trace; 30 s and 100 ms on Mooncake's, whose paper uses 30 s. Gaps are
judged twice: by the P99 of each request's gaps, which forgives one gap in a hundred, and by its
worst gap. A load of 100 % is fixed per trace: the rate above which chunked prefill no longer keeps
up with the first window, and for Mooncake the share at which its device is all but busy. Windows
differ in their lengths, so their loads do too: that is what the range shows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from scheduling_sim.metrics import Objectives
from scheduling_sim.metrics.objectives import goodput
from scheduling_sim.metrics.window import measured_requests
from scheduling_sim.platforms import platform
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
from scheduling_sim.study.contexts import INTERVALS
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Workload

LOADS: Final = (0.70, 0.85, 0.95)
STARTS_S: Final = (600, 1500, 2400)
"""Where the windows begin in each trace of an hour."""
AZURE: Final = "azure/AzureLLMInferenceTrace_conv.csv"
AZURE_FULL_RATE: Final = 7.0
"""Requests per second at 100 % load, on RTX PRO 6000 with Llama-3.1-8B and 64 slots."""
MOONCAKE: Final = "mooncake/conversation_trace.jsonl"
MOONCAKE_FULL_SHARE: Final = 0.12
"""Share of the trace at 100 % load, where chunked prefill keeps the device busy for 99 % of the
first window (97 and 88 % of the others); at 0.137 its requests pile up. The trace's times have a
tick of 3 s, so stretching them would make bursts; requests are sampled instead."""
STATED: Final = "helios-gap"
"""The preset that is told the gap objective of the cell, as `flare run` can be told."""
FINE: Final = "helios-gap-fine"
"""The same with fifteen intervals of the context instead of five, so that fewer frames take twice
what their interval's estimate says."""
FINE_INTERVALS: Final = (
    *(2048, 4096, 6144, 8192, 12_288, 16_384, 20_480, 24_576),
    *(32_768, 40_960, 49_152, 65_536, 81_920, 98_304),
)
SMALL_CHUNKS: Final = "chunked-256"
"""Chunked prefill with half of its budget: the best of its budgets on Mooncake, where a chunk of
512 behind a long context takes longer than the gap objective. On Azure it cannot keep up."""
AZURE_POLICIES: Final = (
    "helios",
    STATED,
    "helios-throughput",
    "chunked",
    SMALL_CHUNKS,
    "vllm",
    "vllm-free",
    "chunked-free",
)
MOONCAKE_POLICIES: Final = (
    "helios",
    STATED,
    FINE,
    "chunked",
    SMALL_CHUNKS,
    "vllm",
    "chunked-free",
    "prefill-first",
)
AZURE_OBJECTIVES: Final = Objectives(ttft_ms=2000.0, gap_ms=100.0, gap_quantile=0.99)
_OBJECTIVES: Final = {
    "azure": AZURE_OBJECTIVES,
    "mooncake": Objectives(ttft_ms=30_000.0, gap_ms=100.0, gap_quantile=0.99),
}
_INTERVALS: Final[Mapping[str, tuple[int, ...]]] = {
    "azure": (),
    "mooncake": INTERVALS,
}
"""Contexts that split the cost of a program; Mooncake's go from 1,000 to 100,000 tokens."""
_WINDOW_S: Final = {"azure": 45.0, "mooncake": 200.0}
WANTED: Final = 1.2
LEAST: Final = 0.98
"""Bars: goodput against the best baseline, and what it may never fall below."""
_ROOM: Final = 100 / WANTED
"""Above this share of the best baseline nobody can reach the bar."""
_COUNTED: Final = ("no", "one", "two", "all three")


class _Window(NamedTuple):
    """What one window showed."""

    within: float
    """Share of requests within objectives, P99 of each request's gaps."""
    within_worst: float
    """The same with each request's worst gap."""
    rate: float
    """Requests per second within objectives."""
    requests: int
    latencies: Mapping[str, float | None]


def asked_of(trace: str, load: float, start_s: int, data: Path, length_s: float) -> Workload:
    """Return a window of a trace at a load."""
    if trace == "azure":
        rate = load * AZURE_FULL_RATE
        return workload(
            f"azure-conv:{data / AZURE}", start_s=start_s, length_s=length_s, rate_per_s=rate
        )
    share = load * MOONCAKE_FULL_SHARE
    return workload(
        f"mooncake-conv:{data / MOONCAKE}", start_s=start_s, length_s=length_s, share=share, seed=1
    )


def policy_of(name: str, objectives: Objectives) -> tuple[str, dict[str, object]]:
    """Return the registry's name and the options of a policy as its rows name it."""
    if name == SMALL_CHUNKS:
        return "chunked", {"budget_tokens": 256}
    if name in (STATED, FINE):
        return "helios", {**as_served("helios"), "gap_objective_ms": objectives.gap_ms}
    return name, as_served(name)


def _window(trace: str, policy: str, asked: Workload) -> _Window:
    objectives = _OBJECTIVES[trace]
    intervals = FINE_INTERVALS if policy == FINE else _INTERVALS[trace]
    chosen = platform(
        PLATFORM, mode="mixed", slots=64, page_growth=True, context_intervals=intervals
    )
    name, options = policy_of(policy, objectives)
    setup = Setup(platform=chosen, workload=asked, policy=name, options=options)
    log, metrics = run_of(setup, objectives)
    strict = dataclasses.replace(objectives, gap_quantile=1.0)
    requests = measured_requests(log, metrics.window)
    found = metrics.goodput
    strictly = goodput(requests, strict, metrics.window, log.ended_ns)
    return _Window(
        within=found.share or 0.0,
        within_worst=strictly.share or 0.0,
        rate=found.requests_per_s or 0.0,
        requests=len(log.requests),
        latencies=latencies(metrics),
    )


def run_windows(trace: str, load: float, policy: str, workloads: Sequence[Workload]) -> Row:
    """Return the median and the range over the windows; latencies are medians, gaps the worst."""
    windows = [_window(trace, policy, asked) for asked in workloads]
    shares = [100 * one.within for one in windows]
    strict = [100 * one.within_worst for one in windows]
    return {
        "load %": round(100 * load),
        "policy": policy,
        "requests": sum(one.requests for one in windows),
        "within %": median(shares),
        "range": _range(shares),
        "within, worst gap %": median(strict),
        "its range": _range(strict),
        "goodput req/s": median(one.rate for one in windows),
        **{key: _over(windows, key) for key in windows[0].latencies},
        **{f"within % {place}": share for place, share in enumerate(shares)},
        **{f"within, worst gap % {place}": share for place, share in enumerate(strict)},
    }


def _range(shares: Sequence[float]) -> str:
    return f"{min(shares):.1f} to {max(shares):.1f}"


def _over(windows: Sequence[_Window], key: str) -> float:
    values = [value for one in windows if (value := one.latencies[key]) is not None]
    return max(values) if key == "worst gap ms" else median(values)


def _run(trace: str, load: float, policy: str, data: Path) -> Row:
    length_s = _WINDOW_S[trace]
    workloads = [asked_of(trace, load, start_s, data, length_s) for start_s in STARTS_S]
    return run_windows(trace, load, policy, workloads)


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the preset, without and with the objective stated, against the best baseline of every
    load, window by window."""
    found = []
    for load, name in itertools.product(LOADS, ("helios", STATED, FINE)):
        cells = [row for row in rows.values() if row["load %"] == round(100 * load)]
        ours = next((row for row in cells if row["policy"] == name), None)
        rivals = [row for row in cells if not str(row["policy"]).startswith("helios")]
        if ours is None or not rivals:
            continue
        for key, what in (("within %", "P99"), ("within, worst gap %", "worst")):
            ratios, best = _ratios(ours, rivals, key)
            middle = median(ratios)
            found.append(
                Verdict(
                    f"{load:.0%} load, {what} gap: `{name}` / best baseline",
                    f"{middle:.2f} (windows {min(ratios):.2f} to {max(ratios):.2f})",
                    f"{WANTED:g}, never below {LEAST:g}",
                    middle >= WANTED and min(ratios) >= LEAST,
                    f"{middle - WANTED:+.2f}",
                    _why(best, number(best, key), ratios),
                )
            )
    return found


def _why(best: Row, share: float, ratios: Sequence[float]) -> str:
    room = f", so {100 / share:.2f} is the most that there is" if share > _ROOM else ""
    low = sum(ratio < LEAST for ratio in ratios)
    windows = f"{_COUNTED[low]} window{' is' if low < 2 else 's are'}"
    return (
        f"The best baseline, `{best['policy']}`, serves {share:.1f} % within{room}; "
        f"{windows} below {LEAST:g}."
    )


def _ratios(ours: Row, rivals: Sequence[Row], key: str) -> tuple[list[float], Row]:
    """Return our share over the best baseline's in each window, and the best by its median."""
    places = range(len(STARTS_S))
    tops = [max(number(row, f"{key} {place}") for row in rivals) for place in places]
    ratios = [
        number(ours, f"{key} {place}") / top if top else 1.0
        for place, top in zip(places, tops, strict=True)
    ]
    return ratios, max(rivals, key=lambda row: number(row, key))


_COLUMNS: Final = (
    "load %",
    "policy",
    "requests",
    "within %",
    "range",
    "within, worst gap %",
    "its range",
    "goodput req/s",
    "TTFT P50 ms",
    "TTFT P99 ms",
    "gap P99 ms",
    "worst gap ms",
)


def _group(trace: str, policies: Sequence[str], needs: str) -> Group:
    cells = tuple(
        Cell(f"{load:.0%} {policy}", functools.partial(_run, trace, load, policy), needs)
        for load in LOADS
        for policy in policies
    )
    return Group(f"goodput-{trace}", cells, _COLUMNS, verdicts)


AZURE_GROUP: Final = _group("azure", AZURE_POLICIES, AZURE)
MOONCAKE_GROUP: Final = _group("mooncake", MOONCAKE_POLICIES, MOONCAKE)
