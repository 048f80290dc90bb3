"""When requests arrive: open arrival processes, in ns from the start of the run.

Every process has a mean rate in requests per second and ends after `count` arrivals or before
`duration_s`, whichever comes first; at least one of the two is given. Same seed, same times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduling_sim.workload.content import generator
from scheduling_sim.workload.errors import require

TimesNs = npt.NDArray[np.int64]
_Gaps = Callable[[int], npt.NDArray[np.float64]]

NS_PER_S: Final = 1_000_000_000
MAX_CV: Final = 20.0
"""Coefficient of variation; 13 is the largest that this project studies."""
MAX_ARRIVALS: Final = 10_000_000


def poisson(
    rate_per_s: float, *, seed: int, count: int | None = None, duration_s: float | None = None
) -> TimesNs:
    """Return arrivals with independent exponential gaps."""
    random = generator(seed, "poisson")
    return _collect(
        lambda n: random.exponential(1.0 / rate_per_s, n), rate_per_s, count, duration_s
    )


def bursty(
    rate_per_s: float,
    *,
    cv: float,
    seed: int,
    count: int | None = None,
    duration_s: float | None = None,
) -> TimesNs:
    """Return a gamma renewal process: gaps with the given coefficient of variation.

    Shape 1/cv^2 and scale cv^2/rate; cv 1 is Poisson, larger means bursts. With cv 13 the sample's
    own cv needs hundreds of thousands of arrivals to come near 13, because a few gaps make it up.
    """
    require(0.0 < cv <= MAX_CV, f"cv is {cv}; it must be above 0 and at most {MAX_CV}")
    random = generator(seed, "bursty")
    shape, scale_s = cv**-2, cv**2 / rate_per_s if rate_per_s > 0.0 else math.inf
    return _collect(lambda n: random.gamma(shape, scale_s, n), rate_per_s, count, duration_s)


def evenly(
    rate_per_s: float, *, count: int | None = None, duration_s: float | None = None
) -> TimesNs:
    """Return arrivals at equal distances, the first one gap after the start."""
    return _collect(lambda n: np.full(n, 1.0 / rate_per_s), rate_per_s, count, duration_s)


def on_off(
    rate_per_s: float,
    *,
    on_s: float,
    off_s: float,
    seed: int,
    count: int | None = None,
    duration_s: float | None = None,
) -> TimesNs:
    """Return Poisson arrivals during exponential on-periods and none between them.

    `on_s` and `off_s` are the mean lengths of the periods; `rate_per_s` is the mean over both, so
    the rate while on is larger by (on_s + off_s) / on_s. The run starts with an on-period.
    """
    require(
        0.0 < on_s < math.inf and 0.0 < off_s < math.inf,
        f"on_s is {on_s} and off_s {off_s}; both must be positive seconds",
    )
    random, pauses = generator(seed, "on-off"), generator(seed, "on-off", "pauses")
    share_on = on_s / (on_s + off_s)

    def draw(n: int) -> npt.NDArray[np.float64]:
        gaps_s = random.exponential(share_on / rate_per_s, n)
        # Memoryless on-periods end between two arrivals as often as a Poisson count says, and
        # every end inserts one off-period; a sum of k exponential periods is a gamma of shape k.
        ends = pauses.poisson(gaps_s / on_s)
        return gaps_s + np.where(ends > 0, pauses.gamma(np.maximum(ends, 1), off_s), 0.0)

    return _collect(draw, rate_per_s, count, duration_s)


def _collect(
    draw_s: _Gaps, rate_per_s: float, count: int | None, duration_s: float | None
) -> TimesNs:
    """Sum drawn gaps until `count` arrivals or the end of `duration_s`."""
    require(
        0.0 < rate_per_s < math.inf,
        f"rate_per_s is {rate_per_s}; it must be a positive number of requests per second",
    )
    require(count is not None or duration_s is not None, "give a count, a duration_s, or both")
    require(count is None or 0 <= count <= MAX_ARRIVALS, f"count is {count}; at least 0 is right")
    require(
        duration_s is None or 0.0 <= duration_s < math.inf,
        f"duration_s is {duration_s}; it must be a number of seconds, at least 0",
    )
    limit = MAX_ARRIVALS if count is None else count
    end_s = math.inf if duration_s is None else duration_s
    parts: list[npt.NDArray[np.float64]] = []
    drawn, last_s = 0, 0.0
    while drawn < limit and last_s < end_s:
        # The same block size for every end, so that a longer run begins with the shorter one.
        times_s = last_s + np.cumsum(draw_s(4096))
        parts.append(times_s)
        drawn, last_s = drawn + len(times_s), float(times_s[-1])
    times_s = np.concatenate(parts)[:limit] if parts else np.zeros(0)
    times_s = times_s[times_s < end_s]
    require(duration_s is None or len(times_s) < MAX_ARRIVALS, "more than ten million arrivals")
    return np.rint(times_s * NS_PER_S).astype(np.int64)
