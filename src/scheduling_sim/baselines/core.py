"""BaselineCore: what `EngineCore` drives in our scheduler's place; a policy chooses, this obeys.

The same life as in the production scheduler: admission, rows and pages, initialisation, prompt
chunks, output, retirement, up to two frames in flight. On a prepared catalog every state operation
is a frame; in free shape a request's end rides along in the next step.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence

from helios.scheduler import (
    CalibrationReport,
    CandidateScore,
    CheckpointStats,
    CompletionRecord,
    ExecutionTiming,
    ExplorationAccount,
    Fence,
    FenceError,
    GeneratedToken,
    GraphKind,
    Phase,
    PhaseError,
    QueueFullError,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
    SelectionReason,
    StalePlanError,
    TimeError,
    Usage,
)
from scheduling_sim.baselines.completion import Frame, advance, check_records
from scheduling_sim.baselines.memory import Memory
from scheduling_sim.baselines.plans import Draft, state_draft, step_draft
from scheduling_sim.baselines.policy import Lane, Observer, Policy
from scheduling_sim.baselines.requests import Request
from scheduling_sim.baselines.residents import Residents
from scheduling_sim.baselines.seating import CoreView, make_room
from scheduling_sim.baselines.shapes import Shapes

MAX_FRAMES = 2


class BaselineCore:
    """Drives one policy; implements `helios.engine.ports.DecisionCore`."""

    def __init__(
        self,
        policy: Policy,
        *,
        shapes: Shapes,
        resources: ResourceConfig,
        observer: Observer | None = None,
        frames: int = MAX_FRAMES,
        grows: bool | None = None,
        prefix_cache: bool = False,
    ) -> None:
        """Take a policy. `grows` overrides the page growth of the resources.

        `frames` is how many steps may be in flight; a prefix cache needs free shapes.
        """
        if not 1 <= frames <= MAX_FRAMES:
            raise ValueError(f"frames is {frames}: one or two can be in flight")
        if prefix_cache and not shapes.is_free:
            raise ValueError(
                "prefix_cache: prepared programs restore states by RESTORE graphs only"
            )
        if grows is not None:
            # Whoever asks shall see what is done: the host keeps outputs only where pages grow.
            resources = dataclasses.replace(resources, page_growth=grows)
        self._policy = policy
        self._observer = observer
        self._shapes = shapes
        memory = self._memory = Memory(resources, rows=shapes.rows, prefix_cache=prefix_cache)
        self._frames_limit = frames
        self._residents = Residents(memory, is_free=shapes.is_free, observer=observer)
        self._table = self._residents.table
        self._frames: deque[Frame] = deque()
        self._draft: Draft | None = None
        """The last plan that was made."""
        self._now_ns = 0
        self._last_fence = -1
        self._after_prompt = False
        self._foretold = 0

    # Admission and endings ------------------------------------------------------------------------

    @property
    def resources(self) -> ResourceConfig:
        """The rows and pages that are handed out."""
        return self._memory.resources

    def foretell(self, output_tokens: int) -> None:
        """Tell the true output length of the next request; only clairvoyant policies look at it."""
        self._foretold = output_tokens

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Take in a request. Raises InvalidRequestError or QueueFullError."""
        self._memory.check_possible(spec)
        limit = self.resources.waiting_limit
        if len(self._table.waiting) >= limit:
            raise QueueFullError(f"{limit} requests are waiting already")
        self._residents.version += 1
        request = self._table.add(spec, arrival_ns=self._now_ns, foretold=self._foretold)
        self._foretold = 0
        if self._observer is not None:
            self._observer.arrived(request, self._table.waiting)
        return request.handle

    def finish(self, handle: RequestHandle) -> None:
        """End a request that met a stop string; what is still in flight is dropped."""
        request = self._table.live(handle)
        if request.phase in (Phase.PREFILL, Phase.INITIALIZING) and not request.output_count:
            raise PhaseError(f"{handle} has produced nothing that could have ended it")
        if request.phase is Phase.WAITING and not request.output_count:
            raise PhaseError(f"{handle} waits")
        if request.phase is Phase.DRAINING:
            raise PhaseError(f"{handle} is cancelled")
        self._residents.version += 1
        if request.phase is not Phase.TERMINAL or request.is_leaving:
            self._residents.end(request)

    def cancel(self, handle: RequestHandle) -> None:
        """Drop a request; what it owns comes back after its last frame."""
        request = self._table.live(handle)
        self._residents.version += 1
        self._residents.drop(request)

    def terminal_endpoint(self, handle: RequestHandle) -> int:
        """Return the tokens in the state of an ended request."""
        request = self._ended_request(handle)
        return request.spec.prompt_tokens + max(0, request.output_count - 1)

    def offer_terminal(self, handle: RequestHandle, key: bytes) -> bool:
        """Offer the key of an ended request's state; the prefix cache keeps its whole pages."""
        request = self._ended_request(handle)
        is_kept = self._memory.remember(request, key, self.terminal_endpoint(handle))
        if self._shapes.is_free:
            self._residents.leave(request)
        return is_kept

    def _ended_request(self, handle: RequestHandle) -> Request:
        request = self._table.live(handle)
        if request.phase is not Phase.TERMINAL or request.is_leaving:
            raise PhaseError(f"{handle} is in phase {request.phase.name}, it has not ended")
        return request

    # Planning -------------------------------------------------------------------------------------

    def advance_to(self, now_ns: int) -> None:
        """Move time forward. Raises TimeError when it would run backwards."""
        if now_ns < self._now_ns:
            raise TimeError(f"time is at {self._now_ns} ns, it cannot go back to {now_ns} ns")
        self._now_ns = now_ns

    def plan(self) -> ScheduledPlan | None:
        """Return the next frame, or None.

        Pages are handed out and taken away here already, which a repeated call finds done.
        """
        if len(self._frames) >= self._frames_limit:
            return None
        self._draft = self._next_draft()
        return None if self._draft is None else self._draft.plan

    def _next_draft(self) -> Draft | None:
        """Return the state operation that is due, or the step that the policy chooses."""
        residents = self._residents
        retiring = [r for r in residents.ended.values() if r.in_flight == 0]
        if retiring and not self._shapes.is_free:
            return self._state_draft(GraphKind.TERMINAL, retiring)
        if not residents.unbound:
            lanes = self._chosen()
            if not residents.unbound:
                if not lanes and not retiring:
                    return None
                return step_draft(lanes, retiring, self._shapes, epoch=residents.version)
        return self._state_draft(GraphKind.INITIALIZE, list(residents.unbound.values()))

    def _state_draft(self, kind: GraphKind, requests: Sequence[Request]) -> Draft:
        fit = self._shapes.state_fit(kind, len(requests))
        return state_draft(fit, requests, epoch=self._residents.version)

    def _chosen(self) -> list[Lane]:
        """Ask the policy; return the lanes that have rows and pages."""
        view = CoreView(
            self._now_ns,
            self._residents.rows.values(),
            self._table.waiting,
            self._memory,
            self._shapes,
            after_prompt=self._after_prompt,
        )
        lanes = self._policy.choose(view)
        seats = [lane for lane in lanes if lane.request.row < 0]
        if seats and not self._shapes.is_free and self._residents.seat(seats):
            return []
        residents = [lane for lane in lanes if lane.request.row >= 0]
        needs = self._memory.needs(residents)
        if sum([count for _, count in needs]) <= self._memory.pool.free:
            for request, count in needs:
                self._memory.grow(request, count)
            return residents + self._residents.seat(seats) if seats else residents
        if not self._shapes.is_free and self._frames:
            # Rows of a prepared catalog keep their pages up to their last frame's end.
            return []
        filled, victims = make_room(
            residents, self._residents.rows.values(), self._memory, self._policy.rank
        )
        for victim in victims:
            self._residents.preempt(victim)
        return filled

    def explain(self) -> Sequence[CandidateScore]:
        """Return nothing: a baseline scores no candidates."""
        return ()

    # The frame protocol ---------------------------------------------------------------------------

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit the last plan. Raises FenceError or StalePlanError."""
        if fence <= self._last_fence:
            raise FenceError(f"fence {fence} is not above {self._last_fence}")
        draft = self._draft
        if (
            draft is None
            or plan.epoch != self._residents.version
            or len(self._frames) >= self._frames_limit
        ):
            raise StalePlanError("the state changed after the plan was made")
        requests = draft.requests
        self._last_fence = fence
        self._residents.version += 1
        is_binding = plan.graph.kind is GraphKind.INITIALIZE
        consumed = False
        for step, request, width in zip(plan.steps, requests, draft.widths, strict=True):
            request.in_flight += 1
            request.queued += step.output_ceiling
            request.is_wide |= width > 1
            if is_binding:
                del self._residents.unbound[request.handle]
            if step.prompt_tokens:
                consumed = True
                before, request.sent = request.sent, request.sent + step.prompt_tokens
                self._memory.remember_prompt(request, before)
        if not is_binding and plan.graph.kind is not GraphKind.TERMINAL:
            self._after_prompt = consumed
        self._frames.append(Frame(fence, plan, requests, draft.widths))

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Take in the oldest frame. Raises FenceError or CompletionError."""
        frame = self._head(fence)
        check_records(frame, records)
        self._residents.version += 1
        self._frames.popleft()
        outcome = advance(frame, records, is_observed=self._observer is not None)
        for request in outcome.ended:
            self._residents.end(request)
        for request in outcome.leaving:
            self._residents.leave(request)
        served = outcome.served
        if served and self._observer is not None:
            self._observer.served(served, max(timing.device_ns, default=0), self._now_ns)
        return outcome.tokens

    def complete_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        survival: object,
    ) -> list[GeneratedToken]:
        """Complete a program that also wrote survival, which baselines do not read."""
        del survival
        return self.complete(fence, records, timing)

    def complete_packed_round(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: object,
    ) -> list[GeneratedToken]:
        """Complete a program that reports confidence, which baselines do not read."""
        del confidence
        return self.complete(fence, records, timing)

    def complete_packed_round_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: object,
        survival: object,
    ) -> list[GeneratedToken]:
        """Complete a program with both sidecars, which baselines do not read."""
        del confidence, survival
        return self.complete(fence, records, timing)

    def fail(self, fence: Fence) -> tuple[RequestHandle, ...]:
        """Drop the oldest frame and every request in it. Raises FenceError."""
        frame = self._head(fence)
        self._residents.version += 1
        self._frames.popleft()
        dropped = []
        for step, request in zip(frame.plan.steps, frame.requests, strict=True):
            request.in_flight -= 1
            request.queued -= step.output_ceiling
            if request.phase is Phase.RELEASED:
                continue
            if request.phase is not Phase.DRAINING:
                dropped.append(request.handle)
            self._residents.drop(request)
        return tuple(dropped)

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        """Note nothing: no baseline prices deliveries."""
        # A free request may be released with its last token, before that token is reported.
        del handle, fence

    def _head(self, fence: Fence) -> Frame:
        if not self._frames or self._frames[0].fence != fence:
            raise FenceError(f"fence {fence} is not the oldest in flight")
        return self._frames[0]

    # Views ----------------------------------------------------------------------------------------

    def phase_of(self, handle: RequestHandle) -> Phase:
        """Return where a request stands. Raises UnknownHandleError once its slot is reissued."""
        return self._table.find(handle).phase

    def usage(self) -> Usage:
        """Return what is owned and what waits."""
        pool = self._memory.pool
        return Usage(
            pages_in_use=pool.count - pool.free,
            pages_free=pool.free,
            rows_in_use=len(self._residents.rows),
            waiting=len(self._table.waiting),
            resident=len(self._residents.rows),
            in_flight=tuple(frame.fence for frame in self._frames),
            preemptions=self._residents.preemptions,
        )

    def checkpoint_stats(self) -> CheckpointStats:
        """Return the counters of the prefix cache; zero without one."""
        cache = self._memory.cache
        return CheckpointStats(
            published=cache.entries if cache else 0,
            armed=0,
            snapshot_rows_free=0,
            pages_reclaimable=0,
            captures=cache.entries if cache else 0,
            skipped=0,
            evictions=0,
            hits=cache.hits if cache else 0,
            misses=cache.misses if cache else 0,
            restored_tokens=cache.restored_tokens if cache else 0,
        )

    def exploration(self) -> Mapping[SelectionReason, ExplorationAccount]:
        """Return nothing: a baseline explores on nobody's account."""
        return {}

    def calibration(self) -> CalibrationReport:
        """Return nothing: a baseline estimates no acceptance."""
        return CalibrationReport((), (), ())
