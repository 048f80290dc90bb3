"""One prompt of 65,000 tokens meets eight running streams: who keeps which share of its speed."""

from __future__ import annotations

import functools
from pathlib import Path

from scheduling_sim.metrics.latency import gaps_ns, ttft_ns
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RequestLog, RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row
from scheduling_sim.workload.named import workload

_POLICIES = ("helios", "helios-table", "helios-throughput", "chunked", "vllm", "prefill-first")
_MODES = ("ordinary", "mixed")


def _log_of(policy: str, mode: str, streams: int) -> RunLog:
    return simulate(
        Setup(
            platform=platform(PLATFORM, mode=mode, slots=16, page_growth=True),
            workload=workload("long-meets-decodes", decodes=streams),
            policy=policy,
        )
    )


def _prompt_of(log: RunLog) -> RequestLog:
    return next(one for one in log.requests if one.request.request_id == "long-prompt")


def _ttft_s(log: RunLog) -> float:
    waited_ns = ttft_ns(_prompt_of(log))
    assert waited_ns is not None, "the prompt is always answered"
    return waited_ns / 1e9


def _run(policy: str, mode: str, data: Path) -> Row:
    del data
    alone_s = _ttft_s(_log_of(policy, mode, 0))
    log = _log_of(policy, mode, 8)
    long, ttft_s = _prompt_of(log), _ttft_s(log)
    during, before, worst_ms = [], [], 0.0
    for one in log.requests:
        if one is long:
            continue
        times = one.delivery_ns.tolist()
        ended = long.delivery_ns[0]
        during.append(sum(long.arrival_ns < at <= ended for at in times) / ttft_s)
        early = [at for at in times if at <= long.arrival_ns]
        before.append((len(early) - 1) / ((early[-1] - early[0]) / 1e9))
        worst_ms = max(worst_ms, int(gaps_ns(one).max()) / 1e6)
    return {
        "catalog": mode,
        "policy": policy,
        "prompt alone s": alone_s,
        "prompt s": ttft_s,
        "prefill rate kept %": 100 * alone_s / ttft_s,
        "decode rate kept %": 100 * sum(during) / sum(before),
        "worst gap ms": worst_ms,
    }


GROUP = Group(
    "long-prompt",
    tuple(
        Cell(f"{mode} {policy}", functools.partial(_run, policy, mode))
        for mode in _MODES
        for policy in _POLICIES
    ),
    (
        "catalog",
        "policy",
        "prompt alone s",
        "prompt s",
        "prefill rate kept %",
        "decode rate kept %",
        "worst gap ms",
    ),
)
