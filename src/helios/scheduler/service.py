"""Service prices: the entropy-dual flow in physical units, and its reference rates.

A price p (ms per unit of service) is the dual of a service rate. In normalised form q = p*r the
flow is dq/dt = (1 - h*q)/tau with h = s/(d*r). Written for p itself, the reference rate r only sets
the speed of the move, never its target d/s (docs/design/scheduling-utility.md section 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

PRICE_FLOOR = 1e-120
PRICE_CEILING = 1e120
"""No history of 2**63 ns leaves these bounds at sane policies; they keep prices positive and finite
at absurd ones (an adaptation time of 1e-300 ms), where an overflow would end every comparison."""


def clamped(price: float) -> float:
    """Return the price inside its representable range (the identity for every sane history)."""
    if price < PRICE_FLOOR:
        return PRICE_FLOOR
    return min(price, PRICE_CEILING)


class Flow(NamedTuple):
    """The exact solution over one interval: p -> p*keep + gain; unserved keep = 1."""

    keep: float
    gain: float

    def apply(self, price: float) -> float:
        """Return the price at the end of the interval."""
        return clamped(price * self.keep + self.gain)


def flow_over(
    served: float, interval_ms: float, reference_rate: float, adaptation_ms: float
) -> Flow:
    """Solve the flow for `served` units over a positive interval.

    q(d) = q0 + d/tau without service and q0 + (1 - h*q0)*(1 - exp(-h*d/tau))/h with it, divided
    by r. It is written as a convex combination of the old price and d/s, which cannot turn a huge
    price into zero by cancellation.
    """
    if served <= 0.0:
        return Flow(1.0, min(interval_ms / adaptation_ms / reference_rate, PRICE_CEILING))
    exponent = served / reference_rate / adaptation_ms
    return Flow(math.exp(-exponent), (interval_ms / served) * -math.expm1(-exponent))


def served_flows(
    served: Iterable[float], interval_ms: float, reference_rate: float, adaptation_ms: float
) -> dict[float, tuple[float, float]]:
    """Return keep and gain of `flow_over` by every count, each once."""
    flows: dict[float, tuple[float, float]] = {}
    exp, expm1 = math.exp, math.expm1
    for count in dict.fromkeys(served):
        if count <= 0.0:
            flows[count] = flow_over(count, interval_ms, reference_rate, adaptation_ms)
        else:
            exponent = count / reference_rate / adaptation_ms
            flows[count] = (exp(-exponent), (interval_ms / count) * -expm1(-exponent))
    return flows


def lane_flows(
    served: Sequence[float], interval_ms: float, reference_rate: float, adaptation_ms: float
) -> list[tuple[float, float]]:
    """Return keep and gain of `flow_over` of every count in their order, at least one.

    A round expects its own count of every lane, so a decision needs as many flows as lanes.
    """
    first = served[0]
    if served.count(first) == len(served) or min(served) <= 0.0:
        flows = served_flows(served, interval_ms, reference_rate, adaptation_ms)
        return list(map(flows.__getitem__, served))
    exponents = [-(count / reference_rate / adaptation_ms) for count in served]
    gains = [
        (interval_ms / count) * -moved
        for count, moved in zip(served, map(math.expm1, exponents), strict=True)
    ]
    return list(zip(map(math.exp, exponents), gains, strict=True))


def arrival_price(shares: float, residents: int, reference_rate: float) -> float:
    """Return a newcomer's price, `shares` times that of 1/N of the machine.

    `reference_rate` is what the whole machine could do for the request alone, and N counts the
    resident participants, itself included.
    """
    return clamped(shares * residents / reference_rate)


def reference_interval_ms(
    streams: int, family: int, shapes: Iterable[tuple[int, float]]
) -> float | None:
    """Return sigma = min K*T/min(B,k) over the measured (B, T ms) shapes; None without any.

    `streams` is K, all delivery-bearing streams; `family` is k, those that these shapes can serve.
    A shape of zero duration is unmeasured.
    """
    best = math.inf
    for batch, duration_ms in shapes:
        if duration_ms > 0.0:
            spacing = duration_ms / (batch if batch < family else family)
            best = min(best, spacing)
    return streams * best if best < math.inf else None


def machine_rate(remaining: int, shapes: Iterable[tuple[int, float]]) -> float | None:
    """Return max min(R, C)/T over the measured (C, T ms) prefill shapes; None without any.

    It is the rate (tokens/ms) at which the whole machine could consume a prompt with R tokens left.
    """
    best = 0.0
    for capacity, duration_ms in shapes:
        if duration_ms > 0.0:
            best = max(best, (remaining if remaining < capacity else capacity) / duration_ms)
    return best or None
