"""Kept states, growth and preemption under any order of calls (runtime 5 and 6, decisions 11.5)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helios.scheduler import (
    Endpoint,
    Fence,
    Phase,
    PolicyConfig,
    StalePlanError,
    UnknownHandleError,
)
from tests.support.catalogs import modelled
from tests.support.checkers import Checker
from tests.support.ownership import assert_ownership
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.workload import phase_of
from tests.support.world import World

MODEL = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c16": 4.0,
        "prefill-c64": 9.0,
        "decode-b1": 3.0,
        "decode-b4": 4.1,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
        "snapshot-b1": 0.25,
        "snapshot-b2": 0.3,
        "restore-b1": 0.2,
        "restore-b2": 0.25,
    }
)
MACHINES: dict[str, dict[str, Any]] = {
    "rows": {"snapshot_rows": 2},
    "pages": {"page_prefixes": True},
    "growing": {"page_growth": True, "draft_extent_tokens": 2},
    "growing rows": {"page_growth": True, "snapshot_rows": 3},
    "growing pages": {"page_growth": True, "page_prefixes": True},
}


class StatesMachine(RuleBasedStateMachine):
    """Conversations come again, states are kept and given up, pages run out."""

    @initialize(machine=st.sampled_from(sorted(MACHINES)), pages=st.sampled_from([14, 20, 40]))
    def build(self, machine: str, pages: int) -> None:
        self.world = World(
            MODEL,
            rows=4,
            pages=pages,
            page_size=8,
            seeded=tuple(MODEL.duration_ns),
            policy=PolicyConfig(checkpoint_extra_work_fraction=0.25),
            more=MACHINES[machine],
        )
        Checker.watch(self.world)
        self.names = 0
        self.stale: Any = None

    @rule(
        talk=st.integers(0, 2),
        prompt=st.integers(1, 70),
        cuts=st.lists(st.sampled_from([5, 8, 16, 21, 40, 64]), max_size=4),
        ends=st.booleans(),
        output=st.integers(1, 30),
        ends_at=st.sampled_from([1, 3, 100]),
    )
    def admit(
        self, talk: int, prompt: int, cuts: list[int], ends: bool, output: int, ends_at: int
    ) -> None:
        self.names += 1
        found = [
            Endpoint(tokens, b"%d/%d" % (talk, tokens))
            for tokens in sorted(set(cuts))
            if tokens < prompt
        ]
        if ends:
            found.append(Endpoint(prompt, b"%d/%d" % (talk, prompt), ends_message=False))
        name = f"r{self.names}"
        self.world.admit(name, prompt, output, ends_at=ends_at, endpoints=tuple(found))

    def alive(self, *phases: Phase) -> list[str]:
        return [name for name in self.world.streams if phase_of(self.world, name) in phases]

    @precondition(lambda self: self.names > 0)
    @rule(pick=st.integers(0, 1 << 16))
    def cancel(self, pick: int) -> None:
        names = [n for n in self.world.streams if phase_of(self.world, n) is not Phase.RELEASED]
        if names:
            self.world.cancel(names[pick % len(names)])

    @precondition(lambda self: self.names > 0)
    @rule(pick=st.integers(0, 1 << 16))
    def stop(self, pick: int) -> None:
        names = self.alive(Phase.DECODE)
        if names:
            self.world.stop(names[pick % len(names)])

    @precondition(lambda self: self.names > 0)
    @rule(pick=st.integers(0, 1 << 16), talk=st.integers(0, 2))
    def offer(self, pick: int, talk: int) -> None:
        names = self.alive(Phase.TERMINAL)
        if names:
            handle = self.world.streams[names[pick % len(names)]].handle
            tokens = self.world.scheduler.terminal_endpoint(handle)
            before = freeze(self.world.scheduler)
            if handle in self.world.scheduler.preempted():
                assert not self.world.scheduler.offer_terminal(handle, b"x")
                assert freeze(self.world.scheduler) == before
            else:
                self.world.scheduler.offer_terminal(handle, b"%d/%d" % (talk, tokens))

    @rule()
    def submit(self) -> None:
        self.world.submit()

    @rule()
    def look(self) -> None:
        """Planning changes nothing; the plan may be committed much later."""
        before = freeze(self.world.scheduler)
        plan = self.world.plan()
        assert freeze(self.world.scheduler) == before
        self.stale = plan or self.stale

    @precondition(lambda self: self.stale is not None)
    @rule()
    def commit_late(self) -> None:
        """An old plan is either still good or refused, and then nothing has changed."""
        plan, self.stale = self.stale, None
        before = freeze(self.world.scheduler)
        try:
            self.world.commit(plan)
        except (StalePlanError, UnknownHandleError):
            assert freeze(self.world.scheduler) == before

    @precondition(lambda self: bool(self.world.queue))
    @rule(late_ms=st.sampled_from([0.0, 0.0, 1.5, 250.0]))
    def finish_frame(self, late_ms: float) -> None:
        self.world.finish_frame(late_ms=late_ms)

    @precondition(lambda self: bool(self.world.queue))
    @rule()
    def fail_frame(self) -> None:
        flight = self.world.queue.popleft()
        self.world.scheduler.fail(flight.fence)

    @rule(ms=st.sampled_from([0.1, 40.0, 31_000.0]))
    def advance(self, ms: float) -> None:
        self.world.advance(ms)

    @rule()
    def drop(self) -> None:
        self.world.scheduler.drop_checkpoints()

    @rule(frames=st.integers(1, 12))
    def run(self, frames: int) -> None:
        for _ in range(frames):
            self.world.step()

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "world"):
            assert_usage_adds_up(self.world)
            assert_ownership(self.world)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run_until_idle(5_000)
            assert_ownership(self.world)
            assert_everything_is_back(self.world)


TestStates = StatesMachine.TestCase
TestStates.settings = hypothesis.settings(
    max_examples=15,
    deadline=None,
    stateful_step_count=40,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.slow
def test_many_more_histories() -> None:
    """The same machine, further."""
    StatesMachine.TestCase.settings = hypothesis.settings(
        TestStates.settings, max_examples=400, stateful_step_count=80
    )
    StatesMachine.TestCase("runTest").runTest()


def test_fences_are_never_reused() -> None:
    """A fence below the last one is refused whatever became of its frame."""
    world = World(MODEL, rows=4, pages=20, page_size=8, more={"page_growth": True})
    world.admit("a", 8, 4)
    world.run_until_idle()
    world.admit("b", 8, 4)
    plan = world.plan()
    assert plan is not None
    before = freeze(world.scheduler)
    with pytest.raises(Exception, match="is not above"):
        world.scheduler.commit(plan, Fence(1))
    assert freeze(world.scheduler) == before


RULES = (
    ("admit", 10),
    ("run", 14),
    ("submit", 4),
    ("finish_frame", 4),
    ("look", 1),
    ("commit_late", 1),
    ("cancel", 1),
    ("stop", 1),
    ("offer", 3),
    ("fail_frame", 0.3),
    ("advance", 0.5),
    ("drop", 0.2),
)


def storm(machine: str, seed: int, calls: int) -> tuple[World, StatesMachine]:
    """Call the machine's rules at random by weight, so that its pages run out again and again."""
    roll = random.Random(seed)
    storming = StatesMachine()
    storming.build(machine=machine, pages=roll.choice([14, 20]))
    world = storming.world
    for _ in range(calls):
        (name,) = roll.choices([n for n, _ in RULES], [w for _, w in RULES])
        if name in ("finish_frame", "fail_frame") and not world.queue:
            continue
        if name == "commit_late" and storming.stale is None:
            continue
        if name == "admit" and world.scheduler.usage().waiting > 3:
            continue
        getattr(storming, name)(**ARGUMENTS.get(name, lambda _: {})(roll))
        storming.everything_adds_up()
    return world, storming


ARGUMENTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "admit": lambda roll: {
        "talk": roll.randrange(2),
        "prompt": roll.randrange(1, 70),
        "cuts": roll.sample([5, 8, 16, 21, 40, 64], roll.randrange(4)),
        "ends": roll.random() < 0.4,
        "output": roll.randrange(1, 40),
        "ends_at": roll.choice([3, 30, 100]),
    },
    "run": lambda roll: {"frames": roll.randrange(1, 10)},
    "finish_frame": lambda roll: {"late_ms": roll.choice([0.0, 0.0, 1.5])},
    "cancel": lambda roll: {"pick": roll.randrange(1 << 16)},
    "stop": lambda roll: {"pick": roll.randrange(1 << 16)},
    "offer": lambda roll: {"pick": roll.randrange(1 << 16), "talk": roll.randrange(2)},
    "advance": lambda roll: {"ms": roll.choice([0.1, 40.0, 31_000.0])},
}


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_a_storm(machine: str) -> None:
    """Everything happens in one history, adds up after each call, and is back at its end."""
    totals: Counter[str] = Counter()
    for seed in (1,):
        world, storming = storm(machine, seed, 300)
        stats, usage = world.scheduler.checkpoint_stats(), world.scheduler.usage()
        totals.update(
            captures=stats.captures,
            hits=stats.hits,
            evictions=stats.evictions,
            preemptions=usage.preemptions,
            restores=sum(flight.name.startswith("restore") for flight in world.log),
        )
        storming.teardown()
    config = MACHINES[machine]
    if "snapshot_rows" in config or "page_prefixes" in config:
        assert min(totals["captures"], totals["hits"], totals["evictions"]) > 1, totals
    if "snapshot_rows" in config:
        assert totals["restores"] > 0, totals
    if "page_growth" in config:
        assert totals["preemptions"] > 1, totals


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_many_storms(machine: str, seed: int) -> None:
    """The same, from many seeds."""
    _, storming = storm(machine, 100 + seed, 500)
    storming.teardown()
