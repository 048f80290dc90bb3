"""ObservedCore: a decision core that tells a recorder what it decides; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from helios.engine.ports import DecisionCore, Sidecar
from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
)
from scheduling_sim.recorder import Recorder

Stopwatch = Callable[[], int]
"""Real monotonic ns; only measured decisions read it, never the virtual clock."""


def stopped() -> int:
    """Return zero: the stopwatch of a run whose decisions are not timed."""
    return 0


class ObservedCore:
    """Implements `helios.engine.ports.DecisionCore` by the core that it observes.

    What needs no observation is the core's own bound method, so that it costs nothing.
    """

    def __init__(self, core: DecisionCore, recorder: Recorder, stopwatch: Stopwatch) -> None:
        self._core: Final = core
        self._recorder: Final = recorder
        self._stopwatch: Final = stopwatch
        self.finish = core.finish
        self.offer_terminal = core.offer_terminal
        self.cancel = core.cancel
        self.advance_to = core.advance_to
        self.explain = core.explain
        self.phase_of = core.phase_of
        self.usage = core.usage
        self.checkpoint_stats = core.checkpoint_stats
        self.exploration = core.exploration
        self.calibration = core.calibration

    @property
    def resources(self) -> ResourceConfig:
        """The rows and pages that are handed out."""
        return self._core.resources

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Take in a request and let the recorder know its handle."""
        handle = self._core.admit(spec)
        self._recorder.on_admitted(handle)
        return handle

    def plan(self) -> ScheduledPlan | None:
        """Return the next frame; its time counts towards the next frame that is committed."""
        begun_ns = self._stopwatch()
        plan = self._core.plan()
        self._recorder.decision_ns += self._stopwatch() - begun_ns
        return plan

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit a plan."""
        begun_ns = self._stopwatch()
        self._core.commit(plan, fence)
        self._recorder.decision_ns += self._stopwatch() - begun_ns
        self._recorder.on_committed(plan, fence, self._core.usage())

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> Sequence[GeneratedToken]:
        """Take in the oldest frame."""
        begun_ns = self._stopwatch()
        generated = self._core.complete(fence, records, timing)
        return self._completed(fence, generated, begun_ns)

    def complete_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        survival: Sidecar,
    ) -> Sequence[GeneratedToken]:
        """Take in the oldest frame, which wrote survival."""
        begun_ns = self._stopwatch()
        generated = self._core.complete_with_survival(fence, records, timing, survival)
        return self._completed(fence, generated, begun_ns)

    def complete_packed_round(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
    ) -> Sequence[GeneratedToken]:
        """Take in the oldest frame, which reports confidence."""
        begun_ns = self._stopwatch()
        generated = self._core.complete_packed_round(fence, records, timing, confidence)
        return self._completed(fence, generated, begun_ns)

    def complete_packed_round_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
        survival: Sidecar,
    ) -> Sequence[GeneratedToken]:
        """Take in the oldest frame with both sidecars."""
        begun_ns = self._stopwatch()
        generated = self._core.complete_packed_round_with_survival(
            fence, records, timing, confidence, survival
        )
        return self._completed(fence, generated, begun_ns)

    def fail(self, fence: Fence) -> Sequence[RequestHandle]:
        """Drop the oldest frame."""
        begun_ns = self._stopwatch()
        dropped = self._core.fail(fence)
        self._recorder.on_failed(fence, self._stopwatch() - begun_ns)
        return dropped

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        """Report visible output."""
        self._core.published_output(handle, fence)
        self._recorder.on_published(handle, fence)

    def _completed(
        self, fence: Fence, generated: Sequence[GeneratedToken], begun_ns: int
    ) -> Sequence[GeneratedToken]:
        self._recorder.on_completed(fence, generated, self._stopwatch() - begun_ns)
        return generated
