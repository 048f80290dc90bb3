"""Adaptive speculation against every fixed width and none, by streams and acceptance profile."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from scheduling_sim.acceptance import acceptance
from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, tokens_per_s
from scheduling_sim.workload.named import workload

_WIDTHS: Final = (2, 3, 4, 6)


def _speed(streams: int, profile: str, mode: str, options: dict[str, object]) -> float:
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
    drawn = None if mode == "ordinary" else acceptance(profile, seed=1)
    setup = Setup(platform=chosen, workload=asked, acceptance=drawn, options=options)
    return tokens_per_s(simulate(setup))


def _run(streams: int, profile: str, data: Path) -> Row:
    del data
    none = _speed(streams, profile, "ordinary", {})
    fixed = {width: _speed(streams, profile, "speculative", {"width": width}) for width in _WIDTHS}
    adaptive = _speed(streams, profile, "speculative", {})
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
    ),
)
