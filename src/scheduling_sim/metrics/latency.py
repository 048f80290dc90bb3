"""What the users of single requests saw: first token, gaps between deliveries, time per token, end.

A delivery may bring several tokens at once (a speculative round). The gap between deliveries is
what a reader feels, the time per token is what a throughput-minded client pays for; the two are
never mixed up here, and tokens are counted, not deliveries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scheduling_sim.metrics.distribution import Floats, Integers
from scheduling_sim.run_log import RequestLog

COMPLETE: Final = ("stop", "length")
"""Reasons of requests whose client got the whole answer."""


def ttft_ns(one: RequestLog) -> int | None:
    """Return the time from arrival to the first visible delivery; None without one."""
    return one.delivery_ns[0] - one.arrival_ns if one.delivery_ns else None


def gaps_ns(one: RequestLog) -> Integers:
    """Return the times between neighbouring visible deliveries."""
    times = np.array(one.delivery_ns, dtype=np.int64)
    return times[1:] - times[:-1]


def output_tokens(one: RequestLog) -> int:
    """Return the output tokens that were delivered."""
    return sum(one.delivery_tokens)


def tpot_ns(one: RequestLog) -> float | None:
    """Return the time per output token after the first: (last - first delivery) / (tokens - 1).

    None for requests with fewer than two output tokens.
    """
    tokens = output_tokens(one)
    if tokens < 2:
        return None
    return (one.delivery_ns[-1] - one.delivery_ns[0]) / (tokens - 1)


def end_to_end_ns(one: RequestLog) -> int | None:
    """Return the time from arrival to the end of a complete answer; None for any other end."""
    if one.reason not in COMPLETE or one.finished_ns is None:
        return None
    return one.finished_ns - one.arrival_ns


def unserved_ns(one: RequestLog, ended_ns: int) -> int | None:
    """Return how long a request without any output waited until it ended or the run did."""
    if one.delivery_ns:
        return None
    return (ended_ns if one.finished_ns is None else one.finished_ns) - one.arrival_ns


def ttfts_ns(requests: Sequence[RequestLog]) -> Integers:
    """Return the times to first token of the requests that have one."""
    values = [value for one in requests if (value := ttft_ns(one)) is not None]
    return np.array(values, dtype=np.int64)


def all_gaps_ns(requests: Sequence[RequestLog]) -> Integers:
    """Return the gaps of all requests together."""
    parts = [gaps_ns(one) for one in requests]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def tpots_ns(requests: Sequence[RequestLog]) -> Floats:
    """Return the times per output token of the requests that have one."""
    values = [value for one in requests if (value := tpot_ns(one)) is not None]
    return np.array(values, dtype=np.float64)


def ends_ns(requests: Sequence[RequestLog]) -> Integers:
    """Return the end-to-end latencies of the complete answers."""
    values = [value for one in requests if (value := end_to_end_ns(one)) is not None]
    return np.array(values, dtype=np.int64)
