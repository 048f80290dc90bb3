"""Scheduler: the only object that changes state, through admit, commit, complete and their kin.

Every call validates everything before it changes anything; a call that raises has changed nothing.
`plan` is pure: it reads a projected view and returns an immutable decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from helios.scheduler.accounting import LastInterval, last_interval, settle
from helios.scheduler.catalog import Catalog, GraphKind
from helios.scheduler.completion import Outcome, apply_records, check_records, check_timing
from helios.scheduler.config import PolicyConfig, ResourceConfig
from helios.scheduler.cost import CostAges, CostTable, cost_sample_ns, device_interval_ns
from helios.scheduler.errors import (
    FenceError,
    InvalidRequestError,
    PhaseError,
    QueueFullError,
    StalePlanError,
    TimeError,
)
from helios.scheduler.lifecycle import Event, next_phase
from helios.scheduler.plan import CandidateScore, ScheduledPlan, ScheduledStep, SelectionReason
from helios.scheduler.policy import Decision, needs_empty_queue, reason_of, score_of, steps_of
from helios.scheduler.records import (
    CompletionRecord,
    ExecutionCount,
    ExecutionTiming,
    GeneratedToken,
    Phase,
    RequestHandle,
    RequestSpec,
    Usage,
)
from helios.scheduler.requests import NO_PAGES, Request, RequestTable
from helios.scheduler.resources import ResourcePool
from helios.scheduler.trace import PlanTrace, trace_of_plan
from helios.scheduler.units import Fence, ms_of
from helios.scheduler.utility import Shapes, View
from helios.scheduler.window import Frame, Standing, Window, projected_view


class Scheduler:
    """Chooses one prepared graph and its cohort at a time by expected value per execution time."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        resources: ResourceConfig,
        policy: PolicyConfig | None = None,
    ) -> None:
        self._catalog = catalog
        self._shapes = Shapes(catalog)
        self._pool = ResourcePool(resources)
        self._policy = PolicyConfig() if policy is None else policy
        self._costs = CostTable(catalog, ttl_ns=self._policy.estimate_ttl_ns)
        self._table = RequestTable()
        self._window = Window()
        self._now_ns = 0
        self._version = 0
        self._last_fence: Fence | None = None
        self._commits = 0
        self._interval: LastInterval | None = None
        self._decision: tuple[Decision, CostAges] | None = None
        self._standing: tuple[int, Standing | None] = (0, None)
        self._executions = dict.fromkeys(SelectionReason, ExecutionCount(0, 0))

    # Configuration and admission ------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The prepared graphs that are chosen from."""
        return self._catalog

    @property
    def resources(self) -> ResourceConfig:
        """The rows and pages that are handed out."""
        return self._pool.config

    @property
    def policy(self) -> PolicyConfig:
        """The preferences in force."""
        return self._policy

    def configure_policy(self, policy: PolicyConfig) -> None:
        """Replace the preferences. Raises PhaseError once a request has been admitted."""
        self._check_unused("configure_policy")
        self._policy = policy
        self._costs.ttl_ns = policy.estimate_ttl_ns

    def seed_costs(self, seeds: Mapping[str, int]) -> None:
        """Install durations (graph name -> ns) that an earlier process measured, as stale ones.

        Raises PhaseError once a request has been admitted, and InvalidCatalogError for an unknown
        graph or a duration that is not a positive integer.
        """
        self._check_unused("seed_costs")
        self._costs.seed(seeds)

    def _check_unused(self, call: str) -> None:
        if self._table.admitted:
            raise PhaseError(f"{call} is only legal before the first admission")

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Take in a request; it is resident at once when a row and all its pages are free.

        Raises InvalidRequestError for one that could never run, QueueFullError when the waiting
        line is full.
        """
        self._pool.check_possible(spec)
        if spec.scored and not self._shapes.by_kind[GraphKind.SCORED_PREFILL]:
            raise InvalidRequestError("scored: the catalog has no scored-prefill graph")
        limit = self.resources.waiting_limit
        if len(self._table.waiting) >= limit:
            raise QueueFullError(f"{limit} requests are waiting already")
        self._version += 1
        request = self._table.add(spec, self._version)
        self._seat_waiting()
        return request.handle

    def _seat_waiting(self) -> None:
        """Make requests resident in arrival order while the head of the line fits."""
        waiting, pool = self._table.waiting, self._pool
        while waiting and pool.can_reserve(pool.pages_of(waiting[0].spec)):
            request = waiting.popleft()
            request.row, request.pages = pool.reserve(pool.pages_of(request.spec))
            request.move(Event.SEAT, self._version)
            self._table.resident.append(request)

    # Endings that the host decides ----------------------------------------------------------------

    def finish(self, handle: RequestHandle) -> None:
        """End a decoding request that met a stop string; it now waits for its retirement.

        Tokens of frames still in flight are dropped. Raises UnknownHandleError or PhaseError.
        """
        request = self._table.live(handle)
        if next_phase(request.phase, Event.FINISH) is request.phase:
            return
        self._version += 1
        request.move(Event.FINISH, self._version)
        request.terminal_since_ns = self._now_ns

    def cancel(self, handle: RequestHandle) -> None:
        """Drop a request: a waiting one at once, a resident one after its last submitted frame.

        No graph is needed for it any more. Raises UnknownHandleError.
        """
        request = self._table.live(handle)
        if next_phase(request.phase, Event.CANCEL) is request.phase:
            return
        self._version += 1
        self._drop(request)
        self._seat_waiting()

    def _drop(self, request: Request) -> None:
        if request.phase is Phase.WAITING:
            self._table.waiting.remove(request)
            request.move(Event.CANCEL, self._version)
            self._table.free_slot(request)
            return
        request.move(Event.CANCEL, self._version)
        self._release_drained(request)

    def _release_drained(self, request: Request) -> None:
        if request.phase is Phase.DRAINING and request.queued == 0:
            self._release(request, Event.DRAINED)

    def _release(self, request: Request, event: Event) -> None:
        request.move(event, self._version)
        self._pool.release(request.row, request.pages)
        request.pages = NO_PAGES
        self._table.resident.remove(request)
        self._table.free_slot(request)

    # Time and planning ----------------------------------------------------------------------------

    def advance_to(self, now_ns: int) -> None:
        """Move the scheduler's time forward. Raises TimeError when it would run backwards."""
        if now_ns < self._now_ns:
            raise TimeError(f"time is at {self._now_ns} ns, it cannot go back to {now_ns} ns")
        self._now_ns = now_ns

    def _standing_now(self) -> Standing:
        """Return the standing of this state version, computed at most once."""
        version, standing = self._standing
        if standing is None or version != self._version:
            standing = Standing(self._shapes, self._costs.durations_ms, self._table.resident)
            self._standing = (self._version, standing)
        return standing

    def plan(self) -> ScheduledPlan | None:
        """Return the best next frame, or None: nothing to run, or completions must come first."""
        window, now_ns, costs = self._window, self._now_ns, self._costs
        if window.is_closed(now_ns):
            return None
        view = View(self._shapes, costs.durations_ms, self._policy, window.start_ns(now_ns))
        running = window.frames[0] if window.frames else None
        decision = Decision(projected_view(view, self._standing_now(), running))
        self._decision = (decision, costs.ages_at(now_ns))
        winner = decision.winner
        if winner is None:
            return None
        graph_index = winner.graph_index
        is_fresh = costs.is_fresh(graph_index, now_ns)
        needs_empty = needs_empty_queue(view, winner, is_fresh=is_fresh)
        if needs_empty and running is not None:
            # A lower-valued frame that could be queued now must not displace this winner.
            return None
        return ScheduledPlan(
            graph_index=graph_index,
            graph=self._catalog.graphs[graph_index],
            steps=steps_of(winner),
            estimated_duration_ns=costs.estimates_ns[graph_index],
            reason=reason_of(winner),
            needs_empty_queue=needs_empty,
            epoch=self._version,
            value_rate=-winner.negative_rate,
            log_scale=decision.units.log_scale,
            explanation=partial(score_of, decision, winner, self._decision[1], costs.ttl_ns),
        )

    def explain(self) -> tuple[CandidateScore, ...]:
        """Return the last decision's candidates with every term of their scores, best first."""
        if self._decision is None:
            return ()
        decision, ages = self._decision
        return tuple(
            score_of(decision, candidate, ages, self._costs.ttl_ns)
            for candidate in decision.ranked()
        )

    # The frame protocol ---------------------------------------------------------------------------

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        """Submit a plan under a new fence, without selecting again.

        Raises FenceError for a fence that does not increase, and StalePlanError when ownership,
        progress, freshness or the window no longer allow the plan.
        """
        if self._last_fence is not None and fence <= self._last_fence:
            raise FenceError(f"fence {fence} is not above {self._last_fence}")
        requests = [self._checked_lane(plan, step) for step in plan.steps]
        extendable = self._check_submittable(plan)
        queued = bool(self._window.frames)
        start_ns = self._window.start_ns(self._now_ns)
        standing = self._standing_now()

        shares = standing.shares(prompts_are_a_class=self._policy.prefill_balance > 0.0)
        standing.settle_arrivals(self._policy.arrival_shares)
        self._version += 1
        self._last_fence = fence
        self._commits += 1
        for request in requests:
            request.queued += 1
            request.last_used = self._commits
            request.epoch = self._version
        self._window.frames.append(
            Frame(
                fence,
                plan,
                requests,
                shares,
                committed_ns=self._now_ns,
                expected_end_ns=start_ns + plan.estimated_duration_ns,
                queued=queued,
                extendable=extendable,
            )
        )

    def _checked_lane(self, plan: ScheduledPlan, step: ScheduledStep) -> Request:
        request = self._table.find(step.handle)
        if request.epoch > plan.epoch:
            raise StalePlanError(f"{step.handle} changed since the plan was made")
        if request.pages is not step.pages or request.row != step.row:
            raise StalePlanError(f"{step.handle} does not own what the plan gives it")
        return request

    def _check_submittable(self, plan: ScheduledPlan) -> bool:
        """Return whether a further frame may be queued behind this one."""
        graphs = self._catalog.graphs
        if plan.epoch > self._version or graphs[plan.graph_index] is not plan.graph:
            raise StalePlanError("the plan was made by another scheduler")
        fresh = self._costs.is_fresh(plan.graph_index, self._now_ns)
        if self._window.frames:
            if self._window.is_closed(self._now_ns) or plan.needs_empty_queue:
                raise StalePlanError("the plan needs the completion of what is in flight")
            if not fresh:
                raise StalePlanError(f"the cost of {plan.graph.name} is no longer fresh")
        return fresh and plan.graph.kind is GraphKind.DECODE

    def _head(self, fence: Fence) -> Frame:
        frames = self._window.frames
        if not frames:
            raise FenceError(f"fence {fence} is not in flight; nothing is")
        if frames[0].fence != fence:
            raise FenceError(f"fence {fence} is not the oldest in flight, {frames[0].fence} is")
        return frames[0]

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        """Take in the oldest frame's outcome and return the tokens it committed.

        Call `advance_to` first: ages of new phases start at the scheduler's time. Raises FenceError
        or CompletionError.
        """
        frame = self._head(fence)
        check_timing(timing)
        check_records(frame, records)

        self._version += 1
        self._window.pop(self._now_ns)
        outcome = apply_records(frame, records, epoch=self._version, now_ns=self._now_ns)
        self._account(frame, timing, outcome)
        for request in frame.requests:
            if request.phase is Phase.DRAINING:
                self._release_drained(request)
            elif frame.plan.graph.kind is GraphKind.TERMINAL:
                self._release(request, Event.RETIRED)
        self._seat_waiting()
        return outcome.tokens

    def _account(self, frame: Frame, timing: ExecutionTiming, outcome: Outcome) -> None:
        """Charge the frame's interval to its participants and teach the cost table."""
        device_ns = device_interval_ns(timing)
        charged_ns = device_ns if frame.queued else max(device_ns, timing.wall_ns)
        interval_ms = ms_of(charged_ns) if device_ns > 0 else 0.0
        adaptation_ms = self._policy.adaptation_ms
        if interval_ms > 0.0:
            settle(frame.shares, outcome.served, interval_ms, adaptation_ms)
        self._interval = last_interval(
            frame.fence, frame.shares, outcome.prices_before, interval_ms, adaptation_ms
        )
        self._costs.observe(frame.plan.graph_index, cost_sample_ns(timing), self._now_ns)
        past = self._executions[frame.plan.reason]
        self._executions[frame.plan.reason] = ExecutionCount(
            past.count + 1, past.duration_ns + device_ns
        )

    def fail(self, fence: Fence) -> tuple[RequestHandle, ...]:
        """Drop the oldest frame, which the device could not execute, and every request in it.

        Nothing is learned. Returns the requests that this call cancelled. Raises FenceError.
        """
        frame = self._head(fence)
        self._version += 1
        self._window.pop(self._now_ns)
        dropped = []
        for request in frame.requests:
            request.queued -= 1
            if request.phase is not Phase.DRAINING:
                dropped.append(request.handle)
                request.move(Event.CANCEL, self._version)
            self._release_drained(request)
        self._interval = None
        self._seat_waiting()
        return tuple(dropped)

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        """Report that output which the last completed frame committed became visible now.

        The first report per lane replaces the frame's zero deliveries by one; later ones only move
        the output age. Raises UnknownHandleError, PhaseError, or FenceError for any other fence or
        a lane without a token in it.
        """
        request = self._table.live(handle)
        next_phase(request.phase, Event.PUBLISH)
        interval = self._interval
        if interval is None or interval.fence != fence:
            raise FenceError(f"fence {fence} is not the last completed one")
        if request not in interval.prices_before:
            raise FenceError(f"{handle} committed no token in fence {fence}")
        request.visible_ns = self._now_ns
        interval.deliver(request)

    # Views ----------------------------------------------------------------------------------------

    def phase_of(self, handle: RequestHandle) -> Phase:
        """Return where a request stands. Raises UnknownHandleError once its slot is reissued."""
        return self._table.find(handle).phase

    def output_count_of(self, handle: RequestHandle) -> int:
        """Return the committed output tokens of a request. Raises UnknownHandleError."""
        return self._table.find(handle).output_count

    def usage(self) -> Usage:
        """Return what is owned and what waits."""
        config = self._pool.config
        return Usage(
            pages_in_use=config.page_count - self._pool.pages_free,
            pages_free=self._pool.pages_free,
            rows_in_use=config.row_count - self._pool.rows_free,
            waiting=len(self._table.waiting),
            resident=len(self._table.resident),
            in_flight=tuple(frame.fence for frame in self._window.frames),
        )

    def executions(self) -> dict[SelectionReason, ExecutionCount]:
        """Return the completed frames and their device time by selection reason."""
        return dict(self._executions)

    def trace_of(self, fence: Fence) -> PlanTrace:
        """Return the trace of a plan in flight. Raises FenceError for any other fence."""
        for frame in self._window.frames:
            if frame.fence == fence:
                return trace_of_plan(
                    frame.plan,
                    fence=fence,
                    committed_ns=frame.committed_ns,
                    expected_end_ns=frame.expected_end_ns,
                    queued=frame.queued,
                )
        raise FenceError(f"fence {fence} is not in flight")
