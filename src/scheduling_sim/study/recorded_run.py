"""The shipped recording of our own CPU engine, replayed: how far every statistic is off.

Step times are the fitted ones, or depart from them as the recorded frames did in their order, or by
drawn spells of them. Where the order decides, what is off is the machine's noise and when it fell,
not the model. Gaps and first texts count deliveries that showed text, as the recording has them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from scheduling_sim.costs.shipped import shipped_run
from scheduling_sim.costs.trace_file import RecordedRun
from scheduling_sim.platforms import platform
from scheduling_sim.recorded import recorded_workload
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import Cell, Group, Row, Verdict, number

BAR: Final = 5.0
_DRAWN_SEEDS: Final = range(5)
_SPREADS: Final = (
    ("fitted", "none"),
    ("in their order", "in-order"),
    ("drawn, five seeds", "drawn"),
)
_MEASURES: Final = ("first text", "gap", "whole")
_STATISTICS: Final = ("mean", "p50", "p90", "p99")

Samples = Mapping[str, Sequence[int]]
"""Values in ns by measure."""


def recorded_samples(run: RecordedRun) -> Samples:
    """Return what the clients of a recorded run saw."""
    delivered: dict[str, list[int]] = {}
    for frame in run.frames:
        for lane, at_ns, characters in frame.delivered:
            if characters:
                delivered.setdefault(frame.request_ids[lane], []).append(at_ns)
    return _samples(
        (one.arrival_ns, delivered[one.request_id], one.finished_ns) for one in run.requests
    )


def replayed_samples(log: RunLog) -> Samples:
    """Return what the clients of a replay saw; every request ends in one."""
    return _samples(
        (one.arrival_ns, one.delivery_ns, one.finished_ns or log.ended_ns) for one in log.requests
    )


def _samples(requests: Iterable[tuple[int, Sequence[int], int]]) -> Samples:
    found: dict[str, list[int]] = {name: [] for name in _MEASURES}
    for arrival_ns, times, finished_ns in requests:
        found["first text"].append(times[0] - arrival_ns)
        found["gap"] += [after - before for before, after in itertools.pairwise(times)]
        found["whole"].append(finished_ns - arrival_ns)
    return found


def errors(replayed: Samples, recorded: Samples) -> dict[str, float]:
    """Return the error in per cent of every statistic of every measure."""
    found = {}
    for measure in _MEASURES:
        ours, theirs = _statistics(replayed[measure]), _statistics(recorded[measure])
        for name, our, their in zip(_STATISTICS, ours, theirs, strict=True):
            found[f"{measure} {name} %"] = 100 * (our / their - 1)
    return found


def _statistics(values: Sequence[int]) -> list[float]:
    sample = np.asarray(values, dtype=np.float64)
    return [float(sample.mean()), *map(float, np.percentile(sample, (50, 90, 99)))]


def _run(title: str, spread: str, data: Path) -> Row:
    del data
    run = shipped_run()
    pooled: dict[str, list[int]] = {name: [] for name in _MEASURES}
    for seed in _DRAWN_SEEDS if spread == "drawn" else (0,):
        log = simulate(
            Setup(
                platform=platform("cpu/recorded", spread=spread, seed=seed),
                workload=recorded_workload(run),
                policy="helios-table",
                options=dataclasses.asdict(run.policy),
            )
        )
        for name, values in replayed_samples(log).items():
            pooled[name] += values
    return {"times": title, **errors(pooled, recorded_samples(run))}


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge every statistic of every way to draw times."""
    found = []
    for name, row in rows.items():
        off = {key: number(row, key) for key in row if key.endswith(" %")}
        worst = max(off, key=lambda key: abs(off[key]))
        within = sum(abs(value) <= BAR for value in off.values())
        found.append(
            Verdict(
                f"replay of the recorded CPU run, times {name}",
                f"{within} of {len(off)} statistics within {BAR:.0f} %",
                f"all within {BAR:.0f} %",
                within == len(off),
                f"largest {off[worst]:+.1f} %, {worst.removesuffix(' %')}",
            )
        )
    return found


GROUP = Group(
    "recorded-run",
    tuple(Cell(title, functools.partial(_run, title, spread)) for title, spread in _SPREADS),
    ("times", *(f"{measure} {name} %" for measure in _MEASURES for name in _STATISTICS)),
    verdicts,
)
