"""Goodput: the share and the rate of requests that met their service objectives.

DistServe (Zhong et al., OSDI 2024) counts a request when its first token and its pace both meet
their objectives. A request that its client abandons, or that is still open when the run stops,
fails as soon as what it saw until then breaks an objective; otherwise it is not judged, so that
neither making people leave nor stopping early flatters a policy.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduling_sim.metrics.latency import COMPLETE, gaps_ns, ttft_ns
from scheduling_sim.metrics.window import Window
from scheduling_sim.run_log import RequestLog


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a service promises. Raises ValueError, naming the field, for what no one can promise."""

    ttft_ms: float = 1000.0
    """To the first token, whatever the prompt."""
    ttft_ms_per_prompt_token: float = 0.0
    """Added for each prompt token, for objectives that grow with the prompt."""
    gap_ms: float = 100.0
    """Between deliveries."""
    gap_quantile: float = 1.0
    """Which of a request's gaps must keep to it: 1 is all of them, 0.99 leaves out one in 100."""

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "gap_ms"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 <= self.ttft_ms_per_prompt_token < float("inf"):
            raise ValueError(
                f"ttft_ms_per_prompt_token is {self.ttft_ms_per_prompt_token}: at least 0"
            )
        if not 0 < self.gap_quantile <= 1:
            raise ValueError(f"gap_quantile is {self.gap_quantile}: above 0 and at most 1")

    def ttft_limit_ns(self, prompt_tokens: int) -> float:
        """Return the objective for a prompt's first token."""
        return (self.ttft_ms + self.ttft_ms_per_prompt_token * prompt_tokens) * 1e6


class Verdict(enum.Enum):
    """What became of the promise to one request."""

    MET = "met"
    MISSED = "missed"
    NOT_JUDGED = "not judged"


class Goodput(NamedTuple):
    """Requests by verdict, and the rate of those that met both objectives."""

    met: int
    missed: int
    not_judged: int
    share: float | None
    """Of the judged ones; None when there are none."""
    requests_per_s: float | None
    missed_ttft: int
    """Of the missed ones, those whose first token came too late, or had not come by then."""


def verdict(one: RequestLog, objectives: Objectives, ended_ns: int) -> Verdict:
    """Judge one request by what its client saw until it ended or the run did."""
    if one.reason in ("error", "rejected"):
        return Verdict.MISSED
    if misses_ttft(one, objectives, ended_ns) or _misses_gap(one, objectives, ended_ns):
        return Verdict.MISSED
    return Verdict.MET if one.reason in COMPLETE else Verdict.NOT_JUDGED


def misses_ttft(one: RequestLog, objectives: Objectives, ended_ns: int) -> bool:
    """Whether the first token came later than promised, or had not come when it should have."""
    end_ns = ended_ns if one.finished_ns is None else one.finished_ns
    waited_ns = ttft_ns(one)
    if waited_ns is None:
        waited_ns = end_ns - one.arrival_ns
    return waited_ns > objectives.ttft_limit_ns(one.request.prompt_tokens)


def _misses_gap(one: RequestLog, objectives: Objectives, ended_ns: int) -> bool:
    gaps = gaps_ns(one)
    if one.reason not in COMPLETE and one.delivery_ns:
        # The reader was still waiting for the next token when it ended.
        end_ns = ended_ns if one.finished_ns is None else one.finished_ns
        gaps = np.append(gaps, max(0, end_ns - one.delivery_ns[-1]))
    if not gaps.size:
        return False
    return float(np.quantile(gaps, objectives.gap_quantile)) > objectives.gap_ms * 1e6


def goodput(
    requests: Sequence[RequestLog], objectives: Objectives, window: Window, ended_ns: int
) -> Goodput:
    """Return the goodput of requests that arrived inside the window, per second of the window."""
    judged = [(one, verdict(one, objectives, ended_ns)) for one in requests]
    counts = {kind: sum(got is kind for _, got in judged) for kind in Verdict}
    met, missed = counts[Verdict.MET], counts[Verdict.MISSED]
    late = sum(
        got is Verdict.MISSED and misses_ttft(one, objectives, ended_ns) for one, got in judged
    )
    return Goodput(
        met=met,
        missed=missed,
        not_judged=counts[Verdict.NOT_JUDGED],
        share=met / (met + missed) if met + missed else None,
        requests_per_s=met / window.seconds if window.seconds > 0 else None,
        missed_ttft=late,
    )
