"""Any order of public calls over every kind of graph; refused calls are part of the game.

Rounds with host and device allocation, copies, mixed graphs, images, kept states and tenants share
one catalog here. What is checked after each call is what `tests/support/checkers.py` and the usage
report say; the choices themselves are compared with enumeration elsewhere.
"""

from __future__ import annotations

import random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helios.scheduler import (
    DecodeMode,
    Endpoint,
    ImageSpan,
    Phase,
    PolicyConfig,
    SchedulerError,
    SpeculationConfig,
)
from tests.scheduler.test_stateful import FAULTS, faulty
from tests.support.badcalls import BAD_CALLS
from tests.support.catalogs import Recipe, recipe
from tests.support.checkers import Checker
from tests.support.device import Acceptance, Always, Chance, Scripted
from tests.support.snapshot import freeze
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.workload import phase_of
from tests.support.world import World, honest_timing, measure_directly

EVERYTHING = recipe(
    Recipe(
        rows=4,
        prefills=(64,),
        widths=(1, 2, 4),
        ragged=((3, 2),),
        device=True,
        copy_depths=(3,),
        mixed=((1, 64), (4, 64)),
        vision=(64,),
        states=True,
    ),
    reports_survival=True,
)
MODES = [
    SpeculationConfig(mode=DecodeMode.ADAPTIVE),
    SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=1),
    SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=4),
]
ACCEPTANCES: list[Acceptance] = [
    Always(0),
    Always(3),
    Chance((0.9, 0.5), 0.5),
    Scripted((3, 0, 1)),
]
TALKS = {
    "none": (),
    "one": (Endpoint(16, b"one/16"),),
    "two": (Endpoint(16, b"one/16"), Endpoint(40, b"two/40")),
}
PICTURES = {
    "none": (),
    "small": (ImageSpan(2, 8, 30),),
    "two windows": (ImageSpan(0, 8, 60), ImageSpan(20, 10, 40)),
}


class RoundsMachine(RuleBasedStateMachine):
    """Everything that a host may do, in any order."""

    @initialize(
        policy=st.sampled_from([PolicyConfig(), PolicyConfig.balanced()]),
        speculation=st.sampled_from(MODES),
        is_measured=st.booleans(),
        page_growth=st.booleans(),
    )
    def build(
        self,
        policy: PolicyConfig,
        speculation: SpeculationConfig,
        is_measured: bool,
        page_growth: bool,
    ) -> None:
        self.world = World(
            EVERYTHING,
            rows=4,
            pages=20,
            page_size=16,
            context=320,
            policy=policy,
            speculation=speculation,
            more={
                "feature_rows": 64,
                "snapshot_rows": 3,
                "draft_extent_tokens": 3,
                "page_growth": page_growth,
            },
        )
        if is_measured:
            measure_directly(self.world)
        Checker.watch(self.world)
        self.names = 0

    @rule(
        prompt=st.integers(41, 130),
        output=st.integers(1, 30),
        ends_at=st.sampled_from([1, 2, 7, 100]),
        acceptance=st.sampled_from(ACCEPTANCES),
        talk=st.sampled_from(sorted(TALKS)),
        pictures=st.sampled_from(sorted(PICTURES)),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "needs_feedback": st.just(True),
                "weight": st.sampled_from([0.25, 3.0]),
                "buffered": st.just(True),
                "tenant": st.sampled_from(["a", "b"]),
                "width_limit": st.integers(1, 4),
                "learned_width_limit": st.integers(1, 3),
            },
        ),
    )
    def admit(
        self,
        prompt: int,
        output: int,
        ends_at: int,
        acceptance: Acceptance,
        talk: str,
        pictures: str,
        fields: dict[str, Any],
    ) -> None:
        self.names += 1
        # Keys name everything before an endpoint, so only prompts without images share any.
        endpoints = TALKS[talk] if pictures == "none" else ()
        self.world.admit(
            f"r{self.names}",
            prompt,
            output,
            ends_at=ends_at,
            acceptance=acceptance,
            endpoints=endpoints,
            images=PICTURES[pictures],
            **fields,
        )

    def pick(self, number: int, first: Phase, last: Phase) -> str | None:
        world = self.world
        names = [n for n in world.streams if first <= phase_of(world, n) <= last]
        return names[number % len(names)] if names else None

    @precondition(lambda self: self.names > 0)
    @rule(number=st.integers(0, 1 << 16))
    def cancel(self, number: int) -> None:
        name = self.pick(number, Phase.WAITING, Phase.DRAINING)
        if name is not None:
            self.world.cancel(name)

    @precondition(lambda self: self.names > 0)
    @rule(number=st.integers(0, 1 << 16))
    def stop(self, number: int) -> None:
        name = self.pick(number, Phase.DECODE, Phase.DECODE)
        if name is not None:
            self.world.stop(name)

    @precondition(lambda self: self.names > 0)
    @rule(number=st.integers(0, 1 << 16), count=st.integers(0, 5))
    def supply_copies(self, number: int, count: int) -> None:
        name = self.pick(number, Phase.DECODE, Phase.DECODE)
        if name is not None:
            self.world.scheduler.supply_copies(self.world.streams[name].handle, count)

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

    @precondition(lambda self: bool(self.world.queue))
    @rule()
    def fail_frame(self) -> None:
        self.world.fail_frame()

    @rule(ms=st.sampled_from([0.0, 0.1, 2.0, 40.0, 31_000.0]))
    def advance(self, ms: float) -> None:
        self.world.advance(ms)

    @rule(which=st.sampled_from(BAD_CALLS), seed=st.integers(0, 1 << 16))
    def call_badly(self, which: tuple[str, Any], seed: int) -> None:
        name, make = which
        attempt = make(self.world, random.Random(seed))
        if attempt is None:
            return
        errors, action = attempt
        before = freeze(self.world.scheduler)
        with pytest.raises(errors, match=r".") as raised:
            action()
        assert isinstance(raised.value, SchedulerError), f"{name}: not one of our errors"
        assert freeze(self.world.scheduler) == before, f"{name} changed the state"

    @invariant()
    def usage_adds_up(self) -> None:
        if hasattr(self, "world"):
            assert_usage_adds_up(self.world)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run_until_idle(5_000)
            assert_everything_is_back(self.world)


TestRounds = RoundsMachine.TestCase
TestRounds.settings = hypothesis.settings(
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=list(hypothesis.HealthCheck),
)
