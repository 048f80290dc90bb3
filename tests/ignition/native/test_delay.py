"""Decision 41: what a replay lost to other work is told, and is no cost of its program."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from helios.scheduler import ResourceConfig
from ignition import measure
from ignition.programs.native import NativeProgram
from tests.ignition.driver import Driver
from tests.ignition.native.models import POOL, native_driver
from tests.ignition.native.test_fp32 import pages_for, prompt_of

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this system does not keep the account"
)
MOST_REPLAYS = 200_000
"""Somebody else's turn on a shared processor comes after some milliseconds at the latest."""


@pytest.fixture
def one_processor() -> Iterator[int]:
    """This thread, and every one that it starts, on one processor."""
    allowed = os.sched_getaffinity(0)
    chosen = min(allowed)
    os.sched_setaffinity(0, {chosen})
    yield chosen
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def busy_neighbour(one_processor: int) -> Iterator[None]:
    """A process on the same processor that never rests."""
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


def prompt_driver(threads: int) -> Driver:
    driver = native_driver(threads=threads)
    driver.initialize([0], [pages_for(0)])
    return driver


def replays(driver: Driver) -> Iterator[tuple[int, int]]:
    """Yield interval and what was lost of it, replay after replay of the same chunk."""
    prompt = prompt_of(61, seed=5)
    program = driver.program("prefill-c64")
    driver.prefill(0, prompt, [("prefill-c64", 61)])
    while True:
        started_ns = time.monotonic_ns()
        program.replay()
        yield time.monotonic_ns() - started_ns, program.readiness_ns()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("busy_neighbour")
def test_what_a_neighbour_takes_is_told(threads: int) -> None:
    for interval_ns, lost_ns in itertools.islice(replays(prompt_driver(threads)), MOST_REPLAYS):
        assert 0 <= lost_ns <= interval_ns
        if lost_ns > interval_ns // 4:
            return
    pytest.fail("the neighbour had the processor half of the time, and no replay noticed")


def test_a_measured_cost_is_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = native_driver().model
    package = types.SimpleNamespace(
        catalog=model.catalog,
        programs=model.programs,
        resources=ResourceConfig(
            row_count=POOL.row_count,
            page_count=POOL.page_count,
            page_size_tokens=POOL.page_size_tokens,
            context_length_tokens=POOL.context_length_tokens,
        ),
    )
    ticks = itertools.count(0, 1_000)
    monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: next(ticks))
    monkeypatch.setattr(NativeProgram, "readiness_ns", lambda program: 995)
    costs = measure.measure_programs(package, lambda name: None)
    assert set(costs.values()) == {5}, "of 1,000 ns between two readings 995 were lost"
