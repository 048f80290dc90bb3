"""Runs of the whole: order of events, ends, stop conditions, determinism, random histories."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduling_sim.faults import Faults
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Progress, Setup, simulate
from tests.sim.worlds import MS, ask, asked, by_name, poisson, reasons

SMALL = {"rows": 4, "prefills": (64, 512), "context": 4096}


def run(*requests: object, options: dict[str, object] | None = None, **fields: object) -> RunLog:
    workload = asked(*requests)  # type: ignore[arg-type]
    chosen = platform("synthetic", **{**SMALL, **(options or {})})
    return simulate(Setup(platform=chosen, workload=workload, **fields))  # type: ignore[arg-type]


def digest(log: RunLog) -> str:
    """Return a hash of everything in a log."""
    return hashlib.sha256(repr(log).encode()).hexdigest()


def test_a_request_ends_by_its_end_token_or_by_its_limit() -> None:
    """Visible tokens are those of the answer; the end token is not one of them."""
    logs = by_name(run(ask("stops", 0, 100, 20), ask("limited", 0, 100, 20, 5)))
    assert (logs["stops"].reason, sum(logs["stops"].delivery_tokens)) == ("stop", 20)
    assert (logs["limited"].reason, sum(logs["limited"].delivery_tokens)) == ("length", 5)
    for entry in logs.values():
        assert sum(entry.prompt_tokens) == 100
        assert entry.dispatched_ns == 0
        assert list(entry.delivery_ns) == sorted(entry.delivery_ns)
        assert entry.prompt_ns[-1] <= entry.delivery_ns[0]
        assert entry.finished_ns is not None
        assert entry.finished_ns >= entry.delivery_ns[-1]


def test_a_lone_request_takes_what_its_frames_cost() -> None:
    """Without host costs the first token comes at the end of the last prompt frame."""
    log = run(ask("lone", 3, 100, 20))
    steps, entry = log.steps, log.requests[0]
    assert steps.started_ns[0] == 3 * MS
    ends = [start + took for start, took in zip(steps.started_ns, steps.device_ns, strict=True)]
    assert entry.delivery_ns[0] == entry.prompt_ns[-1]
    assert entry.delivery_ns[0] in ends
    assert log.ended_ns == ends[-1] == entry.finished_ns
    assert sum(steps.useful_rows) == 100 + 21
    assert all(u <= p for u, p in zip(steps.useful_rows, steps.physical_rows, strict=True))


def test_host_costs_come_on_top() -> None:
    """A turn before each submission, a launch on an idle device, a delivery at the end."""
    plain = run(ask("lone", 0, 50, 4))
    slow = run(
        ask("lone", 0, 50, 4),
        options={"turn_ns": 10_000, "launch_ns": 20_000, "delivery_ns": 40_000},
    )
    assert slow.steps.started_ns[0] == 30_000
    assert slow.requests[0].dispatched_ns == 10_000
    assert slow.requests[0].delivery_ns[0] > plain.requests[0].delivery_ns[0] + 70_000
    assert list(slow.steps.device_ns[:2]) == list(plain.steps.device_ns[:2])


def test_a_follower_comes_after_its_think_time() -> None:
    """Its arrival is its predecessor's end plus what it waits, whatever ended that one."""
    log = run(
        ask("first", 0, 50, 4),
        ask("second", 25, 50, 4, follows="first"),
        ask("left", 0, 50, 400, cancel_after_ns=20 * MS),
        ask("after", 5, 50, 4, follows="left"),
    )
    logs = by_name(log)
    assert logs["second"].arrival_ns == (logs["first"].finished_ns or 0) + 25 * MS
    assert logs["left"].reason == "cancelled"
    assert logs["after"].arrival_ns == (logs["left"].finished_ns or 0) + 5 * MS
    assert log.requests == sorted(log.requests, key=lambda entry: entry.arrival_ns)


def test_a_cancelled_request_stops_and_gives_everything_back() -> None:
    """The client leaves during decode; the run ends with nothing owned (the checker looks)."""
    entry = run(ask("left", 0, 50, 1000, cancel_after_ns=60 * MS)).requests[0]
    assert (entry.reason, entry.finished_ns) == ("cancelled", 60 * MS)
    assert 0 < sum(entry.delivery_tokens) < 30


def test_an_impossible_request_is_rejected_and_the_rest_is_served() -> None:
    """A prompt beyond the context never reaches the scheduler."""
    logs = by_name(run(ask("huge", 0, 5000, 4), ask("fine", 0, 50, 4)))
    assert logs["huge"].reason == "rejected"
    assert "context holds 4096" in (logs["huge"].error or "")
    assert logs["fine"].reason == "stop"


def test_a_full_waiting_line_rejects() -> None:
    """Whom the line has no room for is told so."""
    requests = [ask(f"r{index}", 0, 50, 4) for index in range(10)]
    log = run(*requests, options={"waiting": 2})
    assert reasons(log) == {"stop": 6, "rejected": 4}


def test_stop_conditions_leave_requests_unfinished() -> None:
    """At a virtual time, and after a number of frames."""
    log = run(ask("long", 0, 50, 1000), until_ns=100 * MS)
    assert log.ended_ns == 100 * MS
    assert (log.requests[0].reason, log.requests[0].finished_ns) == ("unfinished", None)
    log = run(ask("long", 0, 50, 1000), frame_limit=10)
    assert len(log.steps.started_ns) == 10


def test_progress_is_told_and_may_stop_the_run() -> None:
    """The last call says how far it came; one that returns False leaves the rest unfinished."""
    told: list[Progress] = []

    def listen(progress: Progress) -> bool:
        told.append(progress)
        return len(told) < limit

    requests, limit = (ask("a", 0, 50, 20), ask("b", 1, 50, 20)), 1000
    run(*requests, on_progress=listen, progress_every=5)
    assert len(told) > 3
    assert told[-1].ended == told[-1].total == 2
    assert [p.frames for p in told] == sorted(p.frames for p in told)
    told, limit = [], 2
    log = run(*requests, on_progress=listen, progress_every=5)
    assert reasons(log) == {"unfinished": 2}
    assert 8 <= len(log.steps.started_ns) <= 10


def test_decisions_are_timed_by_the_given_stopwatch() -> None:
    """Its readings are in the log and nowhere in virtual time."""
    ticks = iter(range(10**9))
    plain, timed = run(ask("a", 0, 50, 9)), run(ask("a", 0, 50, 9), stopwatch=lambda: next(ticks))
    assert sum(plain.steps.decision_ns) == 0
    assert all(timed.steps.decision_ns)
    assert list(plain.steps.started_ns) == list(timed.steps.started_ns)


def test_bad_workloads_are_refused_before_anything_runs() -> None:
    """Twice the same name, and a follower of nobody."""
    with pytest.raises(ValueError, match="request a is there twice"):
        run(ask("a", 0, 5, 1), ask("a", 1, 5, 1))
    with pytest.raises(ValueError, match="follows c, which does not stand before it"):
        run(ask("a", 0, 5, 1, follows="c"))


FAULTY = Faults(
    late_probability=0.2,
    missing_probability=0.2,
    failed_probability=0.02,
    cancel_probability=0.05,
    outlier_probability=0.02,
    withheld_pages=0.5,
)


@pytest.mark.parametrize("seed", range(6))
def test_faulty_histories_keep_every_invariant(seed: int) -> None:
    """Late, missing, void and slow frames, cancels in flight, few pages; everything comes back."""
    chosen = platform("synthetic", **SMALL, pages=80)
    log = simulate(
        Setup(platform=chosen, workload=poisson(25, 12.0, seed), faults=FAULTY, seed=seed)
    )
    ended = reasons(log)
    assert sum(ended.values()) == 25
    assert "unfinished" not in ended
    assert log.failed_frames > 0
    assert ended["error"] > 0
    assert ended["cancelled"] > 0


def test_equal_setups_have_equal_logs() -> None:
    """The same bytes in one process; another seed has other faults."""
    chosen = platform("synthetic", **SMALL)
    logs = [
        simulate(Setup(platform=chosen, workload=poisson(12, 20.0, 3), faults=FAULTY, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert digest(logs[0]) == digest(logs[1])
    assert digest(logs[0]) != digest(logs[2])


SCRIPT = """
import hashlib
from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup, simulate
from tests.sim.test_simulation import FAULTY, SMALL, digest
from tests.sim.worlds import poisson
chosen = platform("synthetic", **SMALL)
setup = Setup(platform=chosen, workload=poisson(10, 20.0, 4), faults=FAULTY, seed=4)
print(digest(simulate(setup)))
"""


@pytest.mark.slow
def test_the_order_of_hashes_changes_nothing() -> None:
    """Two processes with different PYTHONHASHSEEDs write the same log."""
    root = Path(__file__).parents[2]
    found = []
    for seed in ("0", "4242"):
        path = os.pathsep.join((str(root / "src"), str(root)))
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        found.append(done.stdout)
    assert found[0] == found[1]
    assert len(found[0].strip()) == 64
