"""ThreadExecutor: executes frames in submission order on one thread, at most two in flight.

The thread owns the programs: nothing else calls them after the start. A program that raises fails
its own frame and nothing more; the thread goes on with the next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from helios.engine.ports import (
    Clock,
    DelayedProgram,
    Frame,
    FrameResult,
    LaneOutput,
    PreparedProgram,
    Sidecar,
)
from helios.engine.queued_masks import bind_masks
from helios.scheduler import GraphDescriptor

FRAMES_IN_FLIGHT = 2
"""Frame slots of the transport."""


@runtime_checkable
class SelfTimedProgram(Protocol):
    """A program that measures its own replay interval, such as one with device events."""

    def device_interval_ns(self) -> int:
        """Return the interval of the last replay; zero when there is none."""
        ...


@runtime_checkable
class TellingProgram(Protocol):
    """A program whose rounds may tell of their proposals beside the tokens they commit."""

    @property
    def confidence(self) -> Sidecar | None:
        """Of the frame that was just executed; None for a program that reports none."""
        ...

    @property
    def survival(self) -> Sidecar | None:
        """Of the frame that was just executed; None for a program that writes none."""
        ...


class ThreadExecutor:
    """The Executor port over prepared programs.

    `on_finished` is called on the executor's thread after each frame's result can be polled; it
    must be quick and thread-safe (the engine loop uses it to wake up from its poll).
    """

    def __init__(
        self,
        programs: Sequence[PreparedProgram],
        clock: Clock,
        *,
        on_finished: Callable[[], None],
    ) -> None:
        self._programs = tuple(programs)
        self._self_timed = tuple(
            program if isinstance(program, SelfTimedProgram) else None for program in programs
        )
        self._delayed = tuple(
            program if isinstance(program, DelayedProgram) else None for program in programs
        )
        self._telling = tuple(
            program if _tells(program.descriptor) and isinstance(program, TellingProgram) else None
            for program in programs
        )
        self._clock = clock
        self._on_finished = on_finished
        self._inbox: queue.SimpleQueue[tuple[Frame, int] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[FrameResult] = queue.SimpleQueue()
        self._unfinished = 0
        self._replay_end_ns: int | None = None
        self._front: Frame | None = None
        self._drawn: tuple[LaneOutput, ...] = ()
        """What the last frame drew; nothing where it failed."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="flare-executor", daemon=True)
        self._thread.start()

    def submit(self, frame: Frame) -> None:
        """Hand over a frame. Raises RuntimeError when both frame slots are taken."""
        if self._unfinished >= FRAMES_IN_FLIGHT:
            raise RuntimeError(f"both frame slots are taken; frame {frame.fence} has none")
        self._unfinished += 1
        self._inbox.put((frame, self._clock.now_ns()))

    def poll(self) -> FrameResult | None:
        """Return the oldest finished frame, or None."""
        return self._take(timeout_s=0.0)

    def wait(self, timeout_ns: int) -> FrameResult | None:
        """Wait for the oldest frame up to a timeout; None when it passed."""
        return self._take(timeout_s=timeout_ns / 1e9)

    def close(self) -> None:
        """Finish what is in flight and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _take(self, *, timeout_s: float) -> FrameResult | None:
        try:
            if timeout_s <= 0:
                result = self._results.get_nowait()
            else:
                result = self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._unfinished -= 1
        return result

    def _run(self) -> None:
        """Execute frames until told to end (the executor's thread).

        A frame that is queued already is loaded before the finished one is announced: the
        announcement wakes the engine's thread, and from then on the two share the interpreter's
        lock, so what stands between two replays is done first.
        """
        loaded = self._load_next(wait=True)
        while loaded is not None:
            result = self._replay(loaded)
            loaded = self._load_next(wait=False)
            self._results.put(result)
            self._on_finished()
            if loaded is None:
                loaded = self._load_next(wait=True)

    def _load_next(self, *, wait: bool) -> _Loaded | None:
        """Load the next frame; None at the end, or when there is none to be had without waiting."""
        if self._closing:
            return None
        try:
            item = self._inbox.get(block=wait)
        except queue.Empty:
            return None
        if item is None:
            self._closing = True
            return None
        frame, submitted_ns = item
        started_ns = self._clock.now_ns()
        error: str | None = None
        try:
            frame = bind_masks(frame, self._front, self._drawn)
            self._programs[frame.graph_index].load(frame)
        except Exception as fault:  # noqa: BLE001 - the thread boundary: a fault fails one frame.
            error = _message_of(fault)
        return _Loaded(frame, submitted_ns, started_ns, error)

    def _replay(self, loaded: _Loaded) -> FrameResult:
        """Replay and read one loaded frame; an exception becomes the result's error."""
        frame, error = loaded.frame, loaded.error
        device_ns = host_gap_ns = readiness_ns = 0
        lanes: tuple[LaneOutput, ...] = ()
        confidence: Sidecar | None = None
        survival: Sidecar | None = None
        if error is None:
            program = self._programs[frame.graph_index]
            self_timed = self._self_timed[frame.graph_index]
            replay_ns = self._clock.now_ns()
            if self._replay_end_ns is not None:
                host_gap_ns = replay_ns - self._replay_end_ns
            try:
                program.replay()
                self._replay_end_ns = self._clock.now_ns()
                device_ns = self._replay_end_ns - replay_ns
                if self_timed is not None:
                    device_ns = self_timed.device_interval_ns()
                delayed = self._delayed[frame.graph_index]
                if delayed is not None:
                    readiness_ns = min(max(0, delayed.readiness_ns()), device_ns)
                lanes = program.read(frame)
                telling = self._telling[frame.graph_index]
                if telling is not None:
                    confidence, survival = telling.confidence, telling.survival
            except Exception as fault:  # noqa: BLE001 - the thread boundary, as above.
                lanes, device_ns, readiness_ns, error = (), 0, 0, _message_of(fault)
        self._front, self._drawn = frame, lanes
        return FrameResult(
            fence=frame.fence,
            lanes=lanes,
            device_ns=device_ns,
            submitted_ns=loaded.submitted_ns,
            started_ns=loaded.started_ns,
            finished_ns=self._clock.now_ns(),
            host_gap_ns=host_gap_ns,
            readiness_ns=readiness_ns,
            error=error,
            confidence=confidence,
            survival=survival,
        )


class _Loaded(NamedTuple):
    """A frame whose inputs are in place, or could not be."""

    frame: Frame
    submitted_ns: int
    started_ns: int
    error: str | None


def _tells(graph: GraphDescriptor) -> bool:
    return graph.confidence_width > 0 or graph.reports_survival


def _message_of(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"
