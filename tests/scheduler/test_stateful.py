"""Any order of public calls: after each one the invariants hold and every plan is a best one."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helios.scheduler import ExecutionTiming, Phase, PolicyConfig
from tests.scheduler.oracles.shadow import Shadow
from tests.support.catalogs import modelled
from tests.support.checkers import Checker
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.workload import phase_of
from tests.support.world import Flight, World, honest_timing

MODEL = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c16": 4.0,
        "prefill-c64": 9.0,
        "scored-prefill-c64": 11.0,
        "decode-b1": 3.0,
        "decode-b2": 3.4,
        "decode-b4": 4.1,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
    }
)
FAULTS = ("honest", "honest", "honest", "missing", "zero", "slow", "readiness")


class SchedulerMachine(RuleBasedStateMachine):
    """Admit, cancel, stop, submit, complete, publish and advance in any order."""

    @initialize(
        policy=st.sampled_from(
            [PolicyConfig(), PolicyConfig.throughput(), PolicyConfig(token_fairness=0.0)]
        ),
        is_seeded=st.booleans(),
    )
    def build(self, policy: PolicyConfig, is_seeded: bool) -> None:
        seeded = tuple(MODEL.duration_ns) if is_seeded else None
        self.world = World(MODEL, rows=4, pages=24, page_size=16, policy=policy, seeded=seeded)
        self.checker = Checker.watch(self.world)
        self.shadow = Shadow.watch(self.world, seeded=seeded or ())
        self.names = 0

    @rule(
        prompt=st.integers(1, 150),
        output=st.integers(1, 12),
        ends_at=st.sampled_from([1, 2, 5, 100]),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "scored": st.just(True),
                "needs_feedback": st.just(True),
                "weight": st.sampled_from([0.25, 3.0]),
                "buffered": st.just(True),
            },
        ),
    )
    def admit(self, prompt: int, output: int, ends_at: int, fields: dict[str, Any]) -> None:
        self.names += 1
        self.world.admit(f"r{self.names}", prompt, output, ends_at=ends_at, **fields)

    @precondition(lambda self: self.names > 0)
    @rule(pick=st.integers(0, 1 << 16))
    def cancel(self, pick: int) -> None:
        names = [n for n in self.world.streams if self.phase(n) is not Phase.RELEASED]
        if names:
            self.world.cancel(names[pick % len(names)])

    @precondition(lambda self: self.names > 0)
    @rule(pick=st.integers(0, 1 << 16))
    def stop(self, pick: int) -> None:
        names = [n for n in self.world.streams if self.phase(n) is Phase.DECODE]
        if names:
            self.world.stop(names[pick % len(names)])

    @rule()
    def submit(self) -> None:
        self.world.submit()

    @rule()
    def submit_one(self) -> None:
        plan = self.world.plan()
        if plan is not None:
            self.world.commit(plan)

    @precondition(lambda self: bool(self.world.queue))
    @rule(
        fault=st.sampled_from(FAULTS),
        late_ms=st.sampled_from([0.0, 0.0, 1.5, 250.0]),
        publish=st.sampled_from([True, True, True, False]),
    )
    def finish_frame(self, fault: str, late_ms: float, publish: bool) -> None:
        self.world.timing_of = lambda world, flight: faulty(fault, world, flight)
        self.world.finish_frame(late_ms=late_ms, publish=publish)
        self.world.timing_of = honest_timing

    @rule(ms=st.sampled_from([0.0, 0.1, 2.0, 40.0, 31_000.0]))
    def advance(self, ms: float) -> None:
        self.world.advance(ms)

    @rule(pick=st.integers(0, 1 << 16))
    def release_buffer(self, pick: int) -> None:
        names = list(self.world.streams)
        if names:
            self.world.release(names[pick % len(names)])

    @invariant()
    def usage_adds_up(self) -> None:
        if hasattr(self, "world"):
            assert_usage_adds_up(self.world)

    def phase(self, name: str) -> Phase:
        return phase_of(self.world, name)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run_until_idle(5_000)
            assert_everything_is_back(self.world)


def faulty(fault: str, world: World, flight: Flight) -> ExecutionTiming:
    """Report a frame's timing with one fault."""
    honest = honest_timing(world, flight)
    device_ns = {
        "missing": (),
        "zero": (0, 0),
        "slow": (10 * honest.device_ns[0],),
    }.get(fault, honest.device_ns)
    readiness_ns = honest.device_ns[0] // 2 if fault == "readiness" else 0
    return ExecutionTiming(device_ns=device_ns, wall_ns=honest.wall_ns, readiness_ns=readiness_ns)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = hypothesis.settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=list(hypothesis.HealthCheck),
)
