"""Window: the part of a run that is measured.

A run has a beginning, when caches and estimates are cold, and an end, when the last requests drain
without new ones; neither tells what a loaded server does. The window depends on the arrivals
alone, so that every policy is measured over the same one in an open-loop workload.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from scheduling_sim.run_log import RequestLog, RunLog

_SHORTEST_NS: Final = 1_000_000_000


class Window(NamedTuple):
    """A span of virtual time in ns, its end included."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / 1e9

    def holds(self, at_ns: int) -> bool:
        """Whether a moment lies inside."""
        return self.begin_ns <= at_ns <= self.end_ns


def loaded_window(log: RunLog, warm_up_ns: int = 0) -> Window:
    """Return the span from the first arrival, plus a warm-up, to the last arrival.

    Arrivals within less than one second after the warm-up are a burst, not a load: its window ends
    with the run. Raises ValueError for a warm-up that is negative or leaves no request.
    """
    if warm_up_ns < 0:
        raise ValueError(f"a warm-up of {warm_up_ns} ns is negative")
    if not log.requests:
        return Window(0, max(log.ended_ns, 0))
    arrivals = [one.arrival_ns for one in log.requests]
    first_ns, last_ns = min(arrivals) + warm_up_ns, max(arrivals)
    if first_ns > last_ns:
        raise ValueError(
            f"a warm-up of {warm_up_ns / 1e9:g} s leaves nothing to measure: the last request "
            f"arrives {(last_ns - min(arrivals)) / 1e9:g} s after the first"
        )
    end_ns = last_ns if last_ns - first_ns >= _SHORTEST_NS else max(log.ended_ns, last_ns)
    return Window(first_ns, end_ns)


def measured_requests(log: RunLog, window: Window) -> list[RequestLog]:
    """Return the requests that arrived inside the window; what follows them is theirs."""
    return [one for one in log.requests if window.holds(one.arrival_ns)]
