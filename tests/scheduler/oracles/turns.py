"""Turns between tenants, decided by looking at everybody every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from helios.scheduler.tenants import Waiter

W = TypeVar("W", bound=Waiter)


class PlainLines(Generic[W]):
    """Who waits in the order of a plain list, and every total that ever was."""

    def __init__(self) -> None:
        self.waiting: list[W] = []
        self.active: dict[str, float] = {}
        self.members: dict[str, int] = {}
        self.remembered: dict[str, float] = {}

    def join(self, tenant: str) -> None:
        if tenant not in self.active:
            if not self.active:
                self.remembered = {}
            least = min(self.active.values(), default=0.0)
            self.active[tenant] = max(least, self.remembered.get(tenant, 0.0))
        self.members[tenant] = self.members.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        self.members[tenant] -= 1
        if not self.members[tenant]:
            self.remembered[tenant] = self.active.pop(tenant)

    def charge(self, tenant: str, tokens: int, weight: float) -> None:
        self.active[tenant] += tokens / weight

    def first_of(self, tenant: str) -> W:
        return next(waiter for waiter in self.waiting if waiter.tenant == tenant)

    def take(self, fits: Callable[[W], bool]) -> W | None:
        firsts = [self.first_of(name) for name in {w.tenant: None for w in self.waiting}]
        firsts.sort(key=lambda waiter: (self.active[waiter.tenant], waiter.arrival))
        for waiter in firsts:
            if fits(waiter):
                self.waiting.remove(waiter)
                return waiter
        return None
