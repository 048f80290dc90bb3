"""Rounds on a full machine: 64 streams with a strong draft, between their start and their end.

The speculation group counts whole runs of two answers, in which 64 prompts are read first and the
last streams end alone. Here tokens are counted from 30 to 90 % of them, four answers each, on three
machines: what rounds are worth when all places are taken depends on how many rows a step computes
before arithmetic and not memory is what it waits for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from scheduling_sim.acceptance import acceptance
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import Cell, Group, Row, Verdict, as_served, number
from scheduling_sim.workload.named import workload

BAR: Final = 1.5
PROFILE: Final = "strong-draft"
_MACHINES: Final = ("rtx-pro-6000/llama-3.1-8b", "h200/llama-3.1-8b", "h200/qwen3-32b")
_STREAMS: Final = 64
_WIDTHS: Final = (2, 3, 4, 6, 8)
"""The catalog holds every one at 64 lanes (up to 512 rows), for each mode, so that the best lies
between others and the adaptive choice may have it."""
_ROUNDS: Final[dict[str, object]] = {
    "depths": tuple(width - 1 for width in _WIDTHS),
    "row_envelope": _WIDTHS[-1] * _STREAMS,
}
_FROM: Final = 0.3
_TO: Final = 0.9


def steady_tokens_per_s(log: RunLog) -> float:
    """Return output tokens per second between the first 30 and 90 % of them."""
    times = np.concatenate([np.asarray(one.delivery_ns, np.int64) for one in log.requests])
    counts = np.concatenate([np.asarray(one.delivery_tokens, np.int64) for one in log.requests])
    order = np.argsort(times, kind="stable")
    times, total = times[order], np.cumsum(counts[order])
    first, last = np.searchsorted(total, [_FROM * total[-1], _TO * total[-1]])
    return float(total[last] - total[first]) / (float(times[last] - times[first]) / 1e9)


def _speed(machine: str, mode: str, options: dict[str, object]) -> float:
    asked = workload(
        "closed-loop",
        users=_STREAMS,
        requests_per_user=4,
        think_s=0.01,
        ramp_s=0.01,
        prompt="fixed:128",
        output="fixed:300",
    )
    setup = Setup(
        platform=platform(machine, mode=mode, slots=_STREAMS, page_growth=True, **_ROUNDS),
        workload=asked,
        acceptance=None if mode == "ordinary" else acceptance(PROFILE, seed=1),
        options={**as_served("helios"), **options},
    )
    return steady_tokens_per_s(simulate(setup))


def _run(machine: str, data: Path) -> Row:
    del data
    none = _speed(machine, "ordinary", {})
    fixed = {width: _speed(machine, "speculative", {"width": width}) for width in _WIDTHS}
    adaptive = _speed(machine, "speculative", {})
    width, best = max(fixed.items(), key=lambda pair: pair[1])
    return {
        "machine": machine,
        "none tok/s": none,
        **{f"width {each} tok/s": speed for each, speed in fixed.items()},
        "best fixed tok/s": best,
        "its width": width,
        "adaptive tok/s": adaptive,
        "best fixed / none": best / none,
        "adaptive / none": adaptive / none,
        "adaptive / best of both": adaptive / max(best, none),
    }


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the gain over none on every machine."""
    found = []
    for name, row in rows.items():
        gain = number(row, "adaptive / none")
        found.append(
            Verdict(
                f"adaptive over none at saturation, {name}",
                f"{gain:.2f}",
                f"at least {BAR:g}",
                gain >= BAR,
                f"{gain - BAR:+.2f}",
                _why(row),
            )
        )
    return found


def _why(row: Row) -> str:
    best = round(number(row, "its width"))
    edge = ", the widest that was run" if best == _WIDTHS[-1] else ""
    return f"The best fixed width, {best}{edge}, has {number(row, 'best fixed / none'):.2f}."


GROUP = Group(
    "saturation",
    tuple(Cell(machine, functools.partial(_run, machine)) for machine in _MACHINES),
    (
        "machine",
        "none tok/s",
        *(f"width {each} tok/s" for each in _WIDTHS),
        "adaptive tok/s",
        "best fixed / none",
        "adaptive / none",
        "adaptive / best of both",
    ),
    verdicts,
)
