"""simulate: one policy on one workload and platform, through the production engine loop.

    next event (arrival, cancel, follower, frame end) -> clock -> commands -> one turn of the loop
Equal times are taken in that order, and within a kind in the order in which they became known.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

from helios.engine.admission import AdmissionRules
from helios.engine.core import STALLED_TURNS_LIMIT, EngineCore, StepOutcome
from helios.engine.messages import Cancel, ImageMessage, SamplingMessage, Submit
from helios.engine.ports import DecisionCore, Frame
from helios.scheduler import CalibrationReport, ExecutionCount, SelectionReason
from scheduling_sim import policies
from scheduling_sim.acceptance_model import AcceptanceModel
from scheduling_sim.checkers import Checker, Checks
from scheduling_sim.clock import VirtualClock
from scheduling_sim.copies import copying_of
from scheduling_sim.device import FrameTruth, SimulatedExecutor
from scheduling_sim.draws import Draws, SimulatedRequest
from scheduling_sim.faults import Faults, FaultSource
from scheduling_sim.observed import ObservedCore, Stopwatch, stopped
from scheduling_sim.platform import Platform
from scheduling_sim.recorder import Recorder
from scheduling_sim.run_log import RequestLog, RunLog, StepLog
from scheduling_sim.sink import SimulatedSink, detokenizer_of
from scheduling_sim.workload.content import END_TOKEN, VOCABULARY_SIZE, token_ids
from scheduling_sim.workload.records import Workload, WorkloadRequest

_SAMPLING: Final = SamplingMessage(temperature=0.0)
_NO_FAULTS: Final = Faults()
_USUAL_CHECKS: Final = Checks()


class Progress(NamedTuple):
    """How far a run has come."""

    now_ns: int
    """Virtual time."""
    arrived: int
    ended: int
    total: int
    """Requests of the workload."""
    frames: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that determines a run: equal setups have equal logs, real times apart."""

    platform: Platform
    workload: Workload
    policy: str = "helios"
    """Name in the registry of policies."""
    build: Callable[[Platform], DecisionCore] | None = None
    """Makes the decision core in the registry's place; `policy` is then only a title."""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Of the policy."""
    acceptance: AcceptanceModel | None = None
    """Needed as soon as a program proposes tokens."""
    faults: Faults = _NO_FAULTS
    seed: int = 0
    """Of the faults; workload, acceptance and noise have their own."""
    until_ns: int | None = None
    """Stop at this virtual time and leave the rest unfinished."""
    frame_limit: int | None = None
    """Stop after this many frames."""
    checks: Checks = _USUAL_CHECKS
    stopwatch: Stopwatch = stopped
    on_progress: Callable[[Progress], bool] | None = None
    """Returns whether to go on; without, the run stops and leaves the rest unfinished."""
    progress_every: int = 500
    """Turns between two calls."""


def simulate(setup: Setup) -> RunLog:
    """Run to the end, or to a stop condition, and return the log.

    Raises ValueError for a setup that cannot run, InvariantError when something happened that must
    not, LivelockError when the loop turns and nobody comes any further.
    """
    run = _Run(setup)
    run.loop()
    return run.log()


class _EventKind(enum.IntEnum):
    """What happens outside the engine, in the order in which equal times are taken."""

    ARRIVAL = 0
    CANCEL = 1
    FOLLOWER = 2


class _Event(NamedTuple):
    at_ns: int
    kind: _EventKind
    order: int
    """Makes the order total: nothing behind it is ever compared."""
    request: WorkloadRequest


@runtime_checkable
class _HasExecutions(Protocol):
    def executions(self) -> Mapping[SelectionReason, ExecutionCount]: ...


@runtime_checkable
class _HasCalibration(Protocol):
    def calibration(self) -> CalibrationReport: ...


@runtime_checkable
class _Foresees(Protocol):
    def foretell(self, output_tokens: int) -> None: ...


class _Run:
    """One run: the engine, the world around it, and what is still to happen."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._platform = platform = setup.faults.on_platform(setup.platform)
        self._clock = VirtualClock()
        self._steps = StepLog()
        self._logs: list[RequestLog] = []
        self._live: dict[str, SimulatedRequest] = {}
        self._events: list[_Event] = []
        self._known = 0
        self._ended = 0
        self._followers = _followers_of(setup.workload)
        self._policy = _policy_of(setup, platform)
        self._checker = Checker(setup.checks, platform.resources)
        depths = [graph.proposal_depth for graph in platform.catalog.graphs]
        draws = Draws(
            setup.acceptance,
            row_count=platform.resources.row_count,
            draft_capacity=max(depths),
        )
        self._recorder = Recorder(draws, self._checker, self._steps)
        self._executor = SimulatedExecutor(
            platform=platform,
            clock=self._clock,
            draws=draws,
            faults=FaultSource(setup.faults, setup.seed),
            on_frame=self._on_frame,
        )
        self._core = EngineCore(
            scheduler=ObservedCore(self._policy, self._recorder, setup.stopwatch),
            executor=self._executor,
            clock=self._clock,
            sink=SimulatedSink(self._clock, self._live, self._checker, self._on_end),
            detokenizers=detokenizer_of,
            rules=AdmissionRules(
                # A baseline may let pages grow where the platform reserves whole requests.
                resources=self._policy.resources,
                vocabulary_size=VOCABULARY_SIZE,
                eos_token_ids=(END_TOKEN,),
            ),
            copying=copying_of(platform.catalog, self._policy, setup.acceptance, self._live),
        )

    def loop(self) -> None:
        """Let everything happen that happens before the stop conditions."""
        for request in self._setup.workload.requests:
            if request.follows is None:
                self._expect(request.arrival_ns, _EventKind.ARRIVAL, request)
        turns, goes_on = 0, True
        while goes_on and self._advance():
            self._turn()
            turns += 1
            if turns % self._setup.progress_every == 0:
                goes_on = self._tell()
        self._tell()
        if not self._live and not self._executor.frames_in_flight:
            self._checker.check_end(self._policy)

    def log(self) -> RunLog:
        """Return what happened."""
        setup, core = self._setup, self._policy
        return RunLog(
            policy=_title(setup),
            platform=self._platform.name,
            workload=setup.workload,
            seed=setup.seed,
            graph_names=tuple(graph.name for graph in self._platform.catalog.graphs),
            requests=self._logs,
            steps=self._steps,
            ended_ns=self._clock.now_ns(),
            executions=core.executions() if isinstance(core, _HasExecutions) else {},
            exploration=core.exploration(),
            checkpoints=core.checkpoint_stats(),
            calibration=core.calibration() if isinstance(core, _HasCalibration) else None,
            preemptions=core.usage().preemptions,
            failed_frames=self._recorder.failed_frames,
        )

    # Time -----------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Move to the next event and pass it on; False when there is none within the limits."""
        limit = self._setup.frame_limit
        if limit is not None and len(self._steps.started_ns) >= limit:
            return False
        visible_ns, events = self._executor.next_visible_ns, self._events
        if visible_ns is None and not events:
            return False
        if visible_ns is None or (events and events[0].at_ns < visible_ns):
            next_ns = events[0].at_ns
        else:
            next_ns = visible_ns
        if self._setup.until_ns is not None and next_ns > self._setup.until_ns:
            self._clock.advance_to(max(self._clock.now_ns(), self._setup.until_ns))
            return False
        # The host may have been busy beyond the moment of an event: it sees it late.
        now_ns = max(self._clock.now_ns(), next_ns)
        self._clock.advance_to(now_ns)
        while events and events[0].at_ns <= now_ns:
            self._happen(heapq.heappop(events))
        return True

    def _turn(self) -> None:
        """Turn the loop, and again while it says that it may not wait."""
        stalls = 0
        while self._core.step() is StepOutcome.STALLED:
            stalls += 1
            if stalls >= STALLED_TURNS_LIMIT - 1:
                raise self._checker.stalled(self._clock.now_ns())
        self._checker.after_turn(self._policy, self._clock.now_ns())

    def _expect(self, at_ns: int, kind: _EventKind, request: WorkloadRequest) -> None:
        self._known += 1
        heapq.heappush(self._events, _Event(at_ns, kind, self._known, request))

    def _tell(self) -> bool:
        """Tell the progress; return whether to go on."""
        if self._setup.on_progress is None:
            return True
        total = len(self._setup.workload.requests)
        frames, now_ns = len(self._steps.started_ns), self._clock.now_ns()
        return self._setup.on_progress(
            Progress(now_ns, len(self._logs), self._ended, total, frames)
        )

    # Events ---------------------------------------------------------------------------------------

    def _happen(self, event: _Event) -> None:
        """Pass an event on to the engine."""
        request = event.request
        if event.kind is _EventKind.CANCEL:
            if request.request_id in self._live:
                self._core.handle(Cancel(request_id=request.request_id))
            return
        log = RequestLog(request=request, arrival_ns=event.at_ns)
        state = self._live[request.request_id] = SimulatedRequest(request, log)
        self._logs.append(log)
        if request.cancel_after_ns is not None:
            self._expect(event.at_ns + request.cancel_after_ns, _EventKind.CANCEL, request)
        self._recorder.incoming = state
        if isinstance(self._policy, _Foresees):
            self._policy.foretell(request.output.tokens)
        self._core.handle(_submit_of(request))
        self._recorder.incoming = None

    def _on_end(self, state: SimulatedRequest) -> None:
        """Let the followers of a request think; whatever ended it, its user goes on."""
        self._ended += 1
        self._recorder.on_departed(state)
        now_ns = self._clock.now_ns()
        for follower in self._followers.get(state.request.request_id, ()):
            self._expect(now_ns + follower.arrival_ns, _EventKind.FOLLOWER, follower)

    def _on_frame(self, frame: Frame, truth: FrameTruth) -> None:
        """Note a submitted frame, and let the client leave whom the faults chose."""
        self._recorder.on_frame(frame, truth)
        fault = truth.fault
        if fault.cancel_lane < 0.0:
            return
        lane = frame.lanes[int(fault.cancel_lane * len(frame.lanes))]
        state = self._live.get(lane.request_id)
        if state is not None:
            span_ns = truth.visible_ns - truth.submitted_ns
            at_ns = truth.submitted_ns + round(fault.cancel_moment * span_ns)
            self._expect(at_ns, _EventKind.CANCEL, state.request)


def _policy_of(setup: Setup, platform: Platform) -> DecisionCore:
    if setup.build is not None:
        return setup.build(platform)
    return policies.build(setup.policy, platform, **setup.options)


def _followers_of(workload: Workload) -> dict[str, list[WorkloadRequest]]:
    """Return who waits for whose end. Raises ValueError for a request that nobody precedes."""
    seen: set[str] = set()
    followers: dict[str, list[WorkloadRequest]] = {}
    for request in workload.requests:
        if request.request_id in seen:
            raise ValueError(f"{workload.name}: request {request.request_id} is there twice")
        if request.follows is not None:
            if request.follows not in seen:
                raise ValueError(
                    f"{workload.name}: request {request.request_id} follows {request.follows}, "
                    "which does not stand before it"
                )
            followers.setdefault(request.follows, []).append(request)
        seen.add(request.request_id)
    return followers


def _submit_of(request: WorkloadRequest) -> Submit:
    """Return the message that the request's client sends."""
    return Submit(
        request_id=request.request_id,
        prompt_token_ids=token_ids(request.prompt),
        max_output_tokens=request.max_output_tokens,
        sampling=_SAMPLING,
        weight=request.weight,
        tenant=request.tenant,
        endpoints=request.endpoints,
        boundaries=request.boundaries,
        keep_terminal=request.keep_terminal,
        images=tuple(
            ImageMessage(
                start=image.position,
                tokens=image.tokens,
                features=image.tokens,
                digest=image.content.to_bytes(8, "little"),
            )
            for image in request.images
        ),
    )


def _title(setup: Setup) -> str:
    """Return the policy's name with its options."""
    if not setup.options:
        return setup.policy
    options = ", ".join(f"{name}={value}" for name, value in setup.options.items())
    return f"{setup.policy}({options})"
