"""Adaptive speculation against every fixed width and none, by streams and acceptance profile.

Every run starts with measured durations, as a server does. `by score` is the adaptive mode without
what decision 18 added to the preset: the score alone chooses widths, and every request starts
without acceptance. Fixed and adaptive runs are means over the seeds of the acceptance model. The
shares of device time by width say where the adaptive choice stayed; learning is what it spent on
wider rounds to see deeper proposals.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from helios.scheduler import SelectionReason
from scheduling_sim.acceptance import acceptance
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import (
    PLATFORM,
    Cell,
    Group,
    Row,
    Verdict,
    as_served,
    number,
    tokens_per_s,
)
from scheduling_sim.workload.named import workload

_WIDTHS: Final = (2, 3, 4, 6)
_SEEDS: Final = (1, 2)
_BY_SCORE: Final = {"alone_service_share": 0.0, "population_weight": 0.0}
_STREAMS: Final = (1, 4, 16, 64)
_STRONG: Final = "strong-draft"
_ROUND: Final = re.compile(r"speculative-b\d+-d\d+-w(\d+)")
_LONG: Final = 12
"""Answers of a lone stream after which neither its start nor the luck of two counts for much."""
LEAST: Final = 0.98
"""Bar: against the better of the best fixed width and none, everywhere."""
SATURATED: Final = 1.5
"""Bar: against none, with all streams and the strong draft."""


class Asked(NamedTuple):
    """Who asks."""

    profile: str
    streams: int
    answers: int = 2
    """Of each stream, one after the other."""


def _name(asked: Asked) -> str:
    more = f", {asked.answers} answers" if asked.answers == _LONG else ""
    return f"{asked.profile} {asked.streams}{more}"


def _speed(asked: Asked, mode: str, options: dict[str, object]) -> float:
    """Return tokens per second, the mean over the seeds where any acceptance is drawn."""
    seeds = _SEEDS[:1] if mode == "ordinary" else _SEEDS
    logs = (_run_once(asked, mode, options, seed) for seed in seeds)
    return statistics.mean(map(tokens_per_s, logs))


def time_by_width(logs: Sequence[RunLog]) -> str:
    """Return the share of the device time of rounds by their width, such as `2: 90, 3: 10`."""
    spent: dict[int, int] = {}
    for log in logs:
        widths = [_width_of(name) for name in log.graph_names]
        for graph, ns in zip(log.steps.graph_index, log.steps.device_ns, strict=True):
            spent[widths[graph]] = spent.get(widths[graph], 0) + ns
    spent.pop(0, None)
    total = sum(spent.values())
    return ", ".join(f"{width}: {100 * ns / total:.0f}" for width, ns in sorted(spent.items()))


def _width_of(name: str) -> int:
    """Return the target rows per lane of a round's program by its name, zero for others."""
    found = _ROUND.match(name)
    return int(found[1]) if found else 0


def learning_percent(logs: Sequence[RunLog]) -> float:
    """Return the share of device time that probes of acceptance took."""
    probe, total = 0, 0
    for log in logs:
        for reason, ns in zip(log.steps.reasons, log.steps.device_ns, strict=True):
            total += ns
            probe += ns if reason is SelectionReason.ACCEPTANCE_LEARNING else 0
    return 100 * probe / total


def _run_once(asked: Asked, mode: str, options: dict[str, object], seed: int) -> RunLog:
    chosen = platform(PLATFORM, mode=mode, slots=64, page_growth=True)
    load = workload(
        "closed-loop",
        users=asked.streams,
        requests_per_user=asked.answers,
        think_s=0.01,
        ramp_s=0.01,
        prompt="fixed:128",
        output="fixed:300",
    )
    drawn = None if mode == "ordinary" else acceptance(asked.profile, seed=seed)
    served = {**as_served("helios"), **options}
    setup = Setup(platform=chosen, workload=load, acceptance=drawn, options=served)
    return simulate(setup)


def _run(asked: Asked, data: Path) -> Row:
    del data
    none = _speed(asked, "ordinary", {})
    fixed = {width: _speed(asked, "speculative", {"width": width}) for width in _WIDTHS}
    logs = [_run_once(asked, "speculative", {}, seed) for seed in _SEEDS]
    adaptive = statistics.mean(map(tokens_per_s, logs))
    by_score = _speed(asked, "speculative", dict(_BY_SCORE))
    width, best = max(fixed.items(), key=lambda pair: pair[1])
    return {
        "profile": asked.profile,
        "streams": asked.streams,
        "answers": asked.answers,
        "none tok/s": none,
        "best fixed tok/s": best,
        "its width": width,
        "adaptive tok/s": adaptive,
        "adaptive / best of both": adaptive / max(best, none),
        "adaptive / none": adaptive / none,
        "by score / best of both": by_score / max(best, none),
        "by score / none": by_score / none,
        "time by width %": time_by_width(logs),
        "learning %": learning_percent(logs),
    }


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the worst row against the best of both, and the crowd with the strong draft."""
    key = "adaptive / best of both"
    worst = min(rows, key=lambda name: number(rows[name], key))
    share = number(rows[worst], key)
    enough = sum(number(row, key) >= LEAST for row in rows.values())
    found = [
        Verdict(
            "adaptive over the better of the best fixed width and none, least of all rows",
            f"{share:.3f}",
            f"at least {LEAST:g}",
            share >= LEAST,
            f"{share - LEAST:+.3f}",
            f"It is that of `{worst}`; {enough} of {len(rows)} rows have {LEAST:g}.",
        )
    ]
    crowd = rows.get(f"{_STRONG} {_STREAMS[-1]}")
    if crowd is not None:
        gain, most = number(crowd, "adaptive / none"), number(crowd, "best fixed tok/s")
        found.append(
            Verdict(
                f"adaptive over none, {_STRONG}, {_STREAMS[-1]} streams",
                f"{gain:.2f}",
                f"at least {SATURATED:g}",
                gain >= SATURATED,
                f"{gain - SATURATED:+.2f}",
                f"The best fixed width has {most / number(crowd, 'none tok/s'):.2f}.",
            )
        )
    return found


GROUP = Group(
    "speculation",
    tuple(
        Cell(_name(asked), functools.partial(_run, asked))
        for profile in (_STRONG, "mtp", "weak-draft")
        for asked in (
            *(Asked(profile, streams) for streams in _STREAMS),
            Asked(profile, 1, _LONG),
        )
    ),
    (
        "profile",
        "streams",
        "answers",
        "none tok/s",
        "best fixed tok/s",
        "its width",
        "adaptive tok/s",
        "adaptive / best of both",
        "adaptive / none",
        "by score / best of both",
        "by score / none",
        "time by width %",
        "learning %",
    ),
    verdicts,
)
