"""EngineCore on a virtual clock: every test of the loop is deterministic and takes no real time."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from helios.engine.admission import AdmissionRules
from helios.engine.core import EngineCore, StepOutcome
from helios.engine.grammar import GrammarFactory
from helios.engine.messages import (
    Delta,
    EngineEvent,
    Finished,
    SamplingMessage,
    Stats,
    StatsRequest,
    Submit,
)
from helios.engine.ports import (
    Copying,
    CopySource,
    DecisionCore,
    DetokenizerFactory,
    Frame,
    FrameResult,
    LaneOutput,
)
from helios.engine.queued_masks import bind_masks
from helios.engine.trace import TraceRecord
from helios.scheduler import GraphKind, PolicyConfig, Scheduler, SpeculationConfig
from tests.engine.folding import FoldingModel
from tests.runtime.counting import (
    EOS,
    VOCABULARY,
    CountingModel,
    alphabet_detokenizers,
)

STEP_NS = 1_000_000

Model = CountingModel | FoldingModel


class VirtualClock:
    def __init__(self) -> None:
        self.time_ns = 1_000_000_000

    def now_ns(self) -> int:
        return self.time_ns


class SimulatedExecutor:
    """Runs programs when their virtual time has come; two frames in flight."""

    def __init__(self, model: Model, clock: VirtualClock) -> None:
        self._model = model
        self._clock = clock
        self._frames: deque[tuple[Frame, int]] = deque()
        self._free_ns = 0
        self.submitted: list[Frame] = []
        self._front: tuple[Frame | None, tuple[LaneOutput, ...]] = (None, ())
        self.durations_ns: dict[str, int] = {}
        self.lost_ns: dict[str, int] = {}
        """Graph name -> how much of each of its replays others had the processors."""
        self.failing: dict[str, str] = {}
        """Graph name -> error of its next executions."""
        self.garbled: dict[str, tuple[LaneOutput, ...]] = {}
        """Graph name -> outputs to return instead."""
        self.faults: tuple[type[Exception], ...] = (RuntimeError, AssertionError)
        """What of a program's exceptions is the device's fault, not the test's."""
        self.on_void: Callable[[Frame], None] | None = None
        """Told of every frame that does not run."""

    def submit(self, frame: Frame) -> None:
        assert len(self._frames) < 2
        self._frames.append((frame, self._clock.now_ns()))
        self.submitted.append(frame)

    def next_finish_ns(self) -> int | None:
        if not self._frames:
            return None
        frame, submitted_ns = self._frames[0]
        name = self._model.catalog.graphs[frame.graph_index].name
        return max(self._free_ns, submitted_ns) + self.durations_ns.get(name, STEP_NS)

    def poll(self) -> FrameResult | None:
        finish_ns = self.next_finish_ns()
        if finish_ns is None or finish_ns > self._clock.now_ns():
            return None
        frame, submitted_ns = self._frames.popleft()
        name = self._model.catalog.graphs[frame.graph_index].name
        started_ns = max(self._free_ns, submitted_ns)
        lanes: tuple[LaneOutput, ...] = ()
        error = self.failing.get(name)
        program = self._model.programs[frame.graph_index]
        if error is not None and self.on_void is not None:
            self.on_void(frame)
        if error is None:
            try:
                frame = bind_masks(frame, *self._front)
                program.load(frame)
                program.replay()
                lanes = program.read(frame)
            except self.faults as fault:
                error = str(fault)
        lanes = self.garbled.get(name, lanes)
        self._front = (frame, lanes)
        gap_ns = started_ns - self._free_ns if self._free_ns else 0
        self._free_ns = finish_ns
        return FrameResult(
            fence=frame.fence,
            lanes=lanes,
            device_ns=finish_ns - started_ns if error is None else 0,
            submitted_ns=submitted_ns,
            started_ns=started_ns,
            finished_ns=finish_ns,
            host_gap_ns=gap_ns,
            readiness_ns=self.lost_ns.get(name, 0) if error is None else 0,
            error=error,
            confidence=getattr(program, "confidence", None),
            survival=getattr(program, "survival", None),
        )

    def wait(self, timeout_ns: int) -> FrameResult | None:
        return self.poll()

    def close(self) -> None:
        assert not self._frames


class World:
    """A core with everything around it simulated; is its own sink and trace."""

    def __init__(
        self,
        *,
        model: Model | None = None,
        waiting_limit: int = 1024,
        policy: PolicyConfig | None = None,
        detokenizers: DetokenizerFactory | None = None,
        traced: bool = False,
        speculation: SpeculationConfig | None = None,
        copies: Callable[[str, np.ndarray], CopySource] | None = None,
        grammars: GrammarFactory | None = None,
        rules: AdmissionRules | None = None,
        wrap: Callable[[Scheduler], DecisionCore] = lambda scheduler: scheduler,
    ) -> None:
        self.model: Model = model or CountingModel()
        self.clock = VirtualClock()
        self.executor = SimulatedExecutor(self.model, self.clock)
        if isinstance(self.model, FoldingModel):
            self.executor.faults = (RuntimeError,)
            self.executor.on_void = self.model.void
        self.events: list[EngineEvent] = []
        self.batches: list[list[EngineEvent]] = []
        self.records: list[TraceRecord] = []
        resources = self.model.resources
        resources = dataclasses.replace(resources, waiting_limit=waiting_limit)
        self.scheduler = Scheduler(
            catalog=self.model.catalog,
            resources=resources,
            policy=policy or PolicyConfig(),
            speculation=speculation,
        )
        self.core = EngineCore(
            scheduler=wrap(self.scheduler),
            executor=self.executor,
            clock=self.clock,
            sink=self,
            detokenizers=detokenizers or alphabet_detokenizers(),
            rules=rules
            or AdmissionRules(
                resources=resources, vocabulary_size=VOCABULARY, eos_token_ids=(EOS,)
            ),
            trace=self if traced else None,
            copying=Copying(copies, self.scheduler.supply_copies) if copies else None,
            grammars=grammars,
        )

    def emit(self, events: Sequence[EngineEvent]) -> None:
        self.events.extend(events)
        self.batches.append(list(events))

    def write(self, record: TraceRecord) -> None:
        self.records.append(record)

    def turn(self) -> StepOutcome:
        """One step, then the clock moves to the next finished frame."""
        outcome = self.core.step()
        finish_ns = self.executor.next_finish_ns()
        if finish_ns is not None:
            self.clock.time_ns = max(self.clock.time_ns, finish_ns)
        return outcome

    def run(self, *, turns: int = 10_000) -> StepOutcome:
        """Turn until nothing is running."""
        for _ in range(turns):
            outcome = self.turn()
            if outcome in (StepOutcome.IDLE, StepOutcome.DRAINED):
                return outcome
        raise AssertionError(f"still {outcome} after {turns} turns")

    def run_until_in_flight(self, kind: GraphKind, count: int = 1) -> None:
        """Step until `count` frames of this kind are in flight, without finishing the last."""
        for _ in range(1000):
            self.core.step()
            frames = [frame for frame, _ in self.executor._frames]
            kinds = [self.model.catalog.graphs[frame.graph_index].kind for frame in frames]
            if kinds.count(kind) >= count:
                return
            finish_ns = self.executor.next_finish_ns()
            assert finish_ns is not None, f"no {count} frames of {kind.name} in flight"
            self.clock.time_ns = max(self.clock.time_ns, finish_ns)
        raise AssertionError(f"no {count} frames of {kind.name} in flight")

    def of(self, request_id: str) -> list[EngineEvent]:
        return [e for e in self.events if getattr(e, "request_id", None) == request_id]

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.of(request_id) if isinstance(e, Delta))

    def tokens(self, request_id: str) -> tuple[int, ...]:
        deltas = [e for e in self.of(request_id) if isinstance(e, Delta)]
        return tuple(token for delta in deltas for token in delta.token_ids)

    def finished(self, request_id: str) -> Finished:
        last = self.of(request_id)[-1]
        assert isinstance(last, Finished), last
        return last

    def stats(self) -> Stats:
        self.core.handle(StatsRequest())
        self.core.step()
        last = self.events[-1]
        assert isinstance(last, Stats)
        return last

    def assert_everything_is_back(self) -> None:
        gauges = self.stats().gauges
        assert gauges["flare_pages_used"] == 0
        assert gauges["flare_rows_used"] == 0
        assert gauges["flare_requests_waiting"] == 0
        assert gauges["flare_requests_resident"] == 0
        assert gauges["flare_frames_in_flight"] == 0


def request(
    request_id: str = "a",
    prompt: Sequence[int] = (1, 2, 3),
    max_output_tokens: int = 8,
    **fields: object,
) -> Submit:
    """A greedy request; sampling fields may be given by `sampling`."""
    fields.setdefault("sampling", SamplingMessage(temperature=0.0))
    return Submit(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        max_output_tokens=max_output_tokens,
        **fields,  # type: ignore[arg-type]
    )
