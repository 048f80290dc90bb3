"""Adaptive speculation against every fixed width and none, by streams and acceptance profile.

Every run starts with measured durations, as a server does. `by service` is the adaptive mode with
the two options of decision 18; both are means over the seeds of the acceptance model, as are the
fixed widths.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from typing import Final

from scheduling_sim.acceptance import acceptance
from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, as_served, tokens_per_s
from scheduling_sim.workload.named import workload

_WIDTHS: Final = (2, 3, 4, 6)
_SEEDS: Final = (1, 2)
_BY_SERVICE: Final = {"alone_service_share": 0.99, "population_weight": 8.0}


def _speed(streams: int, profile: str, mode: str, options: dict[str, object]) -> float:
    """Return tokens per second, the mean over the seeds where any acceptance is drawn."""
    seeds = _SEEDS[:1] if mode == "ordinary" else _SEEDS
    return statistics.mean(_run_once(streams, profile, mode, options, seed) for seed in seeds)


def _run_once(
    streams: int, profile: str, mode: str, options: dict[str, object], seed: int
) -> float:
    chosen = platform(PLATFORM, mode=mode, slots=64, page_growth=True)
    asked = workload(
        "closed-loop",
        users=streams,
        requests_per_user=2,
        think_s=0.01,
        ramp_s=0.01,
        prompt="fixed:128",
        output="fixed:300",
    )
    drawn = None if mode == "ordinary" else acceptance(profile, seed=seed)
    served = {**as_served("helios"), **options}
    setup = Setup(platform=chosen, workload=asked, acceptance=drawn, options=served)
    return tokens_per_s(simulate(setup))


def _run(streams: int, profile: str, data: Path) -> Row:
    del data
    none = _speed(streams, profile, "ordinary", {})
    fixed = {width: _speed(streams, profile, "speculative", {"width": width}) for width in _WIDTHS}
    adaptive = _speed(streams, profile, "speculative", {})
    by_service = _speed(streams, profile, "speculative", dict(_BY_SERVICE))
    width, best = max(fixed.items(), key=lambda pair: pair[1])
    return {
        "profile": profile,
        "streams": streams,
        "none tok/s": none,
        "best fixed tok/s": best,
        "its width": width,
        "adaptive tok/s": adaptive,
        "adaptive / best of both": adaptive / max(best, none),
        "adaptive / none": adaptive / none,
        "by service / best of both": by_service / max(best, none),
        "by service / none": by_service / none,
    }


GROUP = Group(
    "speculation",
    tuple(
        Cell(f"{profile} {streams}", functools.partial(_run, streams, profile))
        for profile in ("strong-draft", "mtp", "weak-draft")
        for streams in (1, 4, 16, 64)
    ),
    (
        "profile",
        "streams",
        "none tok/s",
        "best fixed tok/s",
        "its width",
        "adaptive tok/s",
        "adaptive / best of both",
        "adaptive / none",
        "by service / best of both",
        "by service / none",
    ),
)
