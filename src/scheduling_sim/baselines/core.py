"""BaselineCore: what `EngineCore` drives in our scheduler's place; a policy chooses, this obeys.

The same life as in the production scheduler: admission, rows and pages, initialisation, prompt
chunks, output, retirement, up to two frames in flight. On a prepared catalog every state operation
is a frame; in free shape a request's end rides along in the next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from helios.scheduler import (
    CandidateScore,
    CheckpointStats,
    CompletionRecord,
    ExecutionTiming,
    ExplorationAccount,
    Fence,
    FenceError,
    GeneratedToken,
    GraphKind,
    MixedLane,
    MixedRole,
    Phase,
    PhaseError,
    QueueFullError,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
    StalePlanError,
    TimeError,
    Usage,
)
from scheduling_sim.baselines.completion import Frame, advance, check_records
from scheduling_sim.baselines.memory import Memory
from scheduling_sim.baselines.policy import Lane, Observer, Policy
from scheduling_sim.baselines.requests import Request, RequestTable
from scheduling_sim.baselines.seating import CoreView, fill, is_short
from scheduling_sim.baselines.shapes import Fit, Shapes

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
        grows = resources.page_growth if grows is None else grows
        self._policy = policy
        self._observer = observer
        self._shapes = shapes
        self._memory = Memory(resources, rows=shapes.rows, grows=grows, prefix_cache=prefix_cache)
        self._frames_limit = frames
        self._table = RequestTable()
        self._resident: dict[RequestHandle, Request] = {}
        """Requests with a row, longest resident first."""
        self._ended: dict[RequestHandle, Request] = {}
        """Residents that wait for their retirement."""
        self._unbound: dict[RequestHandle, Request] = {}
        """Residents whose rows no submitted frame has initialised."""
        self._frames: deque[Frame] = deque()
        self._widths: tuple[int, ...] = ()
        """Of the last plan that was made."""
        self._version = 0
        self._now_ns = 0
        self._last_fence = -1
        self._after_prompt = False
        self._foretold = 0
        self._preemptions = 0

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
        self._version += 1
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
        self._version += 1
        if request.phase is not Phase.TERMINAL or request.is_leaving:
            self._end(request)

    def cancel(self, handle: RequestHandle) -> None:
        """Drop a request; what it owns comes back after its last frame."""
        request = self._table.live(handle)
        self._version += 1
        self._drop(request)

    def terminal_endpoint(self, handle: RequestHandle) -> int:
        """Return the tokens in the state of an ended request."""
        request = self._ended_request(handle)
        return request.spec.prompt_tokens + max(0, request.output_count - 1)

    def offer_terminal(self, handle: RequestHandle, key: bytes) -> bool:
        """Offer the key of an ended request's state; the prefix cache keeps its whole pages."""
        request = self._ended_request(handle)
        is_kept = self._memory.remember(request, key, self.terminal_endpoint(handle))
        if self._shapes.is_free:
            self._leave(request)
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
        retiring = [r for r in self._ended.values() if r.in_flight == 0]
        if retiring and not self._shapes.is_free:
            return self._state_plan(GraphKind.TERMINAL, retiring)
        if not self._unbound:
            lanes = self._chosen()
            if not self._unbound:
                return self._step_plan(lanes, retiring) if lanes or retiring else None
        return self._state_plan(GraphKind.INITIALIZE, list(self._unbound.values()))

    def _chosen(self) -> list[Lane]:
        """Ask the policy; return the lanes that have rows and pages."""
        view = CoreView(
            self._now_ns,
            self._resident.values(),
            self._table.waiting,
            self._memory,
            self._shapes,
            after_prompt=self._after_prompt,
        )
        lanes = self._policy.choose(view)
        seats = [lane for lane in lanes if lane.request.row < 0]
        if seats and not self._shapes.is_free and self._seat(seats):
            return []
        residents = [lane for lane in lanes if lane.request.row >= 0]
        if not self._shapes.is_free and self._frames and is_short(residents, self._memory):
            # Rows of a prepared catalog keep their pages up to their last frame's end.
            return []
        filled, victims = fill(residents, self._resident.values(), self._memory, self._policy.rank)
        for victim in victims:
            self._preempt(victim)
        if self._shapes.is_free and not victims:
            filled += self._seat(seats)
        return filled

    def _seat(self, seats: Sequence[Lane]) -> list[Lane]:
        """Make waiting requests resident, in order, as long as rows and pages last."""
        seated: list[Lane] = []
        memory, is_free = self._memory, self._shapes.is_free
        for lane in seats:
            request = lane.request
            if memory.pages_to_seat(request, memory.hit(request)) > memory.pool.free:
                break
            memory.seat(request)
            self._table.leave_line(request)
            self._resident[request.handle] = request
            self._version += 1
            left = request.target - request.sent
            # A prepared row's prompt gets its pages at once: others are seated before it runs.
            chunk = min(lane.prompt_tokens, left) if is_free else left
            memory.grow(request, chunk)
            if self._observer is not None:
                self._observer.seated(request)
            request.phase = Phase.PREFILL if is_free else Phase.INITIALIZING
            if not is_free:
                self._unbound[request.handle] = request
            seated.append(Lane(request, chunk))
        return seated

    def _preempt(self, request: Request) -> None:
        """Take all pages of a resident; it waits again and recomputes what it had."""
        self._version += 1
        self._preemptions += 1
        if self._shapes.is_free:
            self._memory.give_row(request)
            del self._resident[request.handle]
            request.phase = Phase.WAITING
            self._table.wait_again(request)
        else:
            self._unbound.pop(request.handle, None)
            request.phase, request.is_leaving = Phase.TERMINAL, True
            self._ended[request.handle] = request

    def _state_plan(self, kind: GraphKind, requests: Sequence[Request]) -> ScheduledPlan:
        """Return the frame that binds or clears rows of as many requests as one graph holds."""
        fit = self._shapes.state_fit(kind, len(requests))
        steps = [
            ScheduledStep(request.handle, request.row, request.sent, 0, 0, request.pages_now())
            for request in requests[: fit.graph.batch_capacity]
        ]
        self._widths = (0,) * len(steps)
        return self._plan_of(fit, steps, prefill_row=-1)

    def _step_plan(self, lanes: Sequence[Lane], retiring: Sequence[Request]) -> ScheduledPlan:
        """Return the frame of an ordinary step; retirements ride along in free shape."""
        fit = self._shapes.fit(lanes)
        prefill_row, steps, widths = -1, [], []
        for place, lane in enumerate(lanes):
            if lane.prompt_tokens and len(lanes) > 1 and not self._shapes.is_free:
                prefill_row = place
            steps.append(self._step_of(lane, fit))
            widths.append(0 if lane.prompt_tokens else lane.width)
        for request in retiring:
            steps.append(ScheduledStep(request.handle, request.row, 0, 0, 0, (), is_retired=True))
            widths.append(0)
        self._widths = tuple(widths)
        return self._plan_of(fit, steps, prefill_row=prefill_row)

    def _step_of(self, lane: Lane, fit: Fit) -> ScheduledStep:
        request, chunk = lane.request, lane.prompt_tokens
        mixed = None
        if fit.graph.kind is GraphKind.MIXED:
            role = MixedRole.PROMPT if chunk else MixedRole.GENERATE
            mixed = MixedLane(role, self._shapes.mode)
        if chunk:
            ceiling = int(request.sent + chunk == request.target)
        else:
            ceiling = min(lane.width, request.outputs_left)
        return ScheduledStep(
            request.handle,
            request.row,
            request.position,
            chunk,
            ceiling,
            request.pages_now(),
            float(ceiling),
            mixed,
        )

    def _plan_of(
        self, fit: Fit, steps: Sequence[ScheduledStep], *, prefill_row: int
    ) -> ScheduledPlan:
        return ScheduledPlan(
            graph_index=fit.number,
            graph=fit.graph,
            steps=tuple(steps),
            estimated_duration_ns=0,
            reason=SelectionReason.ORDINARY,
            needs_empty_queue=False,
            epoch=self._version,
            value_rate=0.0,
            log_scale=0.0,
            prefill_row=prefill_row,
        )

    def explain(self) -> Sequence[CandidateScore]:
        """Return nothing: a baseline scores no candidates."""
        return ()

    # The frame protocol ---------------------------------------------------------------------------

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit the last plan. Raises FenceError or StalePlanError."""
        if fence <= self._last_fence:
            raise FenceError(f"fence {fence} is not above {self._last_fence}")
        if plan.epoch != self._version or len(self._frames) >= self._frames_limit:
            raise StalePlanError("the state changed after the plan was made")
        requests = tuple(self._table.live(step.handle) for step in plan.steps)
        self._last_fence = fence
        self._version += 1
        is_binding = plan.graph.kind is GraphKind.INITIALIZE
        consumed = False
        for step, request, width in zip(plan.steps, requests, self._widths, strict=True):
            request.in_flight += 1
            request.queued += step.output_ceiling
            request.is_wide |= width > 1
            if is_binding:
                del self._unbound[request.handle]
            if step.prompt_tokens:
                consumed = True
                before, request.sent = request.sent, request.sent + step.prompt_tokens
                self._memory.remember_prompt(request, before)
        if not is_binding and plan.graph.kind is not GraphKind.TERMINAL:
            self._after_prompt = consumed
        self._frames.append(Frame(fence, plan, requests, self._widths))

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Take in the oldest frame. Raises FenceError or CompletionError."""
        frame = self._head(fence)
        check_records(frame, records)
        self._version += 1
        self._frames.popleft()
        tokens, served, ended = advance(frame, records)
        for request in ended:
            self._end(request)
        is_terminal = frame.plan.graph.kind is GraphKind.TERMINAL
        for step, request in zip(frame.plan.steps, frame.requests, strict=True):
            if request.phase is Phase.DRAINING or is_terminal or step.is_retired:
                self._leave(request)
        if served and self._observer is not None:
            self._observer.served(served, max(timing.device_ns, default=0), self._now_ns)
        return tokens

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
        self._version += 1
        self._frames.popleft()
        dropped = []
        for step, request in zip(frame.plan.steps, frame.requests, strict=True):
            request.in_flight -= 1
            request.queued -= step.output_ceiling
            if request.phase is Phase.RELEASED:
                continue
            if request.phase is not Phase.DRAINING:
                dropped.append(request.handle)
            self._drop(request)
        return tuple(dropped)

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        """Note nothing: no baseline prices deliveries."""
        del fence
        self._table.live(handle)

    def _head(self, fence: Fence) -> Frame:
        if not self._frames or self._frames[0].fence != fence:
            raise FenceError(f"fence {fence} is not the oldest in flight")
        return self._frames[0]

    def _end(self, request: Request) -> None:
        """End a response: a prepared row keeps what it owns until its retirement.

        Free shape gives pages back at once, and releases at once unless a frame or the offer of
        the state is still to come.
        """
        is_free = self._shapes.is_free
        if request.phase is Phase.WAITING:
            self._table.leave_line(request)
            if request.in_flight == 0:
                self._table.release(request)
                return
            request.row = self._memory.take_row()
            self._resident[request.handle] = request
        elif is_free:
            self._memory.free_pages(request)
        self._unbound.pop(request.handle, None)
        request.phase, request.is_leaving = Phase.TERMINAL, False
        self._ended[request.handle] = request
        if is_free and self._memory.cache is None:
            self._leave(request)

    def _drop(self, request: Request) -> None:
        """Let a cancelled request go: at once, or after its last frame."""
        if request.phase is Phase.WAITING:
            self._table.leave_line(request)
            self._table.release(request)
            return
        self._unbound.pop(request.handle, None)
        self._ended.pop(request.handle, None)
        request.is_leaving = False
        request.phase = Phase.DRAINING
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """Give back the row of a request whose last frame is done; a preempted one waits again."""
        if request.in_flight or request.phase is Phase.RELEASED:
            return
        if request.pages:
            self._memory.free_pages(request)
        self._ended.pop(request.handle, None)
        del self._resident[request.handle]
        self._memory.give_row(request)
        if request.is_leaving:
            request.is_leaving = False
            request.phase = Phase.WAITING
            self._table.wait_again(request)
        else:
            self._table.release(request)

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
            rows_in_use=len(self._resident),
            waiting=len(self._table.waiting),
            resident=len(self._resident),
            in_flight=tuple(frame.fence for frame in self._frames),
            preemptions=self._preemptions,
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
