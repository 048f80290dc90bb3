"""How requests ended: every one is counted under exactly one reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduling_sim.metrics.latency import COMPLETE
from scheduling_sim.run_log import RequestLog


class Outcomes(NamedTuple):
    """Counts; `complete + cancelled + errors + rejected + unfinished == requests`."""

    requests: int
    complete: int
    """Whole answers: stopped by themselves or at their limit."""
    cancelled: int
    errors: int
    rejected: int
    unfinished: int
    without_output: int
    """Of all requests, those that never saw a token; no latency figure can include them."""


def outcomes(requests: Sequence[RequestLog]) -> Outcomes:
    """Count how requests ended. Raises ValueError for a reason that no one knows."""
    counts = dict.fromkeys(("complete", "cancelled", "error", "rejected", "unfinished"), 0)
    for one in requests:
        reason = "complete" if one.reason in COMPLETE else one.reason
        if reason not in counts:
            raise ValueError(f"request {one.request.request_id} ended by {one.reason!r}")
        counts[reason] += 1
    return Outcomes(
        requests=len(requests),
        complete=counts["complete"],
        cancelled=counts["cancelled"],
        errors=counts["error"],
        rejected=counts["rejected"],
        unfinished=counts["unfinished"],
        without_output=sum(not one.delivery_ns for one in requests),
    )
