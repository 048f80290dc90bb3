"""Contexts from 1,000 to 100,000 tokens, with and without cost entries by context.

The same forty requests come with rising prompts (contexts drift) or in random order (contexts
jump). The distance to the next arrival follows what a prompt costs alone, so that the load is even.
What is predicted is the device time of each frame, as the plan had it when it was committed.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

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
    tokens_per_s,
)
from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest

INTERVALS: Final = (4096, 16_384, 32_768, 65_536)
_REQUESTS: Final = 40
_SHORTEST: Final = 1000
_LONGEST: Final = 100_000
_OUTPUT: Final = 400
_LOAD: Final = 0.8
_TOKENS_PER_S: Final = 13_000.0
_PAIRS_PER_S: Final = 2.9e9
"""What a prompt alone takes on this machine: tokens through the layers, and pairs in attention."""
_LEAST_ERROR: Final = 1e-9


def drifting(order: str, *, requests: int = _REQUESTS, longest: int = _LONGEST) -> Workload:
    """Return the requests with prompts in geometric steps, `rising` or `shuffled`."""
    steps = longest / _SHORTEST
    lengths = [round(_SHORTEST * steps ** (i / (requests - 1))) for i in range(requests)]
    if order == "shuffled":
        random.Random(1).shuffle(lengths)
    at_s, found = 0.0, []
    for index, tokens in enumerate(lengths):
        name = f"{order}-{index}"
        found.append(
            WorkloadRequest(
                request_id=name,
                arrival_ns=round(at_s * 1e9),
                prompt=(Segment(content_identity("contexts", name), tokens),),
                output=Segment(content_identity("contexts-answer", name), _OUTPUT),
                max_output_tokens=_OUTPUT,
            )
        )
        at_s += (tokens / _TOKENS_PER_S + tokens * tokens / _PAIRS_PER_S) / _LOAD
    return Workload(name=f"contexts-{order}", requests=tuple(found))


class Chosen(NamedTuple):
    """Who serves, and what it knows."""

    policy: str = "helios"
    intervals: tuple[int, ...] = ()
    knows: bool = False
    """It starts with measured durations, as a server does."""

    @property
    def title(self) -> str:
        """The policy as the table names it."""
        return f"{self.policy}, durations known" if self.knows else self.policy


def run_order(order: str, chosen: Chosen, asked: Workload) -> Row:
    """Return how well frames were predicted and what users saw."""
    intervals = chosen.intervals
    machine = platform(
        PLATFORM, mode="mixed", slots=16, page_growth=True, context_intervals=intervals
    )
    options = as_served(chosen.policy) if chosen.knows else {}
    log, metrics = run_of(
        Setup(platform=machine, workload=asked, policy=chosen.policy, options=options)
    )
    errors = prediction_errors(log)
    return {
        "contexts": order,
        "policy": chosen.title,
        "intervals": str(len(intervals) + 1) if intervals else "none",
        "median error %": _quantile(errors, 0.5),
        "P90 error %": _quantile(errors, 0.9),
        "P99 error %": _quantile(errors, 0.99),
        **latencies(metrics),
        "tok/s": tokens_per_s(log),
    }


def prediction_errors(log: RunLog) -> list[float]:
    """Return |predicted / actual - 1| in per cent of every frame that had a prediction."""
    predicted, actual = np.array(log.steps.predicted_ns), np.array(log.steps.device_ns)
    known = predicted > 0
    found: list[float] = (100 * np.abs(predicted[known] / actual[known] - 1)).tolist()
    return found


def _quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def _run(order: str, chosen: Chosen, data: Path) -> Row:
    del data
    return run_order(order, chosen, drifting(order))


def verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Compare each order with and without intervals: they must not cost anything."""
    found = []
    for order, knows in itertools.product(("rising", "shuffled"), (False, True)):
        one = Chosen(knows=knows)
        without = rows.get(_name(order, one))
        with_them = rows.get(_name(order, one._replace(intervals=INTERVALS)))
        if without is None or with_them is None:
            continue
        before, after = number(without, "P90 error %"), number(with_them, "P90 error %")
        found.append(
            Verdict(
                f"P90 error of predictions with intervals, {order}{', known' if knows else ''}",
                f"{after:.1f} %",
                f"below the {before:.1f} % without",
                after < before,
                f"{after / max(before, _LEAST_ERROR):.2g} of it",
                f"{', '.join(_change(without, with_them, key) for key in _TOLD)}.",
            )
        )
    return found


_TOLD: Final = ("TTFT P50 ms", "TTFT P99 ms", "gap P99 ms", "worst gap ms")


def _change(before: Row, after: Row, key: str) -> str:
    change = 100 * (number(after, key) / number(before, key) - 1)
    return f"{key.removesuffix(' ms')} {change:+.0f} %"


def _name(order: str, chosen: Chosen) -> str:
    return f"{order} {chosen.title}{' with intervals' if chosen.intervals else ''}"


GROUP = Group(
    "contexts",
    tuple(
        Cell(_name(order, chosen), functools.partial(_run, order, chosen))
        for order in ("rising", "shuffled")
        for chosen in (
            Chosen(),
            Chosen(intervals=INTERVALS),
            Chosen(knows=True),
            Chosen(knows=True, intervals=INTERVALS),
            Chosen("chunked"),
        )
    ),
    (
        "contexts",
        "policy",
        "intervals",
        "median error %",
        "P90 error %",
        "P99 error %",
        "TTFT P50 ms",
        "TTFT P99 ms",
        "gap P99 ms",
        "worst gap ms",
        "tok/s",
    ),
    verdicts,
)
