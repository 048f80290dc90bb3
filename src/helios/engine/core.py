"""EngineCore: one turn is collect, complete, publish, plan, commit, submit.

Invariants: at most two frames are in flight; a publication is reported for the fence whose
completion made the text visible, before the next completion; one request's fault ends that
request and nothing else.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final

from helios.engine.admission import AdmissionRules, InadmissibleError, accept, open_grammar
from helios.engine.batch import LaneOutputError, complete, frame_of
from helios.engine.flight import FeedbackWaits, Flight, Roster
from helios.engine.grammar import GrammarFactory
from helios.engine.messages import (
    Cancel,
    EngineCommand,
    EngineEvent,
    Rejected,
    StatsRequest,
    Submit,
)
from helios.engine.ports import (
    Clock,
    Copying,
    DecisionCore,
    DetokenizerFactory,
    Executor,
    FrameResult,
    TokenSink,
)
from helios.engine.publication import Publication, publish
from helios.engine.requests import LiveRequest
from helios.engine.stats import EngineStats, Usage
from helios.engine.trace import DecisionTrace, LaneTrace, Tracer, TraceSink, void_lane
from helios.scheduler import (
    CompletionError,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    Phase,
    QueueFullError,
    ScheduledPlan,
    SchedulerError,
    StalePlanError,
)

FRAMES_IN_FLIGHT: Final = 2
"""Frame slots of the transport."""
STALLED_TURNS_LIMIT: Final = 8
"""Turns in a row with requests, without a frame and without a plan, before the requests fail."""


class StepOutcome(enum.Enum):
    """What the host of the loop should wait for."""

    IDLE = "idle"
    """The next command: nothing is running."""
    RUNNING = "running"
    """The next finished frame or command."""
    STALLED = "stalled"
    """Nothing: requests exist and nothing is runnable; turn again, the watchdog counts."""
    DRAINED = "drained"
    """Nothing: the drain is complete."""


class EngineCore:
    """Drives the scheduler; time, execution and delivery come through the ports."""

    def __init__(
        self,
        *,
        scheduler: DecisionCore,
        executor: Executor,
        clock: Clock,
        sink: TokenSink,
        detokenizers: DetokenizerFactory,
        rules: AdmissionRules,
        trace: TraceSink | None = None,
        copying: Copying | None = None,
        grammars: GrammarFactory | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._sink = sink
        self._detokenizers = detokenizers
        self._rules = rules
        self._copying = copying
        self._grammars = grammars
        self._tracer = Tracer(trace)
        self._stats = EngineStats()
        self._roster = Roster()
        self._waits = FeedbackWaits()
        self._flights: deque[Flight] = deque()
        self._outbox: list[EngineEvent] = []
        self._next_fence = 1
        self._is_draining = False
        self._was_idle = True
        self._stalled_turns = 0

    def handle(self, command: EngineCommand) -> None:
        """Take one command; its events go out with the next `step`."""
        if isinstance(command, Submit):
            self._submit(command)
        elif isinstance(command, Cancel):
            request = self._roster.with_id(command.request_id)
            if request is not None:
                self._end_early(request, "cancelled", None)
        elif isinstance(command, StatsRequest):
            self._outbox.append(self._stats.snapshot(self._usage()))
        else:
            self._is_draining = True

    def step(self) -> StepOutcome:
        """Turn the loop once without waiting; say what to wait for."""
        while (result := self._executor.poll()) is not None:
            self._complete(result)
        while self._dispatch():
            pass
        outcome = self._outcome()
        self._flush()
        is_active = bool(self._roster) or bool(self._flights)
        self._stats.on_activity(is_active=is_active, now_ns=self._clock.now_ns())
        return outcome

    def _submit(self, request: Submit) -> None:
        """Admit a request, or reject it with the reason."""
        if self._is_draining:
            self._reject(request, "draining", "the server is shutting down", None)
            return
        if self._roster.with_id(request.request_id) is not None:
            self._reject(request, "invalid_request", "the id is in use", "request_id")
            return
        try:
            accepted = accept(request, self._rules)
            grammar = open_grammar(request, self._grammars)
            now_ns = self._advance()
            handle = self._scheduler.admit(accepted.spec)
        except InadmissibleError as error:
            self._reject(request, "invalid_request", str(error), error.param)
            return
        except QueueFullError as error:
            self._reject(request, "queue_full", str(error), None)
            return
        except SchedulerError as error:
            self._reject(request, "invalid_request", str(error), "prompt")
            return
        live = LiveRequest(
            request,
            accepted,
            handle,
            self._detokenizers,
            arrival_ns=now_ns,
            copying=self._copying,
            grammar=grammar,
        )
        self._roster.add(live)
        self._stats.on_submitted()
        self._stats.on_activity(is_active=True, now_ns=now_ns)
        self._tracer.on_arrival(request, live)

    def _reject(self, request: Submit, code: str, message: str, param: str | None) -> None:
        self._stats.on_rejected(code)
        self._outbox.append(
            Rejected(request_id=request.request_id, code=code, message=message, param=param)
        )

    def _end_early(self, request: LiveRequest, reason: str, error: str | None) -> None:
        """End a request now; what it owns comes back at its last fence.

        A waiting request owns nothing and is gone from the queue before its first dispatch.
        """
        self._advance()
        self._scheduler.cancel(request.handle)
        self._close(request, reason, error)

    def _close(self, request: LiveRequest, reason: str, error: str | None = None) -> None:
        """Take a request out of the roster with its closing event."""
        self._roster.remove(request)
        finished = request.finished(reason, error)
        self._outbox.append(finished)
        now_ns = self._clock.now_ns()
        self._stats.on_finished(request, reason, now_ns)
        self._tracer.on_finish(finished, at_ns=now_ns)

    def _complete(self, result: FrameResult) -> None:
        """Complete the oldest frame and publish what it made visible."""
        flight = self._flights.popleft()
        assert result.fence == flight.fence, f"frame {result.fence} finished before {flight.fence}"
        begun_ns = self._advance()
        error, generated = self._commit_outputs(flight, result, observed_ns=begun_ns)
        complete_ns = self._clock.now_ns() - begun_ns
        if error is None:
            self._stats.on_completed(flight, result, complete_ns=complete_ns)
            lanes = self._publish(flight, result, generated)
        else:
            self._stats.on_failed_frame(flight.plan)
            lanes = self._fail_frame(flight, error)
        self._tracer.on_frame(
            result,
            lanes,
            at_ns=begun_ns,
            complete_ns=complete_ns,
            follows_idle=flight.follows_idle,
            error=error,
        )

    def _commit_outputs(
        self, flight: Flight, result: FrameResult, *, observed_ns: int
    ) -> tuple[str | None, Sequence[GeneratedToken]]:
        """Complete the frame in the scheduler; return why it cannot, or the committed tokens."""
        if result.error is not None:
            return result.error, ()
        timing = ExecutionTiming(
            device_ns=(result.device_ns,),
            wall_ns=max(0, observed_ns - result.submitted_ns),
            readiness_ns=result.readiness_ns,
            feedback_ns=self._waits.wait_ns(flight, result.host_gap_ns),
        )
        try:
            return None, complete(self._scheduler, flight.plan, result, timing)
        except (LaneOutputError, CompletionError) as fault:
            # Both are raised before anything is changed, so the frame can still be failed.
            return str(fault), ()

    def _fail_frame(self, flight: Flight, error: str) -> list[LaneTrace]:
        """Void a frame: its requests end with the error, all others go on."""
        self._scheduler.fail(flight.fence)
        for request in flight.requests:
            if self._roster.with_handle(request.handle) is request:
                self._close(request, "error", f"{flight.plan.graph.name} failed: {error}")
        return [void_lane(request) for request in flight.requests if self._tracer.is_on]

    def _publish(
        self, flight: Flight, result: FrameResult, generated: Sequence[GeneratedToken]
    ) -> list[LaneTrace]:
        """Make a completed frame's output visible and report it for exactly its fence."""
        published = publish(flight, result, generated, self._roster, is_traced=self._tracer.is_on)
        self._stats.on_output_tokens(len(generated))
        for request in published.stopped:
            self._scheduler.finish(request.handle)
        self._outbox.extend(published.events)
        for request in published.ended:
            self._offer_terminal(request)
        for request in (*published.ended, *published.left):
            self._close_when_released(request)
        self._flush()
        self._report(flight, published)
        # Behind what these have shown before their fault.
        for request, fault in published.faults:
            self._end_early(request, "error", fault)
        if self._copying is not None:
            self._supply_copies(flight, self._copying)
        return published.lanes

    def _supply_copies(self, flight: Flight, copying: Copying) -> None:
        """Say what can be copied behind the pending tokens of a completed frame's streams.

        Where a stream's next frame is in flight, that is what the proposals leave behind all that
        it can commit: a single token, for a match that goes on is worth the wait for it and most
        of those that end at once are never waited for (decision 0023).
        """
        ahead = {
            step.handle: step.output_ceiling
            for queued in self._flights
            for step in queued.plan.steps
        }
        for request in flight.requests:
            if (
                self._roster.with_handle(request.handle) is request
                and self._scheduler.phase_of(request.handle) is Phase.DECODE
            ):
                left = len(request.proposal) - ahead.get(request.handle, 0)
                copying.supply(request.handle, max(0, left))

    def _offer_terminal(self, request: LiveRequest) -> None:
        """Offer the state at an answer's end, before the next plan may retire its row."""
        key = request.terminal_key()
        if key is not None and self._scheduler.phase_of(request.handle) is Phase.TERMINAL:
            self._scheduler.offer_terminal(request.handle, key)

    def _close_when_released(self, request: LiveRequest) -> None:
        """Close a request that owns nothing any more.

        A row that was retired may be that of a preempted request, whose response goes on.
        """
        if self._scheduler.phase_of(request.handle) is Phase.RELEASED:
            # A prompt that was only scored has no output that could have ended it.
            self._close(request, request.finish_reason or "length")

    def _report(self, flight: Flight, published: Publication) -> None:
        """Tell the scheduler what became visible; nothing has completed in between."""
        if not published.delivered:
            return
        now_ns = self._advance()
        for request, _ in published.delivered:
            self._scheduler.published_output(request.handle, flight.fence)
        self._stats.on_deliveries(published.delivered, now_ns=now_ns)
        if published.lanes:
            delivered = {request.request_id: None for request, _ in published.delivered}
            for lane in published.lanes:
                if lane.request_id in delivered:
                    lane.delivered_ns = now_ns

    def _dispatch(self) -> bool:
        """Plan, commit and submit one frame; return whether another may follow."""
        if len(self._flights) >= FRAMES_IN_FLIGHT or not self._roster:
            return False
        at_ns = self._advance()
        plan = self._scheduler.plan()
        plan_ns = self._clock.now_ns() - at_ns
        if plan is None:
            self._stats.on_planned(plan_ns=plan_ns, commit_ns=None)
            return False
        return self._commit_and_submit(plan, at_ns, plan_ns)

    def _commit_and_submit(self, plan: ScheduledPlan, at_ns: int, plan_ns: int) -> bool:
        """Commit a plan and hand its frame over; False when it is stale already."""
        fence = Fence(self._next_fence)
        # A commit that takes pages changes what candidates are made from; without growing requests
        # the device gets its frame before anybody explains it.
        decision = DecisionTrace(at_ns, plan_ns)
        takes_pages = self._scheduler.resources.page_growth
        if takes_pages:
            decision = self._decision_trace(decision)
        requests = self._requests_of(plan)
        front = self._flights[-1].plan if self._flights else None
        frame = frame_of(plan, fence, requests, front)
        begun_ns = self._clock.now_ns()
        try:
            self._scheduler.commit(plan, fence)
        except StalePlanError:
            # An estimate may pass its freshness between the two calls; the next turn replans.
            self._stats.on_planned(plan_ns=plan_ns, commit_ns=None)
            return False
        commit_ns = self._clock.now_ns() - begun_ns
        self._executor.submit(frame)
        self._next_fence += 1
        self._stats.on_planned(plan_ns=plan_ns, commit_ns=commit_ns)
        self._tracer.on_plan(
            plan,
            decision if takes_pages else self._decision_trace(decision),
            fence=fence,
            requests=requests,
            queued_frames=len(self._flights),
            commit_ns=commit_ns,
        )
        self._on_submitted(plan, fence, requests, at_ns=at_ns)
        return True

    def _decision_trace(self, decision: DecisionTrace) -> DecisionTrace:
        """Return what the trace tells of the decision; its candidates only when one is written."""
        if not self._tracer.is_on:
            return decision
        # Frames in flight and plans concern live requests only, and so do candidates.
        request_ids = {live.handle: live.request_id for live in self._roster.all()}
        candidates = self._scheduler.explain()
        return DecisionTrace(decision.at_ns, decision.plan_ns, candidates, request_ids)

    def _requests_of(self, plan: ScheduledPlan) -> tuple[LiveRequest, ...]:
        """Return the live request of every lane; the plan was made from live requests only."""
        return self._roster.with_handles([step.handle for step in plan.steps])

    def _on_submitted(
        self,
        plan: ScheduledPlan,
        fence: Fence,
        requests: tuple[LiveRequest, ...],
        *,
        at_ns: int,
    ) -> None:
        """Remember a submitted frame and who is served for the first time."""
        self._flights.append(
            Flight(
                fence=fence,
                plan=plan,
                requests=requests,
                follows_idle=self._was_idle,
                runs_ahead=bool(self._flights),
            )
        )
        self._was_idle = False
        for step, request in zip(plan.steps, requests, strict=True):
            if request.dispatched_ns is None:
                request.dispatched_ns = at_ns
                # Its first lane binds it, behind what a kept state already holds.
                request.cached_prompt_tokens = step.position
                self._stats.on_first_dispatch(request, at_ns)

    def _outcome(self) -> StepOutcome:
        """Say what to wait for, and end a standstill that nothing would ever end."""
        if self._flights:
            self._stalled_turns = 0
            return StepOutcome.RUNNING
        if self._roster:
            self._stalled_turns += 1
            if self._stalled_turns < STALLED_TURNS_LIMIT:
                return StepOutcome.STALLED
            self._stats.on_stall()
            for request in self._roster.all():
                self._end_early(request, "error", "no prepared program can advance this request")
        self._stalled_turns = 0
        self._was_idle = True
        return StepOutcome.DRAINED if self._is_draining else StepOutcome.IDLE

    def _usage(self) -> Usage:
        """Return the gauges of this moment."""
        return Usage(
            scheduler=self._scheduler.usage(),
            resources=self._scheduler.resources,
            checkpoints=self._scheduler.checkpoint_stats(),
            exploration=self._scheduler.exploration(),
            calibration=self._scheduler.calibration(),
            frames_in_flight=len(self._flights),
        )

    def _advance(self) -> int:
        """Tell the scheduler the time; return it."""
        now_ns = self._clock.now_ns()
        self._scheduler.advance_to(now_ns)
        return now_ns

    def _flush(self) -> None:
        """Hand every pending event to the sink in one call."""
        if self._outbox:
            events, self._outbox = self._outbox, []
            self._sink.emit(events)
