"""Exploration credit: what ordinary work pays for, in exact integers, and who is charged for what.

For every history, with O the credited ordinary time, P the time that closed episodes took and D the
time of the last of them, `P <= share*O + D`. An episode opens only on full credit, so everything
spent before it is covered by what was earned, and it is the single one that may overrun. Credit is
counted in units of ns/denominator, because the shares are not binary fractions: in floats the
moment of full credit would depend on how the same ordinary time was cut into frames.
"""

from __future__ import annotations

from typing import NamedTuple

from helios.scheduler.plan import SelectionReason
from helios.scheduler.units import NANOSECONDS_PER_MS

CAP_NS = 5_000_000
"""Most credit of either ledger, and what it takes to open an episode."""


class Share(NamedTuple):
    """The part of ordinary time that a ledger earns, as an exact fraction."""

    numerator: int
    denominator: int


TIMING_SHARE = Share(1, 499)
"""0.002/0.998: refreshes are 0.2 % of ordinary and refresh time together."""
LEARNING_SHARE = Share(1, 99)
"""0.01/0.99: acceptance probes are 1 % of ordinary and probe time together."""


class Ledger:
    """One account: ordinary time earns, an episode spends its actual duration when it closes."""

    __slots__ = (
        "_cap_units",
        "_units",
        "episode_ns",
        "is_open",
        "ordinary_ns",
        "share",
        "spent_ns",
    )

    def __init__(self, share: Share, cap_ns: int) -> None:
        assert share.numerator > 0, share
        assert share.denominator > 0, share
        assert cap_ns > 0, cap_ns
        self.share = share
        self._cap_units = cap_ns * share.denominator
        self._units = 0
        self.is_open = False
        """An episode has been submitted and has not ended."""
        self.ordinary_ns = 0
        """O: all ordinary time that was ever credited, the part above the cap included."""
        self.spent_ns = 0
        """P: time of all closed episodes."""
        self.episode_ns = 0
        """D: time of the last closed episode."""

    @property
    def is_full(self) -> bool:
        """An episode may open: the credit is at its cap and no episode is open."""
        return self._units == self._cap_units and not self.is_open

    @property
    def credit_ms(self) -> float:
        """The credit, negative when an episode overran it; for people and metrics only."""
        return self._units / (self.share.denominator * NANOSECONDS_PER_MS)

    def earn(self, duration_ns: int) -> None:
        """Credit ordinary time up to the cap."""
        assert duration_ns >= 0, duration_ns
        self.ordinary_ns += duration_ns
        self._units = min(self._units + duration_ns * self.share.numerator, self._cap_units)

    def open(self) -> None:
        """Begin an episode; nothing is spent until it closes."""
        assert self.is_full, self.credit_ms
        self.is_open = True

    def close(self, duration_ns: int) -> None:
        """End the episode and charge what it really took, into debt if need be."""
        assert self.is_open
        assert duration_ns >= 0, duration_ns
        self.is_open = False
        self.episode_ns = duration_ns
        self.spent_ns += duration_ns
        self._units -= duration_ns * self.share.denominator

    def discard(self) -> None:
        """Drop positive credit and keep a debt: an idle machine saves nothing up."""
        self._units = min(self._units, 0)

    def is_within_bound(self) -> bool:
        """Tell whether P <= share*O + D, without rounding."""
        over_ns = self.spent_ns - self.episode_ns
        return over_ns * self.share.denominator <= self.ordinary_ns * self.share.numerator


class Funds:
    """Both ledgers. At most one episode is open, and an execution is charged to one ledger at most.

    Initial discovery neither earns nor spends: it is accounted by its selection reason alone.
    """

    __slots__ = ("learning", "timing")

    def __init__(self) -> None:
        self.timing = Ledger(TIMING_SHARE, CAP_NS)
        self.learning = Ledger(LEARNING_SHARE, CAP_NS)

    def ledger_of(self, reason: SelectionReason) -> Ledger | None:
        """Return the ledger that pays for an execution of this reason; None when nobody does."""
        if reason is SelectionReason.TIMING_REFRESH:
            return self.timing
        return self.learning if reason is SelectionReason.ACCEPTANCE_LEARNING else None

    def can_open(self, reason: SelectionReason) -> bool:
        """Tell whether a probe of this reason is funded now and no other episode is open."""
        ledger = self.ledger_of(reason)
        is_idle = not (self.timing.is_open or self.learning.is_open)
        return ledger is not None and is_idle and ledger.is_full

    def open(self, reason: SelectionReason) -> None:
        """Begin the episode of a committed probe; other commits open nothing."""
        ledger = self.ledger_of(reason)
        if ledger is not None:
            assert self.can_open(reason), reason
            ledger.open()

    def settle(self, reason: SelectionReason, device_ns: int, charged_ns: int) -> None:
        """Take in a completed execution: ordinary work earns twice, a probe pays once.

        `device_ns` is its longest device interval, zero when its timing is invalid, and
        `charged_ns` the larger of that and the wall interval for an execution that was alone.
        """
        if reason is SelectionReason.ORDINARY:
            if device_ns > 0:
                self.timing.earn(charged_ns)
                self.learning.earn(charged_ns)
            return
        self.close(reason, charged_ns)

    def close(self, reason: SelectionReason, charged_ns: int) -> None:
        """End the episode of a probe that ran, or that the device could not run."""
        ledger = self.ledger_of(reason)
        if ledger is not None:
            ledger.close(charged_ns)

    def discard(self) -> None:
        """Drop what an idle machine has saved; debts stay."""
        self.timing.discard()
        self.learning.discard()
