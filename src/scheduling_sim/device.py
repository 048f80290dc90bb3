"""SimulatedExecutor: a device that runs frames one after the other on the virtual clock.

submission --launch--> start --cost--> end --delivery--> the host observes the result
                         ^ not before the previous frame's end
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from helios.engine.ports import Frame, FrameResult
from helios.scheduler import Fence, GraphDescriptor, GraphKind
from scheduling_sim.clock import VirtualClock
from scheduling_sim.draws import Draws, Executed
from scheduling_sim.faults import FaultSource, FrameFault
from scheduling_sim.platform import Platform

FRAMES_IN_FLIGHT = 2
"""Frame slots of the modelled transport."""


class FrameTruth(NamedTuple):
    """What really happened to a frame, before any fault of reporting."""

    fence: Fence
    graph_index: int
    lanes: int
    submitted_ns: int
    started_ns: int
    device_ns: int
    visible_ns: int
    """When the host can observe the end."""
    physical_rows: int
    offered: int
    accepted: int
    fault: FrameFault


class SimulatedExecutor:
    """Implements `helios.engine.ports.Executor`."""

    def __init__(
        self,
        *,
        platform: Platform,
        clock: VirtualClock,
        draws: Draws,
        faults: FaultSource,
        on_frame: Callable[[Frame, FrameTruth], None],
    ) -> None:
        self._graphs = platform.catalog.graphs
        self._costs = platform.costs
        self._host = platform.host
        self._clock = clock
        self._draws = draws
        self._faults = faults
        self._on_frame = on_frame
        self._queue: deque[tuple[int, FrameResult]] = deque()
        self._free_at_ns = 0
        """End of the last frame that was submitted."""

    @property
    def frames_in_flight(self) -> int:
        """Submitted frames whose end the host has not observed."""
        return len(self._queue)

    @property
    def next_visible_ns(self) -> int | None:
        """When the oldest frame's end can be observed; None without one."""
        return self._queue[0][0] if self._queue else None

    def submit(self, frame: Frame) -> None:
        """Run a frame; the host spends its turn before. Raises ValueError for a third frame."""
        if len(self._queue) >= FRAMES_IN_FLIGHT:
            raise ValueError(f"frame {frame.fence} is the third in flight")
        graph = self._graphs[frame.graph_index] if frame.graph_index >= 0 else None
        executed = self._draws.execute(graph, frame.lanes)
        # A free step that only retires is no step of a real engine: the host does it on the side.
        is_step = graph is not None or bool(executed.works)
        self._clock.spend(self._host.turn_ns if is_step else 0)
        truth = self._time(frame, graph, executed)
        self._queue.append((truth.visible_ns, self._result(truth, executed)))
        self._free_at_ns = truth.started_ns + truth.device_ns
        self._on_frame(frame, truth)

    def poll(self) -> FrameResult | None:
        """Return the oldest frame if its end can be observed now."""
        if self._queue and self._queue[0][0] <= self._clock.now_ns():
            return self._queue.popleft()[1]
        return None

    def wait(self, timeout_ns: int) -> FrameResult | None:
        """Return what `poll` does: virtual time does not pass inside a call."""
        del timeout_ns
        return self.poll()

    def close(self) -> None:
        """Drop what is in flight."""
        self._queue.clear()

    def _time(self, frame: Frame, graph: GraphDescriptor | None, executed: Executed) -> FrameTruth:
        """Place a frame behind its predecessor."""
        submitted_ns = self._clock.now_ns()
        started_ns = max(submitted_ns + self._host.launch_ns, self._free_at_ns)
        fault = self._faults.draw()
        device_ns = self._cost_ns(graph, executed)
        if fault.factor != 1.0:
            device_ns = round(device_ns * fault.factor)
        return FrameTruth(
            fence=frame.fence,
            graph_index=frame.graph_index,
            lanes=len(frame.lanes),
            submitted_ns=submitted_ns,
            started_ns=started_ns,
            device_ns=device_ns,
            visible_ns=started_ns + device_ns + self._host.delivery_ns + fault.late_ns,
            physical_rows=physical_rows(graph, executed),
            offered=executed.offered,
            accepted=executed.accepted,
            fault=fault,
        )

    def _cost_ns(self, graph: GraphDescriptor | None, executed: Executed) -> int:
        """Return the device time; a free step that runs no token takes the least there is."""
        if graph is None and not executed.works:
            return 1
        device_ns = self._costs.step_ns(graph, executed.works)
        if device_ns < 1:
            name = "a free step" if graph is None else graph.name
            raise ValueError(f"the cost model gave {name} {device_ns} ns; a step takes at least 1")
        return device_ns

    def _result(self, truth: FrameTruth, executed: Executed) -> FrameResult:
        """Return what the host will be told."""
        fault = truth.fault
        return FrameResult(
            fence=truth.fence,
            lanes=() if fault.is_failed else executed.outputs,
            device_ns=0 if fault.is_missing else truth.device_ns,
            submitted_ns=truth.submitted_ns,
            started_ns=truth.started_ns,
            finished_ns=truth.started_ns + truth.device_ns,
            host_gap_ns=truth.started_ns - self._free_at_ns,
            error="the simulated device failed" if fault.is_failed else None,
            confidence=executed.confidence,
            survival=executed.survival,
        )


def physical_rows(graph: GraphDescriptor | None, executed: Executed) -> int:
    """Return the token positions that a step computes, padding and rejected proposals included."""
    if graph is None:
        return sum(work.new_tokens for work in executed.works)
    if graph.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED):
        return graph.rows + graph.prefill_capacity
    if graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        return graph.token_capacity
    return 0
