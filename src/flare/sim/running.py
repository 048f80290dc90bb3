"""Runs one after the other or two at a time, with a progress bar, and gently stopped by Ctrl-C."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.queues import Queue
from types import FrameType
from typing import Final, NamedTuple

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flare.console import notices
from scheduling_sim.checkers import InvariantError
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Progress as Reached
from scheduling_sim.simulation import simulate
from scheduling_sim.specs import RunSpec, setup_of

_SHOWN_AFTER_S: Final = 2.0
_POLL_S: Final = 0.2


class Job(NamedTuple):
    """A run to do."""

    label: str
    spec: RunSpec
    parameters: dict[str, str]
    """What is varied, for the report."""
    times_decisions: bool = False
    """Measure the real time of decisions; it differs from run to run."""


class Done(NamedTuple):
    """What became of a job: a log, or the error that ended it."""

    job: Job
    log: RunLog | None
    error: str | None = None
    is_partial: bool = False


class _Interrupted:
    """Whether Ctrl-C was pressed; the second time it acts as usual."""

    def __init__(self) -> None:
        self.is_set = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            signal.default_int_handler(number, frame)
        self.is_set = True


_interrupted = _Interrupted()


@contextlib.contextmanager
def _gentle_interrupts() -> Iterator[_Interrupted]:
    """Let Ctrl-C end the current run with what it has instead of throwing it away."""
    _interrupted.is_set = False
    before = signal.signal(signal.SIGINT, _interrupted.on_signal)
    try:
        yield _interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def run_jobs(jobs: Sequence[Job], *, workers: int) -> list[Done]:
    """Run the jobs and return those that began, in their order.

    Every description is checked before the first run starts. Raises SpecError for a wrong one.
    """
    for job in jobs:
        setup_of(job.spec)
    with _gentle_interrupts() as interrupted, _Bar(len(jobs)) as bar:
        if workers == 1 or len(jobs) == 1:
            return _in_turn(jobs, interrupted, bar)
        return _together(jobs, workers, interrupted, bar)


def _in_turn(jobs: Sequence[Job], interrupted: _Interrupted, bar: _Bar) -> list[Done]:
    done: list[Done] = []
    for number, job in enumerate(jobs):
        if interrupted.is_set:
            break
        bar.update(number, job.label, 0.0)
        done.append(
            _run(job, lambda share, n=number, label=job.label: bar.update(n, label, share))  # type: ignore[misc]
        )
        bar.update(number, job.label, 1.0)
    return done


def _run(job: Job, tell: Callable[[float], None]) -> Done:
    """Do one job; a run that breaks an invariant is an answer about its policy, not a crash."""

    def on_progress(reached: Reached) -> bool:
        tell(_share(job.spec, reached))
        return not _interrupted.is_set

    stopwatch = time.perf_counter_ns if job.times_decisions else None
    try:
        log = simulate(setup_of(job.spec, stopwatch=stopwatch, on_progress=on_progress))
    except InvariantError as error:
        return Done(job, None, f"{type(error).__name__}: {error}")
    return Done(job, log, is_partial=_interrupted.is_set)


def _share(spec: RunSpec, reached: Reached) -> float:
    """Return how much of a run is done: its requests, or the time at which it is to stop."""
    share = reached.ended / reached.total if reached.total else 1.0
    if spec.until_s:
        share = max(share, reached.now_ns / (spec.until_s * 1e9))
    return min(share, 1.0)


_told: Queue[tuple[int, float]] | None = None


def _begin_worker(told: Queue[tuple[int, float]]) -> None:
    global _told  # noqa: PLW0603 - a pool hands its workers nothing else that they keep.
    _told = told
    signal.signal(signal.SIGINT, _interrupted.on_signal)


def _run_in_worker(number: int, job: Job) -> Done:
    def tell(share: float) -> None:
        if _told is not None:
            _told.put((number, share))

    return _run(job, tell)


def _together(
    jobs: Sequence[Job], workers: int, interrupted: _Interrupted, bar: _Bar
) -> list[Done]:
    """Run several jobs at a time, each in a process of its own that starts afresh."""
    context = multiprocessing.get_context("spawn")
    told: Queue[tuple[int, float]] = context.Queue()
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin_worker, initargs=(told,)
    )
    with pool:
        futures = [pool.submit(_run_in_worker, number, job) for number, job in enumerate(jobs)]
        open_ones = set(futures)
        while open_ones:
            _, open_ones = concurrent.futures.wait(open_ones, timeout=_POLL_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    number, share = told.get_nowait()
                    bar.update(number, jobs[number].label, share)
            if interrupted.is_set:
                for future in open_ones:
                    future.cancel()
        return [future.result() for future in futures if not future.cancelled()]


class _Bar:
    """One bar over all runs, shown once they have taken a while; silent without a terminal."""

    def __init__(self, count: int) -> None:
        console = notices()
        self._shares = [0.0] * count
        self._began_s = time.monotonic()
        self._is_shown = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=float(count))

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_shown:
            self._progress.stop()

    def update(self, number: int, label: str, share: float) -> None:
        """Note how far a run has come."""
        self._shares[number] = max(share, self._shares[number])
        if not self._is_shown and time.monotonic() - self._began_s > _SHOWN_AFTER_S:
            self._progress.start()
            self._is_shown = True
        count = len(self._shares)
        name = f"{label} ({number + 1} of {count})" if count > 1 else label
        self._progress.update(self._task, description=name, completed=sum(self._shares))
