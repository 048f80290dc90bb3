"""Recorder: fills the log of a run from what the loop decides, runs, commits and delivers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from helios.engine.ports import Frame
from helios.scheduler import (
    Fence,
    GeneratedToken,
    GraphKind,
    RequestHandle,
    ScheduledPlan,
    Usage,
)
from scheduling_sim.checkers import Checker
from scheduling_sim.device import FrameTruth
from scheduling_sim.draws import Draws, SimulatedRequest
from scheduling_sim.run_log import StepLog


class _Pending:
    """A committed frame that has not completed."""

    __slots__ = ("decision_ns", "fence", "pages_used", "plan", "truth", "waiting")

    def __init__(self, plan: ScheduledPlan, fence: Fence, usage: Usage, decision_ns: int) -> None:
        self.plan = plan
        self.fence = fence
        self.pages_used = usage.pages_in_use
        self.waiting = usage.waiting
        self.decision_ns = decision_ns
        self.truth: FrameTruth | None = None


class Recorder:
    """Hears of every decision and every frame; the requests' logs and the steps are its result."""

    def __init__(self, draws: Draws, checker: Checker, steps: StepLog) -> None:
        self.decision_ns = 0
        """Real time of decisions since the last commit."""
        self.failed_frames = 0
        self.incoming: SimulatedRequest | None = None
        """The request that is being submitted."""
        self._draws = draws
        self._checker = checker
        self._steps = steps
        self._last_fence = Fence(0)
        self._departed: deque[tuple[Fence, RequestHandle]] = deque()
        self._pending: deque[_Pending] = deque()

    def on_admitted(self, handle: RequestHandle) -> None:
        """Connect a handle with the request that it was given to."""
        assert self.incoming is not None, "the simulation names every request before it submits it"
        self._draws.requests[handle] = self.incoming
        self.incoming.handle = handle
        self._checker.on_admitted(handle, self.incoming)

    def on_committed(self, plan: ScheduledPlan, fence: Fence, usage: Usage) -> None:
        """Remember a frame, and who is served by it for the first time."""
        self._pending.append(_Pending(plan, fence, usage, self.decision_ns))
        self.decision_ns = 0
        self._last_fence = fence
        self._checker.on_committed(plan, fence, usage)

    def on_frame(self, frame: Frame, truth: FrameTruth) -> None:
        """Note when a submitted frame runs."""
        pending = self._pending[-1]
        assert pending.fence == frame.fence, "a frame is submitted right after its commit"
        pending.truth = truth
        if pending.plan.graph.kind is GraphKind.DECODE:
            return
        for lane in frame.lanes:
            log = self._draws.requests[lane.handle].log
            if log.dispatched_ns is None:
                log.dispatched_ns = truth.submitted_ns

    def on_completed(
        self, fence: Fence, generated: Sequence[GeneratedToken], decision_ns: int
    ) -> None:
        """Log a frame that ran, and the prompt tokens that it consumed."""
        pending = self._pending.popleft()
        assert pending.fence == fence, "frames complete in the order of their fences"
        plan = pending.plan
        useful = len(generated)
        if plan.graph.kind is not GraphKind.DECODE:
            useful += self._note_prompts(pending)
        self._checker.on_completed(plan, fence, generated)
        self._append(pending, useful, decision_ns)
        self._forget(fence)

    def on_failed(self, fence: Fence, decision_ns: int) -> None:
        """Log a frame whose outputs are void."""
        pending = self._pending.popleft()
        assert pending.fence == fence, "frames complete in the order of their fences"
        self.failed_frames += 1
        self._checker.on_failed(fence)
        self._append(pending, 0, decision_ns)
        self._forget(fence)

    def on_published(self, handle: RequestHandle, fence: Fence) -> None:
        """Pass a delivery on to the checker."""
        self._checker.on_published(handle, fence)

    def on_departed(self, state: SimulatedRequest) -> None:
        """Forget a request whose response is complete after the last frame that may serve it."""
        if state.handle is None:
            return
        self._departed.append((self._last_fence, state.handle))
        if not self._pending:
            self._forget(self._last_fence)

    def _forget(self, fence: Fence) -> None:
        """Forget the departed requests that no frame behind this one serves."""
        while self._departed and self._departed[0][0] <= fence:
            _, handle = self._departed.popleft()
            del self._draws.requests[handle]
            self._checker.on_departed(handle)

    def _note_prompts(self, pending: _Pending) -> int:
        """Log who consumed prompt tokens in a frame; return how many there were."""
        truth, total = pending.truth, 0
        assert truth is not None
        end_ns = truth.started_ns + truth.device_ns
        for step in pending.plan.steps:
            tokens = step.prompt_tokens
            if tokens:
                total += tokens
                log = self._draws.requests[step.handle].log
                log.prompt_ns.append(end_ns)
                log.prompt_tokens.append(tokens)
        return total

    def _append(self, pending: _Pending, useful: int, decision_ns: int) -> None:
        """Add one line to the steps."""
        truth, steps = pending.truth, self._steps
        assert truth is not None, "a frame completes after it was submitted"
        steps.started_ns.append(truth.started_ns)
        steps.device_ns.append(truth.device_ns)
        steps.predicted_ns.append(pending.plan.estimated_duration_ns)
        steps.graph_index.append(truth.graph_index)
        steps.lanes.append(truth.lanes)
        steps.useful_rows.append(useful)
        steps.physical_rows.append(truth.physical_rows)
        steps.offered.append(truth.offered)
        steps.accepted.append(truth.accepted)
        steps.decision_ns.append(pending.decision_ns + decision_ns)
        steps.pages_used.append(pending.pages_used)
        steps.waiting.append(pending.waiting)
        steps.reasons.append(pending.plan.reason)
