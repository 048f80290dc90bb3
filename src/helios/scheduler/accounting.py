"""Who shares a frame's interval, at which frozen reference rates, and what it does to prices.

Participants are recorded at commit. A request that became resident later is not among them, and a
Request object is one generation, so no interval can be charged to a later user of a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from helios.scheduler.requests import Request
from helios.scheduler.service import (
    PRICE_CEILING,
    PRICE_FLOOR,
    Flow,
    clamped,
    flow_over,
    served_flows,
)
from helios.scheduler.tenants import Account
from helios.scheduler.units import Fence


class Share(NamedTuple):
    """Participants with the same reference rates; a rate is None while nothing is measured."""

    requests: Sequence[Request]
    token_rate: float | None
    """None also where the token price is a tenant's, which moves with its pool."""
    delivery_rate: float | None
    """None for prefilling participants, who have no delivery coordinate."""


class Pool(NamedTuple):
    """The participants of one tenant, whose summed service moves one token price."""

    account: Account
    requests: Sequence[Request]
    token_rate: float | None
    """Sum of what its participants would receive at their own reference rates."""

    def total(self, service: Mapping[Request, float]) -> float:
        """Return the service of all its participants together."""
        return sum([service.get(request, 0) for request in self.requests])


def settle(
    shares: Sequence[Share],
    served_tokens: Mapping[Request, int],
    interval_ms: float,
    adaptation_ms: float,
    pools: Sequence[Pool] = (),
) -> None:
    """Move every participant's stored prices over one measured positive interval.

    Deliveries count as zero here; the publication of the same fence replaces it, see
    `LastInterval`.
    """
    for share in shares:
        if share.token_rate is not None:
            _settle_tokens(share, share.token_rate, served_tokens, interval_ms, adaptation_ms)
        if share.delivery_rate is not None:
            gain = flow_over(0.0, interval_ms, share.delivery_rate, adaptation_ms).gain
            for request in share.requests:
                price = request.delivery_price
                if price is not None:
                    price += gain
                    request.delivery_price = PRICE_CEILING if price > PRICE_CEILING else price
    for pool in pools:
        account = pool.account
        if account.token_price is not None and pool.token_rate is not None:
            served = pool.total(served_tokens)
            flow = flow_over(served, interval_ms, pool.token_rate, adaptation_ms)
            account.token_price = flow.apply(account.token_price)


def _settle_tokens(
    share: Share,
    rate: float,
    served_tokens: Mapping[Request, int],
    interval_ms: float,
    adaptation_ms: float,
) -> None:
    if len(share.requests) == 1:
        # A prompt: it has a reference of its own.
        request = share.requests[0]
        if request.account.token_price is not None:
            flow = flow_over(served_tokens.get(request, 0), interval_ms, rate, adaptation_ms)
            request.account.token_price = flow.apply(request.account.token_price)
        return
    # Nearly all lanes of a frame advance by the same count, so a flow is solved once per count.
    served = list(map(served_tokens.get, share.requests, repeat(0)))
    flows = served_flows(served, interval_ms, rate, adaptation_ms)
    for request, (keep, gain) in zip(share.requests, map(flows.__getitem__, served), strict=True):
        account = request.account
        price = account.token_price
        if price is not None:
            price = price * keep + gain
            account.token_price = price if PRICE_FLOOR < price < PRICE_CEILING else clamped(price)


class LastInterval:
    """The last completed frame's interval, which publications of the same fence may still correct.

    The first one of a lane replaces the interval's zero deliveries by one; the correction never
    rewinds through a later interval, because the next completion replaces this object.
    """

    __slots__ = ("_corrected", "_flow", "fence", "interval_ms", "prices_before")

    def __init__(
        self,
        fence: Fence,
        interval_ms: float,
        flow: Flow | None,
        prices_before: Mapping[Request, float | None],
    ) -> None:
        self.fence = fence
        self.interval_ms = interval_ms
        """Zero when the frame had no device interval."""
        self.prices_before = prices_before
        """Delivery price before the interval, of each lane that committed a token."""
        self._flow = flow
        self._corrected: dict[Request, None] = {}

    def deliver(self, request: Request) -> None:
        """Count one delivery for a lane of `prices_before`, once."""
        if request in self._corrected or self.interval_ms <= 0.0:
            return
        self._corrected[request] = None
        before = self.prices_before[request]
        if before is None:
            # The first burst makes a history: one delivery per measured frame duration.
            request.delivery_price = clamped(self.interval_ms)
        elif self._flow is not None:
            keep, gain = self._flow
            price = before * keep + gain
            sane = PRICE_FLOOR < price < PRICE_CEILING
            request.delivery_price = price if sane else clamped(price)


def last_interval(
    fence: Fence,
    shares: Sequence[Share],
    prices_before: Mapping[Request, float | None],
    interval_ms: float,
    adaptation_ms: float,
) -> LastInterval:
    """Return the correctable interval of a frame; its decoders, if any, are the first share."""
    rate = shares[0].delivery_rate if shares else None
    flow = None
    if rate is not None and interval_ms > 0.0:
        flow = flow_over(1.0, interval_ms, rate, adaptation_ms)
    return LastInterval(fence, interval_ms, flow, prices_before)
