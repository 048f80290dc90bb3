"""MonotonicClock: the clock port over the operating system's monotonic clock."""

from __future__ import annotations

import time


class MonotonicClock:
    """Monotonic nanoseconds; the same reading in every thread of the process."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        return time.monotonic_ns()
