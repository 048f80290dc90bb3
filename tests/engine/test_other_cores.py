"""The loop asks no more of a core than its protocol: one that has no state operations is served."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from helios.engine.admission import AdmissionRules
from helios.engine.core import EngineCore, StepOutcome
from helios.engine.messages import Cancel, Delta, EngineEvent, Finished, Stats, StatsRequest
from helios.engine.ports import DecisionCore, Frame, FrameResult, LaneOutput, Sidecar
from helios.scheduler import (
    CalibrationReport,
    CandidateScore,
    CheckpointStats,
    CompletionRecord,
    ExecutionTiming,
    ExplorationAccount,
    Fence,
    GeneratedToken,
    GraphDescriptor,
    GraphKind,
    Phase,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
    Usage,
)
from tests.engine.world import VirtualClock, request
from tests.runtime.counting import alphabet_detokenizers

RESOURCES = ResourceConfig(row_count=4, page_count=8, page_size_tokens=16, context_length_tokens=64)


class InOrder:
    """First come, first served, one request at a time; it releases with the last token."""

    resources = RESOURCES

    def __init__(self) -> None:
        self.specs: list[RequestSpec] = []
        self.outputs: list[int] = []
        self.gone: set[int] = set()
        self.frames: deque[tuple[Fence, ScheduledPlan]] = deque()
        self.reports: list[tuple[int, int]] = []

    def admit(self, spec: RequestSpec) -> RequestHandle:
        self.specs.append(spec)
        self.outputs.append(0)
        return RequestHandle(len(self.specs) - 1, 0)

    def finish(self, handle: RequestHandle) -> None:
        self.gone.add(handle.slot)

    cancel = finish

    def offer_terminal(self, handle: RequestHandle, key: bytes) -> bool:
        raise AssertionError("nothing is left of a request that was released")

    def advance_to(self, now_ns: int) -> None:
        assert now_ns >= 0

    def plan(self) -> ScheduledPlan | None:
        slots = [slot for slot in range(len(self.specs)) if slot not in self.gone]
        if not slots or self.frames:
            return None
        slot, fresh = slots[0], self.outputs[slots[0]] == 0
        prompt = self.specs[slot].prompt_tokens
        kind = GraphKind.PREFILL if fresh else GraphKind.DECODE
        graph = GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=prompt if fresh else 1)
        step = ScheduledStep(
            RequestHandle(slot, 0), 0, 0 if fresh else prompt, prompt if fresh else 0, 1, ()
        )
        return ScheduledPlan(-1, graph, (step,), 0, SelectionReason.ORDINARY, True, 0, 0.0, 0.0)

    def explain(self) -> Sequence[CandidateScore]:
        return ()

    def commit(self, plan: ScheduledPlan, fence: Fence) -> None:
        self.frames.append((fence, plan))

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> Sequence[GeneratedToken]:
        assert self.frames.popleft()[0] == fence
        (record,) = records
        slot = record.handle.slot
        if slot in self.gone:
            return []
        index = self.outputs[slot]
        self.outputs[slot] += 1
        is_last = self.outputs[slot] == self.specs[slot].max_output_tokens
        if is_last:
            self.gone.add(slot)
        return [GeneratedToken(record.handle, record.tokens[0], index, fence, is_last)]

    def complete_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        survival: Sidecar,
    ) -> Sequence[GeneratedToken]:
        return self.complete(fence, records, timing)

    def complete_packed_round(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
    ) -> Sequence[GeneratedToken]:
        return self.complete(fence, records, timing)

    def complete_packed_round_with_survival(
        self,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        confidence: Sidecar,
        survival: Sidecar,
    ) -> Sequence[GeneratedToken]:
        return self.complete(fence, records, timing)

    def fail(self, fence: Fence) -> Sequence[RequestHandle]:
        _, plan = self.frames.popleft()
        self.gone.update(step.handle.slot for step in plan.steps)
        return [step.handle for step in plan.steps]

    def published_output(self, handle: RequestHandle, fence: Fence) -> None:
        self.reports.append((handle.slot, fence))

    def phase_of(self, handle: RequestHandle) -> Phase:
        return Phase.RELEASED if handle.slot in self.gone else Phase.DECODE

    def usage(self) -> Usage:
        return Usage(0, 8, 0, 0, 0, tuple(fence for fence, _ in self.frames))

    def checkpoint_stats(self) -> CheckpointStats:
        return CheckpointStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def exploration(self) -> Mapping[SelectionReason, ExplorationAccount]:
        return {}

    def calibration(self) -> CalibrationReport:
        return CalibrationReport((), (), ())


class Letters:
    """Answers every frame with the letter c; its own sink."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.events: list[EngineEvent] = []
        self.error: str | None = None

    def submit(self, frame: Frame) -> None:
        self.frames.append(frame)

    def poll(self) -> FrameResult | None:
        if not self.frames:
            return None
        frame = self.frames.popleft()
        return FrameResult(
            fence=frame.fence,
            lanes=tuple(LaneOutput(tokens=(2,)) for _ in frame.lanes),
            device_ns=1,
            submitted_ns=0,
            started_ns=0,
            finished_ns=1,
            error=self.error,
        )

    def wait(self, timeout_ns: int) -> FrameResult | None:
        return self.poll()

    def close(self) -> None:
        assert not self.frames

    def emit(self, events: Sequence[EngineEvent]) -> None:
        self.events.extend(events)


def loop() -> tuple[EngineCore, InOrder, Letters]:
    policy, device = InOrder(), Letters()
    core: DecisionCore = policy
    engine = EngineCore(
        scheduler=core,
        executor=device,
        clock=VirtualClock(),
        sink=device,
        detokenizers=alphabet_detokenizers(),
        rules=AdmissionRules(resources=RESOURCES, vocabulary_size=30, eos_token_ids=()),
    )
    return engine, policy, device


def run(engine: EngineCore) -> None:
    for _ in range(200):
        if engine.step() is StepOutcome.IDLE:
            return
    raise AssertionError("not idle after 200 turns")


def test_a_request_is_over_when_its_core_has_released_it() -> None:
    engine, policy, device = loop()
    for name, limit in (("a", 3), ("b", 1), ("c", 2)):
        engine.handle(request(name, max_output_tokens=limit, keep_terminal=True))
    run(engine)
    ends = [event for event in device.events if isinstance(event, Finished)]
    assert [(end.request_id, end.reason, end.output_tokens) for end in ends] == [
        ("a", "length", 3),
        ("b", "length", 1),
        ("c", "length", 2),
    ]
    assert [slot for slot, _ in policy.reports] == [0, 0, 0, 1, 2, 2]
    texts = [event.text for event in device.events if isinstance(event, Delta)]
    assert texts == ["c"] * 6


def test_a_stop_string_cancel_and_failure_end_requests_of_any_core() -> None:
    engine, _, device = loop()
    for name in ("a", "b", "d"):
        stop = ("cc",) if name == "a" else ()
        engine.handle(request(name, max_output_tokens=20, stop=stop))
    engine.handle(Cancel(request_id="b"))
    for _ in range(6):
        engine.step()
    device.error = "device lost"
    run(engine)
    ends = {e.request_id: e for e in device.events if isinstance(e, Finished)}
    assert {name: end.reason for name, end in ends.items()} == {
        "a": "stop",
        "b": "cancelled",
        "d": "error",
    }
    assert ends["a"].stop_matched == "cc"
    engine.handle(StatsRequest())
    engine.step()
    assert isinstance(device.events[-1], Stats)
    assert device.events[-1].gauges["flare_requests_resident"] == 0
