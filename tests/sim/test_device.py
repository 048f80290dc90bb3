"""The modelled device: when frames run, when their ends are seen, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from helios.engine.ports import Frame, FrameLane, SamplingParams
from helios.scheduler import Fence, GraphKind, RequestHandle
from scheduling_sim.clock import VirtualClock
from scheduling_sim.device import FrameTruth, SimulatedExecutor
from scheduling_sim.draws import Draws, MisuseError, SimulatedRequest
from scheduling_sim.faults import Faults, FaultSource
from scheduling_sim.platform import Platform
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RequestLog
from tests.sim.worlds import ask

A, B = RequestHandle(0, 1), RequestHandle(1, 1)


class Bench:
    """A device with requests `a` and `b`, whose frames a test composes."""

    def __init__(self, faults: Faults | None = None, **options: object) -> None:
        self.platform: Platform = platform("synthetic", rows=4, prefills=(64,), **options)
        self.clock = VirtualClock()
        self.draws = Draws(None, row_count=4, draft_capacity=0)
        self.truths: list[FrameTruth] = []
        for name, handle in (("a", A), ("b", B)):
            request = ask(name, 0.0, 100, 3)
            log = RequestLog(request=request, arrival_ns=0)
            state = self.draws.requests[handle] = SimulatedRequest(request, log)
            state.handle = handle
        self.executor = SimulatedExecutor(
            platform=self.platform,
            clock=self.clock,
            draws=self.draws,
            faults=FaultSource(faults or Faults(), 0),
            on_frame=lambda _, truth: self.truths.append(truth),
        )

    def submit(self, kind: GraphKind, *lanes: FrameLane) -> FrameTruth:
        """Submit a frame in the smallest program of a kind."""
        index = self.platform.catalog.indices_of(kind)[0]
        fence = Fence(1 + len(self.truths))
        self.executor.submit(Frame(fence=fence, graph_index=index, lanes=lanes))
        return self.truths[-1]

    def cost_ns(self, kind: GraphKind) -> int:
        """Return what the smallest program of a kind costs without a lane."""
        graph = self.platform.catalog.graphs[self.platform.catalog.indices_of(kind)[0]]
        return self.platform.costs.step_ns(graph, [])


def bind(handle: RequestHandle = A, row: int = 0, position: int = 0) -> FrameLane:
    return FrameLane(handle, row, position, (0, 1), sampling=SamplingParams())


def chunk(position: int, count: int, *, is_last: bool, handle: RequestHandle = A) -> FrameLane:
    ids = np.zeros(count, dtype=np.int32)
    return FrameLane(
        handle, 0, position, (0, 1), prompt_token_ids=ids, is_final_chunk=is_last, is_prompt=True
    )


def decode(position: int) -> FrameLane:
    return FrameLane(A, 0, position, (0, 1), query_length=1)


def test_frames_run_one_after_the_other_and_hide_their_launch() -> None:
    """start = max(submission + launch, previous end); the end is seen a delivery later."""
    bench = Bench(launch_ns=7_000, delivery_ns=3_000, turn_ns=1_000)
    state_ns = bench.cost_ns(GraphKind.INITIALIZE)
    first = bench.submit(GraphKind.INITIALIZE, bind())
    second = bench.submit(GraphKind.INITIALIZE, bind(B, 1))
    assert (first.submitted_ns, first.started_ns, first.device_ns) == (1_000, 8_000, state_ns)
    assert first.visible_ns == 8_000 + state_ns + 3_000
    assert second.submitted_ns == 2_000
    assert second.started_ns == 8_000 + state_ns, "the launch is hidden behind the first frame"
    assert bench.executor.next_visible_ns == first.visible_ns
    bench.clock.advance_to(first.visible_ns - 1)
    assert bench.executor.poll() is None
    bench.clock.advance_to(first.visible_ns)
    result = bench.executor.poll()
    assert result is not None
    assert (result.started_ns, result.finished_ns) == (8_000, 8_000 + state_ns)
    assert bench.executor.poll() is None, "the second frame still runs"
    bench.clock.advance_to(second.visible_ns + 500_000)
    result = bench.executor.wait(1)
    assert result is not None
    assert result.host_gap_ns == 0
    third = bench.submit(GraphKind.TERMINAL, bind())
    assert third.started_ns == third.submitted_ns + 7_000, "an idle device shows the launch"


def test_a_third_frame_in_flight_is_refused() -> None:
    """The transport has two slots."""
    bench = Bench()
    bench.submit(GraphKind.INITIALIZE, bind())
    bench.submit(GraphKind.INITIALIZE, bind(B, 1))
    with pytest.raises(ValueError, match="third in flight"):
        bench.submit(GraphKind.TERMINAL, bind())


def test_a_request_samples_its_answer_and_then_its_end() -> None:
    """Tokens come from the output segment; behind its last one comes the end token."""
    bench = Bench()
    bench.submit(GraphKind.INITIALIZE, bind())
    tokens: list[int] = []
    frames = [
        (GraphKind.PREFILL, chunk(0, 64, is_last=False)),
        (GraphKind.PREFILL, chunk(64, 36, is_last=True)),
        *[(GraphKind.DECODE, decode(100 + index)) for index in range(4)],
    ]
    ends = []
    for kind, lane in frames:
        bench.clock.advance_to(bench.truths[-1].visible_ns)
        while (result := bench.executor.poll()) is not None:
            tokens += result.lanes[0].tokens
        bench.submit(kind, lane)
        ends.append(bench.truths[-1])
    bench.clock.advance_to(ends[-1].visible_ns)
    result = bench.executor.poll()
    assert result is not None
    assert result.lanes[0].tokens == (), "behind its end a row samples nothing"
    answer = bench.draws.requests[A].answer
    assert answer is not None
    assert tokens == [*answer, 0]
    assert len(answer) == 3


def test_a_lane_on_a_row_of_another_request_is_refused() -> None:
    """A real device would mix two requests there."""
    bench = Bench()
    bench.submit(GraphKind.INITIALIZE, bind())
    with pytest.raises(MisuseError, match="row 0 is bound to request a, not to b"):
        bench.submit(GraphKind.PREFILL, chunk(0, 64, is_last=False, handle=B))


def test_a_lane_at_another_position_is_refused() -> None:
    """A real device would overwrite or skip cached tokens there."""
    bench = Bench()
    bench.submit(GraphKind.INITIALIZE, bind())
    with pytest.raises(MisuseError, match="has 0 tokens in its cache, the frame takes it for 64"):
        bench.submit(GraphKind.PREFILL, chunk(64, 36, is_last=True))


def test_a_retired_row_is_bound_to_nobody() -> None:
    """TERMINAL frees the row; what runs there without an initialisation is refused."""
    bench = Bench()
    bench.submit(GraphKind.INITIALIZE, bind())
    bench.submit(GraphKind.TERMINAL, bind())
    bench.clock.advance_to(bench.truths[-1].visible_ns)
    while bench.executor.poll() is not None:
        pass
    with pytest.raises(MisuseError, match="bound to nobody"):
        bench.submit(GraphKind.DECODE, decode(0))


def test_faults_of_a_frame_are_what_the_host_sees_of_it() -> None:
    """Late, without interval, void and slow: the truth keeps the real times."""
    slow = Faults(outlier_probability=1.0, outlier_factor=3.0)
    bench = Bench(slow)
    cost_ns = bench.cost_ns(GraphKind.INITIALIZE)
    assert bench.submit(GraphKind.INITIALIZE, bind()).device_ns == 3 * cost_ns
    faulty = Faults(late_probability=1.0, missing_probability=1.0, failed_probability=1.0)
    bench = Bench(faulty)
    truth = bench.submit(GraphKind.INITIALIZE, bind())
    assert truth.device_ns == cost_ns
    assert truth.visible_ns > truth.started_ns + cost_ns
    bench.clock.advance_to(truth.visible_ns)
    result = bench.executor.poll()
    assert result is not None
    assert (result.device_ns, result.lanes) == (0, ())
    assert result.error is not None
