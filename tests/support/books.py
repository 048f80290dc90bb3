"""Expense of probes against ordinary time, kept from what completions report."""

from __future__ import annotations

from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    GeneratedToken,
    SelectionReason,
)
from tests.support.world import Flight, Observer

PROBES = (SelectionReason.TIMING_REFRESH, SelectionReason.ACCEPTANCE_LEARNING)
SHARES = {
    SelectionReason.TIMING_REFRESH: (1, 499),
    SelectionReason.ACCEPTANCE_LEARNING: (1, 99),
}


class Books(Observer):
    """Checks both bounds exactly, at every completion; `ordinary_ns` was credited before."""

    def __init__(self, ordinary_ns: int = 0) -> None:
        self.ordinary_ns = ordinary_ns
        self.spent_ns = dict.fromkeys(PROBES, 0)
        self.episode_ns = dict.fromkeys(PROBES, 0)

    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None:
        device_ns = max(timing.device_ns, default=0)
        charged_ns = device_ns if flight.queued else max(device_ns, timing.wall_ns)
        assert not (flight.queued and flight.plan.reason in PROBES), "a probe was queued"
        self.charge(flight.plan.reason, device_ns, charged_ns)

    def charge(self, reason: SelectionReason, device_ns: int, charged_ns: int) -> None:
        """Enter one execution and compare expense with its bound."""
        if reason is SelectionReason.ORDINARY and device_ns > 0:
            self.ordinary_ns += charged_ns
        if reason in PROBES:
            self.spent_ns[reason] += charged_ns
            self.episode_ns[reason] = charged_ns
        for probe, (part, whole) in SHARES.items():
            over_ns = self.spent_ns[probe] - self.episode_ns[probe]
            assert over_ns * whole <= self.ordinary_ns * part, f"{probe.value} overspent"
