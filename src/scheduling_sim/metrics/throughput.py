"""Tokens and requests per second over a window of the run."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduling_sim.metrics.latency import COMPLETE
from scheduling_sim.metrics.window import Window
from scheduling_sim.run_log import RequestLog


class Throughput(NamedTuple):
    """Rates; None over a window without length."""

    prompt_tokens_per_s: float | None
    """Prompt tokens computed, replays after a preemption not counted again."""
    output_tokens_per_s: float | None
    """Output tokens delivered."""
    requests_per_s: float | None
    """Whole answers ended."""


def useful_prompt_tokens(one: RequestLog) -> array[int]:
    """Return, for each frame in `prompt_ns`, its prompt tokens without what was computed before.

    A preempted request computes its prompt again; only the first time counts as service.
    """
    left = one.request.prompt_tokens
    useful: array[int] = array("q")
    for tokens in one.prompt_tokens:
        useful.append(min(tokens, left))
        left -= useful[-1]
    return useful


def throughput(requests: Sequence[RequestLog], window: Window) -> Throughput:
    """Return what was served inside a window, whenever its requests arrived."""
    if window.seconds <= 0:
        return Throughput(None, None, None)
    prompt = sum(_inside(one.prompt_ns, useful_prompt_tokens(one), window) for one in requests)
    output = sum(_inside(one.delivery_ns, one.delivery_tokens, window) for one in requests)
    complete = sum(
        one.reason in COMPLETE and one.finished_ns is not None and window.holds(one.finished_ns)
        for one in requests
    )
    rates = (total / window.seconds for total in (prompt, output, complete))
    return Throughput(*rates)


def _inside(times_ns: array[int], tokens: array[int], window: Window) -> int:
    times = np.array(times_ns, dtype=np.int64)
    inside = (times >= window.begin_ns) & (times <= window.end_ns)
    return int(np.array(tokens, dtype=np.int64)[inside].sum())
