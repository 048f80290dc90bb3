"""A duration estimate recomputed from the whole list of observations, each time it is asked for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

WINDOW = 9


@dataclasses.dataclass(frozen=True)
class Observation:
    """One completed execution of a graph: when it was reported, and the device's intervals."""

    at_ns: int
    device_ns: tuple[int, ...]
    readiness_ns: int = 0
    feedback_ns: int = 0

    @functools.cached_property
    def sample_ns(self) -> int:
        """The longest rank and its wait for feedback, less the exposed readiness delay.

        Not positive when invalid.
        """
        longest = max((ns for ns in self.device_ns if ns > 0), default=0)
        return longest + self.feedback_ns - self.readiness_ns if longest > 0 else 0


def median(values: Sequence[int]) -> float:
    """Return the middle value, or the mean of the middle pair."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return (ordered[half - 1] + ordered[half]) / 2


def estimate_ns(history: Sequence[Observation], ttl_ns: int) -> float:
    """Return the estimate after the last observation of the history; zero is indeterminate."""
    valid = [observation for observation in history if observation.sample_ns > 0]
    run: list[int] = []
    last_ns = None
    for observation in valid:
        if last_ns is not None and observation.at_ns - last_ns > ttl_ns:
            run = []
        run.append(observation.sample_ns)
        last_ns = observation.at_ns
    return median(run[-WINDOW:]) if run else 0.0


def is_fresh(history: Sequence[Observation], now_ns: int, ttl_ns: int) -> bool:
    """Return whether a valid observation is at most `ttl_ns` old."""
    return any(o.sample_ns > 0 and now_ns - o.at_ns <= ttl_ns for o in history)
