"""What exploration cost, by reason, against what the ledgers allow.

With O the ordinary time a ledger was credited and D its longest episode, what its closed episodes
took never exceeds `share * O + D`. Discovery has no ledger: it runs what nothing is known about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from helios.scheduler import SelectionReason
from scheduling_sim.run_log import RunLog

LEDGER_SHARES: Final[Mapping[SelectionReason, float]] = {
    SelectionReason.TIMING_REFRESH: 1 / 499,
    SelectionReason.ACCEPTANCE_LEARNING: 1 / 99,
}
"""The design's shares: 0.2 % and 1 % of ordinary and exploring time together."""


class Expense(NamedTuple):
    """The steps of one reason."""

    reason: SelectionReason
    steps: int
    device_ns: int
    share: float
    """Of the device time of all steps."""
    bound_ns: float | None
    """What its ledger allows; None for a reason without a ledger."""

    @property
    def is_within(self) -> bool | None:
        """Whether the bound holds; None without one."""
        return None if self.bound_ns is None else self.device_ns <= self.bound_ns


def expenses(
    log: RunLog, shares: Mapping[SelectionReason, float] = LEDGER_SHARES
) -> tuple[Expense, ...]:
    """Return what was spent for each reason that occurred, in the order of `SelectionReason`."""
    durations: dict[SelectionReason, list[int]] = {}
    for reason, device_ns in zip(log.steps.reasons, log.steps.device_ns, strict=True):
        durations.setdefault(reason, []).append(device_ns)
    total = sum(log.steps.device_ns)
    found = []
    for reason in SelectionReason:
        if reason not in durations:
            continue
        spent = durations[reason]
        account, bound = log.exploration.get(reason), None
        if account is not None and reason in shares:
            bound = shares[reason] * account.ordinary_ns + max(spent)
        share = sum(spent) / total if total else 0.0
        found.append(Expense(reason, len(spent), sum(spent), share, bound))
    return tuple(found)
