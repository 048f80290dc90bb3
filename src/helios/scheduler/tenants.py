"""Tenants: whose token price is shared, and whose turn it is to become resident.

One tenant with thirty requests must not get thirty shares. Its requests share one token coordinate
(`Account`), and a free row goes to the tenant that has been served least (`WaitingLines`). A
request without a tenant has an account of its own; in the line, all of them stand together in their
order of arrival (docs/design/scheduling-utility.md section 12, decision 0013).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from helios.scheduler.service import PRICE_CEILING


class Account:
    """A token coordinate: the price of one request, or of all requests of one tenant."""

    __slots__ = ("has_service", "is_shared", "token_price")

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        """It belongs to a tenant, so its price moves with the summed service of its members."""
        self.token_price: float | None = None
        """ms per token; None while no reference rate made it physical."""
        self.has_service = False
        """A member has been served a token, so the price rests on a history."""


def waiting_floor(
    waited_ms: float, *, machine_rate: float, prompts: int, adaptation_ms: float
) -> float:
    """Return the least token price of a tenant's prompt that got no token for `waited_ms`.

    A shared price says nothing about a member that never gets a turn, because the others keep it
    low. An own price would have grown to at least `waited_ms / (adaptation_ms * machine_rate)`
    tokens/ms by then; the tenant's prompts divide one such claim (section 12.6).
    """
    floor = waited_ms / adaptation_ms / machine_rate / prompts
    return floor if floor < PRICE_CEILING else PRICE_CEILING


class Waiter(Protocol):
    """What the line needs to know of a request."""

    @property
    def arrival(self) -> int:
        """Its place in the order of admission."""

    @property
    def tenant(self) -> str:
        """Its tenant; the empty string for none."""


W = TypeVar("W", bound=Waiter)
Ticket = tuple[float, int, str]
"""A tenant's place in the line: its service so far, the arrival of its first request, its name."""


class TenantLine(Generic[W]):
    """One active tenant: somebody of it waits or is resident."""

    __slots__ = ("account", "members", "name", "ticket", "total", "waiting")

    def __init__(self, name: str, total: float) -> None:
        self.name = name
        self.total = total
        """Tokens served to its resident requests, each divided by the request's weight."""
        self.members = 0
        """Requests that wait or are resident."""
        self.waiting: deque[W] = deque()
        self.ticket: Ticket | None = None
        """Its only valid entry in the order of turns; None while nobody waits."""
        self.account = Account(is_shared=True)


class WaitingLines(Generic[W]):
    """The requests without a row: one line per tenant, and the order of turns between tenants.

    A turn goes to the tenant with the least weighted service, then to the earlier first request.
    Within a tenant nothing is reordered: when its first request does not fit, its others wait too,
    but the other tenants do not.
    """

    __slots__ = ("_count", "_departed", "_lines", "_turns")

    def __init__(self) -> None:
        self._lines: dict[str, TenantLine[W]] = {}
        self._turns: list[Ticket] = []
        """A heap with exactly one valid ticket per tenant that waits; totals only grow, so a ticket
        whose total has passed is corrected when it comes up."""
        self._departed: dict[str, float] = {}
        """Totals of tenants that left with more service than an active tenant has."""
        self._count = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._count

    def __iter__(self) -> Iterator[W]:
        """Iterate over the requests that wait, tenant by tenant in the order they became active."""
        for line in self._lines.values():
            yield from line.waiting

    @property
    def tenants(self) -> int:
        """Active tenants, those without a name counted as one."""
        return len(self._lines)

    @property
    def has_tenants(self) -> bool:
        """Tell whether any active request has a tenant, so that token prices may be shared."""
        return len(self._lines) > ("" in self._lines)

    def total_of(self, tenant: str) -> float:
        """Return the weighted service of an active tenant, in tokens."""
        return self._lines[tenant].total

    def join(self, tenant: str) -> Account:
        """Count one more request of a tenant and return the account it is priced by.

        A newcomer starts at the smallest total of the active tenants; one that returns with more
        keeps what it had, so leaving for a moment is no way to be a newcomer.
        """
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = TenantLine(tenant, self._starting_total(tenant))
        line.members += 1
        return line.account if tenant else Account()

    def _starting_total(self, tenant: str) -> float:
        if not self._lines:
            self._departed.clear()
            return 0.0
        least = min(line.total for line in self._lines.values())
        return max(least, self._departed.pop(tenant, least))

    def leave(self, tenant: str) -> None:
        """Uncount a released request; the last one closes the tenant's account."""
        line = self._lines[tenant]
        line.members -= 1
        if line.members:
            return
        assert not line.waiting
        del self._lines[tenant]
        if not self._lines:
            self._departed.clear()
            return
        least = min(other.total for other in self._lines.values())
        if line.total > least:
            self._departed[tenant] = line.total
            if len(self._departed) > 2 * len(self._lines) + 64:
                self._forget_below(least)

    def _forget_below(self, least: float) -> None:
        """Forget who would start at the smallest active total anyway."""
        kept = {name: total for name, total in self._departed.items() if total > least}
        self._departed = kept

    def charge(self, tenant: str, tokens: int, weight: float) -> None:
        """Count service of a resident request of an active tenant."""
        self._lines[tenant].total += tokens / weight

    def append(self, waiter: W) -> None:
        """Put a request at the end of its tenant's line; its tenant has been joined."""
        line = self._lines[waiter.tenant]
        line.waiting.append(waiter)
        self._count += 1
        if line.ticket is None:
            self._issue(line)

    def push_front(self, waiter: W) -> None:
        """Put a preempted request at the head of its tenant's line."""
        line = self._lines[waiter.tenant]
        line.waiting.appendleft(waiter)
        self._count += 1
        self._issue(line)

    def remove(self, waiter: W) -> None:
        """Take a request out of its line. Raises ValueError when it does not wait."""
        line = self._lines[waiter.tenant]
        was_first = line.waiting[0] is waiter if line.waiting else False
        line.waiting.remove(waiter)
        self._count -= 1
        if was_first:
            self._issue(line)
        if len(self._turns) > 2 * len(self._lines) + 64:
            # Requests that give up while nobody can be seated leave void tickets behind.
            valid = [other.ticket for other in self._lines.values() if other.ticket is not None]
            heapq.heapify(valid)
            self._turns = valid

    def take(self, fits: Callable[[W], bool]) -> W | None:
        """Return, and take out, the next request in turn that fits; None when no first one does."""
        turns, skipped = self._turns, []
        taken = None
        while turns:
            ticket = heapq.heappop(turns)
            line = self._lines.get(ticket[2])
            if line is None or line.ticket is not ticket:
                continue
            if ticket[0] != line.total:
                self._issue(line)
            elif fits(line.waiting[0]):
                taken = line.waiting.popleft()
                self._count -= 1
                self._issue(line)
                break
            else:
                skipped.append(ticket)
        for ticket in skipped:
            heapq.heappush(turns, ticket)
        return taken

    def _issue(self, line: TenantLine[W]) -> None:
        """Replace a tenant's ticket; the old one is recognised as void when it comes up."""
        if not line.waiting:
            line.ticket = None
            return
        line.ticket = (line.total, line.waiting[0].arrival, line.name)
        heapq.heappush(self._turns, line.ticket)
