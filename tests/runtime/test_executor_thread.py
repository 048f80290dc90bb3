"""ThreadExecutor: order, two slots, faults as results, and whose clock measures the interval."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from helios.engine.ports import Frame, FrameResult, LaneOutput
from helios.runtime.clock import MonotonicClock
from helios.runtime.executor_thread import ThreadExecutor
from helios.scheduler import Fence, GraphDescriptor, GraphKind

DECODE = GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=1)
TIMEOUT_NS = 10_000_000_000


class TickingClock:
    """Every reading is one nanosecond later, so intervals count the readings between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_ns = 0

    def now_ns(self) -> int:
        with self._lock:
            self._now_ns += 1
            return self._now_ns


class Scripted:
    """A program whose three calls can be made to fail or to wait."""

    def __init__(self, **calls: Callable[[], None]) -> None:
        self._calls = calls
        self.log: list[str] = []

    @property
    def descriptor(self) -> GraphDescriptor:
        return DECODE

    def _call(self, name: str) -> None:
        self.log.append(name)
        self._calls.get(name, lambda: None)()

    def load(self, frame: Frame) -> None:
        self._call("load")

    def replay(self) -> None:
        self._call("replay")

    def read(self, frame: Frame) -> tuple[LaneOutput, ...]:
        self._call("read")
        return (LaneOutput(tokens=(int(frame.fence),)),)


class SelfTimed(Scripted):
    def device_interval_ns(self) -> int:
        return 12345


class Delayed(SelfTimed):
    """A program whose processors others had for so long."""

    def __init__(self, readiness_ns: int, **calls: Callable[[], None]) -> None:
        super().__init__(**calls)
        self._readiness_ns = readiness_ns

    def readiness_ns(self) -> int:
        return self._readiness_ns


def frame(fence: int, graph_index: int = 0) -> Frame:
    return Frame(fence=Fence(fence), graph_index=graph_index, lanes=())


def wait(executor: ThreadExecutor) -> FrameResult:
    result = executor.wait(TIMEOUT_NS)
    assert result is not None
    return result


def explode() -> None:
    raise RuntimeError("boom")


def test_frames_are_loaded_replayed_and_read_in_submission_order() -> None:
    program = Scripted()
    executor = ThreadExecutor([program], TickingClock(), on_finished=lambda: None)
    executor.submit(frame(1))
    executor.submit(frame(2))
    results = [wait(executor), wait(executor)]
    assert [result.fence for result in results] == [1, 2]
    assert [result.lanes[0].tokens for result in results] == [(1,), (2,)]
    assert program.log == ["load", "replay", "read"] * 2
    assert executor.poll() is None
    executor.close()


def test_intervals_cover_replay_alone_and_the_gap_lies_between_replays() -> None:
    executor = ThreadExecutor([Scripted()], TickingClock(), on_finished=lambda: None)
    executor.submit(frame(1))
    first = wait(executor)
    assert (first.submitted_ns, first.started_ns) == (1, 2)
    assert (first.device_ns, first.host_gap_ns) == (1, 0)
    assert first.finished_ns == 5
    executor.submit(frame(2))
    second = wait(executor)
    # Read of the first, submission, start and load of the second lie between the replays.
    assert (second.device_ns, second.host_gap_ns) == (1, 4)
    executor.close()


def test_a_program_that_times_itself_is_believed() -> None:
    executor = ThreadExecutor([SelfTimed()], TickingClock(), on_finished=lambda: None)
    executor.submit(frame(1))
    assert wait(executor).device_ns == 12345
    executor.close()


@pytest.mark.parametrize(("told_ns", "believed_ns"), [(345, 345), (99_999, 12345), (-1, 0)])
def test_what_a_program_lost_to_others_is_told_and_lies_within_its_interval(
    told_ns: int, believed_ns: int
) -> None:
    executor = ThreadExecutor([Delayed(told_ns)], TickingClock(), on_finished=lambda: None)
    executor.submit(frame(1))
    result = wait(executor)
    assert (result.device_ns, result.readiness_ns) == (12345, believed_ns)
    executor.close()


def test_a_program_that_does_not_tell_lost_nothing_and_neither_did_a_failed_one() -> None:
    programs = [Scripted(), Delayed(345, read=explode)]
    executor = ThreadExecutor(programs, TickingClock(), on_finished=lambda: None)
    executor.submit(frame(1, graph_index=0))
    executor.submit(frame(2, graph_index=1))
    results = [wait(executor), wait(executor)]
    assert [result.readiness_ns for result in results] == [0, 0]
    assert results[1].error == "RuntimeError: boom"
    executor.close()


@pytest.mark.parametrize("call", ["load", "replay", "read"])
def test_a_fault_fails_its_frame_and_the_next_one_runs(call: str) -> None:
    faulty, sound = Scripted(**{call: explode}), Scripted()
    executor = ThreadExecutor([faulty, sound], MonotonicClock(), on_finished=lambda: None)
    executor.submit(frame(1, graph_index=0))
    executor.submit(frame(2, graph_index=1))
    first, second = wait(executor), wait(executor)
    assert first.error == "RuntimeError: boom"
    assert (first.lanes, first.device_ns) == ((), 0)
    assert (second.error, second.lanes[0].tokens) == (None, (2,))
    executor.close()


def test_an_unknown_program_is_a_fault_too() -> None:
    executor = ThreadExecutor([], MonotonicClock(), on_finished=lambda: None)
    executor.submit(frame(1, graph_index=3))
    assert "IndexError" in (wait(executor).error or "")
    executor.close()


def test_a_third_frame_is_refused() -> None:
    release = threading.Event()
    blocked = Scripted(replay=lambda: release.wait(10) and None)
    executor = ThreadExecutor([blocked], MonotonicClock(), on_finished=lambda: None)
    executor.submit(frame(1))
    executor.submit(frame(2))
    with pytest.raises(RuntimeError, match="frame slots"):
        executor.submit(frame(3))
    assert executor.poll() is None
    assert executor.wait(1_000_000) is None
    release.set()
    assert [wait(executor).fence, wait(executor).fence] == [1, 2]
    executor.submit(frame(3))
    assert wait(executor).fence == 3
    executor.close()


def test_the_result_is_there_when_the_callback_runs() -> None:
    seen: list[FrameResult | None] = []
    called = threading.Event()
    executor: ThreadExecutor

    def on_finished() -> None:
        seen.append(executor.poll())
        called.set()

    executor = ThreadExecutor([Scripted()], MonotonicClock(), on_finished=on_finished)
    executor.submit(frame(1))
    assert called.wait(10)
    assert seen[0] is not None
    executor.close()


def test_close_finishes_what_is_in_flight() -> None:
    program = Scripted()
    executor = ThreadExecutor([program], MonotonicClock(), on_finished=lambda: None)
    executor.submit(frame(1))
    executor.submit(frame(2))
    executor.close()
    assert program.log.count("read") == 2
