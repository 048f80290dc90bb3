"""One prompt of 65,000 tokens meets eight running streams: who keeps which share of its speed.

Rows of `helios` with another `prefill_balance` or age price draw the frontier between both bars,
rows with other chunks (a smaller budget, a catalog without large prefills, costs by context) a
second one. The prompt's share can be read in two ways. Against the time alone under the same policy
smaller chunks raise it, because they make the time alone longer; against the fastest time alone of
any row they do not. The table has the first, which is the bar's, and the summary both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.metrics.latency import gaps_ns, ttft_ns
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RequestLog, RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    Verdict,
    as_served,
    number,
)
from scheduling_sim.study.contexts import INTERVALS
from scheduling_sim.workload.named import workload

PROMPT_BAR: Final = 70.0
STREAMS_BAR: Final = 25.0


class Chosen(NamedTuple):
    """A policy with options of its own, and a platform with other ones."""

    policy: str
    options: Mapping[str, object] = {}
    platform: Mapping[str, object] = {}
    change: str = ""
    """What the platform's options change, in words."""

    @property
    def title(self) -> str:
        """Return the policy's name and what is changed of it."""
        changes = (f"{name} {value:g}" for name, value in self.options.items())
        platform = (self.change,) if self.change else ()
        return ", ".join((self.policy, *platform, *changes))


def _small(**options: object) -> Chosen:
    """Return the preset on a catalog whose largest prefill has 512 tokens instead of 2,048."""
    return Chosen("helios", options, {"prefills": (64, 128, 256, 512)}, "prefills to 512")


_CHOSEN: Final = (
    Chosen("helios"),
    *(Chosen("helios", {"prefill_balance": value}) for value in (3.0, 4.0, 5.0, 8.0)),
    Chosen("helios", {"decode_age_price": 4.0}),
    _small(),
    *(_small(prefill_balance=value) for value in (4.0, 5.0, 6.2)),
    Chosen("helios", {}, {"context_intervals": INTERVALS}, "costs by context"),
    *map(Chosen, ("helios-table", "helios-throughput", "chunked")),
    Chosen("chunked", {"budget_tokens": 256}),
    *map(Chosen, ("vllm", "prefill-first")),
)
_MODES: Final = ("ordinary", "mixed")


def _log_of(chosen: Chosen, mode: str, streams: int) -> RunLog:
    return simulate(
        Setup(
            platform=platform(PLATFORM, mode=mode, slots=16, page_growth=True, **chosen.platform),
            workload=workload("long-meets-decodes", decodes=streams),
            policy=chosen.policy,
            options={**as_served(chosen.policy), **chosen.options},
        )
    )


def _prompt_of(log: RunLog) -> RequestLog:
    return next(one for one in log.requests if one.request.request_id == "long-prompt")


def _ttft_s(log: RunLog) -> float:
    waited_ns = ttft_ns(_prompt_of(log))
    assert waited_ns is not None, "the prompt is always answered"
    return waited_ns / 1e9


def _run(chosen: Chosen, mode: str, data: Path) -> Row:
    del data
    alone_s = _ttft_s(_log_of(chosen, mode, 0))
    log = _log_of(chosen, mode, 8)
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
        "policy": chosen.title,
        "prompt alone s": alone_s,
        "prompt s": ttft_s,
        "prefill rate kept %": 100 * alone_s / ttft_s,
        "decode rate kept %": 100 * sum(during) / sum(before),
        "worst gap ms": worst_ms,
    }


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the preset on every catalog by both bars, with the nearest other row beside it."""
    found = []
    for mode in _MODES:
        row = rows.get(f"{mode} helios")
        if row is None:
            continue
        prompt, streams = number(row, "prefill rate kept %"), number(row, "decode rate kept %")
        here = [one for name, one in rows.items() if name.startswith(f"{mode} ")]
        nearest = max(here, key=_least_margin)
        found.append(
            Verdict(
                f"`helios` on the {mode} catalog",
                f"the prompt keeps {prompt:.1f} %, the streams {streams:.1f} %",
                f"at least {PROMPT_BAR:.0f} and {STREAMS_BAR:.0f} %",
                prompt >= PROMPT_BAR and streams >= STREAMS_BAR,
                f"{_least_margin(row):+.1f} points",
                f"Nearest of all rows is `{nearest['policy']}` with "
                f"{number(nearest, 'prefill rate kept %'):.1f} and "
                f"{number(nearest, 'decode rate kept %'):.1f} %.",
            )
        )
    return found


def summary(rows: Mapping[str, Row]) -> str:
    """Return who meets both bars on each catalog, by either reading of the prompt's share."""
    fastest = min(rows.values(), key=lambda row: number(row, "prompt alone s"))
    alone_s = number(fastest, "prompt alone s")
    lines = []
    for mode in _MODES:
        here = [row for row in rows.values() if row["catalog"] == mode]
        met = [f"`{row['policy']}` ({_both(row)})" for row in here if _least_margin(row) >= 0.0]
        against = [_against(row, alone_s) for row in here]
        strict = [f"`{row['policy']}` ({_both(row)})" for row in against if _least_margin(row) >= 0]
        nearest = max(against, key=_least_margin, default=None)
        if nearest is None:
            continue
        lines.append(
            f"- Both bars on the {mode} catalog, alone under the same policy: "
            f"{', '.join(met) or 'no row'}. Against the fastest time alone of all rows "
            f"({alone_s:.2f} s, `{fastest['policy']}`): {', '.join(strict) or 'no row'}; nearest "
            f"is `{nearest['policy']}` ({_both(nearest)})."
        )
    return "\n".join(lines)


def _against(row: Row, alone_s: float) -> Row:
    """Return the row with the prompt's share of another time alone."""
    return {**row, "prefill rate kept %": 100 * alone_s / number(row, "prompt s")}


def _both(row: Row) -> str:
    prompt, streams = number(row, "prefill rate kept %"), number(row, "decode rate kept %")
    return f"{prompt:.1f} and {streams:.1f} %"


def _least_margin(row: Row) -> float:
    """Return the points that the worse of both figures lies above its bar."""
    prompt, streams = number(row, "prefill rate kept %"), number(row, "decode rate kept %")
    return min(prompt - PROMPT_BAR, streams - STREAMS_BAR)


GROUP = Group(
    "long-prompt",
    tuple(
        Cell(f"{mode} {chosen.title}", functools.partial(_run, chosen, mode))
        for mode in _MODES
        for chosen in _CHOSEN
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
    verdicts,
    summary,
)
