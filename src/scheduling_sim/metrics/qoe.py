"""Quality of experience of text streams, after Andes (Liu et al. 2024, arXiv:2404.16283).

A reader expects the first token after `ttft_ms` and then `tokens_per_s`. Tokens that come early are
read when they are due; a late token delays all that follow, because reading takes its time. QoE is
the area under the curve of tokens read over the area under the expected curve, both until the last
token is read: 1 is as expected, 0 is nothing at all. Areas are exact sums over tokens; a token
counts from the moment it is read, and the last one takes its reading time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from scheduling_sim.metrics.distribution import Floats
from scheduling_sim.run_log import RequestLog


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a reader expects. Raises ValueError for a pace that is not positive."""

    ttft_ms: float = 1000.0
    tokens_per_s: float = 4.8
    """Andes takes 4.8 tokens/s as the average reading speed in English."""

    def __post_init__(self) -> None:
        if not self.tokens_per_s > 0 or not self.ttft_ms >= 0:
            raise ValueError(f"an expectation needs a positive pace, not {self}")


def quality(one: RequestLog, expectation: Expectation) -> float:
    """Return the QoE of one request, 0 to 1; 0 for a request that never saw a token."""
    times = np.repeat(
        np.array(one.delivery_ns, dtype=np.int64), np.array(one.delivery_tokens, dtype=np.int64)
    )
    if not times.size:
        return 0.0
    pace_s = 1.0 / expectation.tokens_per_s
    expected = expectation.ttft_ms / 1e3 + pace_s * np.arange(times.size)
    arrived = (times - one.arrival_ns) / 1e9
    # read[i] = max(arrived[i], expected[i], read[i - 1] + pace) is a running maximum of how far
    # each token lags behind its place in the expected order.
    lag = np.maximum.accumulate(np.maximum(arrived - expected, 0.0))
    end_s = float(expected[-1] + lag[-1] + pace_s)
    whole = float((end_s - expected).sum())
    return 1.0 - float(lag.sum()) / whole


def qualities(requests: Sequence[RequestLog], expectation: Expectation) -> Floats:
    """Return the QoE of every request, in order."""
    return np.array([quality(one, expectation) for one in requests], dtype=np.float64)
