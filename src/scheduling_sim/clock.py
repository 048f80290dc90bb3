"""VirtualClock: time of a simulated run, integer nanoseconds from zero."""

from __future__ import annotations


class VirtualClock:
    """Implements `helios.engine.ports.Clock`; only the simulation and its host costs move it."""

    __slots__ = ("_now_ns",)

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self._now_ns

    def advance_to(self, now_ns: int) -> None:
        """Move to a time. Raises ValueError when it lies in the past."""
        if now_ns < self._now_ns:
            raise ValueError(f"time is at {self._now_ns} ns, it cannot go back to {now_ns} ns")
        self._now_ns = now_ns

    def spend(self, duration_ns: int) -> None:
        """Let the host be busy for a while. Raises ValueError for a negative duration."""
        if duration_ns < 0:
            raise ValueError(f"a duration is at least 0 ns, not {duration_ns} ns")
        self._now_ns += duration_ns
