"""Who shares a frame's interval, at which frozen reference rates, and what it does to prices.

Participants are recorded at commit. A request that became resident later is not among them, and a
Request object is one generation, so no interval can be charged to a later user of a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from helios.scheduler.requests import Request
from helios.scheduler.service import clamped, flow_over


class Share(NamedTuple):
    """Participants with the same reference rates; a rate is None while nothing is measured."""

    requests: Sequence[Request]
    token_rate: float | None
    delivery_rate: float | None
    """None for prefilling participants, who have no delivery coordinate."""


def settle(
    shares: Sequence[Share],
    served_tokens: Mapping[Request, int],
    interval_ms: float,
    adaptation_ms: float,
) -> None:
    """Move every participant's stored prices over one measured positive interval.

    Deliveries count as zero here; the publication of the same fence replaces it, see
    `delivered_price`.
    """
    for share in shares:
        if share.token_rate is not None:
            _settle_tokens(share, share.token_rate, served_tokens, interval_ms, adaptation_ms)
        if share.delivery_rate is not None:
            idle = flow_over(0.0, interval_ms, share.delivery_rate, adaptation_ms)
            for request in share.requests:
                if request.delivery_price is not None:
                    request.delivery_price = idle.apply(request.delivery_price)


def _settle_tokens(
    share: Share,
    rate: float,
    served_tokens: Mapping[Request, int],
    interval_ms: float,
    adaptation_ms: float,
) -> None:
    # Nearly all lanes of a frame advance by the same count, so a flow is solved once per count.
    flows = {0: flow_over(0.0, interval_ms, rate, adaptation_ms)}
    for request in share.requests:
        price = request.token_price
        if price is None:
            continue
        served = served_tokens.get(request, 0)
        flow = flows.get(served)
        if flow is None:
            flow = flows[served] = flow_over(served, interval_ms, rate, adaptation_ms)
        request.token_price = flow.apply(price)


def delivered_price(
    before: float | None, rate: float | None, interval_ms: float, adaptation_ms: float
) -> float | None:
    """Return the delivery price after an interval that served one delivery.

    Without a history the first burst makes one: a delivery per measured frame duration.
    """
    if before is None:
        return clamped(interval_ms)
    if rate is None:
        return before
    return flow_over(1.0, interval_ms, rate, adaptation_ms).apply(before)
