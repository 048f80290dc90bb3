"""Random rounds, completions and endings on the real scheduler against one-value twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from helios.scheduler import CompletionError, GeneratedToken, Phase
from helios.scheduler.acceptance import COPY, LEARNED, MEAN
from tests.scheduler.oracles.speculation import Row, frontier_lengths
from tests.support import rounds
from tests.support.rounds import COPY as COPY_GRAPH
from tests.support.rounds import DEPTH, DEVICE, HOST, NARROW, decoding, fly, land, lane, sidecar
from tests.support.snapshot import freeze
from tests.support.world import Flight

WIDTH = {HOST: 4, DEVICE: 4, NARROW: 1, COPY_GRAPH: 6}
NAMES = "abcd"
CONFIDENCES = [(1.0, 0.5, 0.25), (0.5, 0.5, 0.0), (0.25, 0.125, 0.125)]


class Rounds(RuleBasedStateMachine):
    """Frames of any program over any lanes, with faults tried before each honest completion."""

    @initialize()
    def start(self) -> None:
        self.world = decoding(NAMES, output=dict(zip(NAMES, (30, 400, 4000, 9), strict=True)))
        self.twins = {(name, s): Row(DEPTH) for name in NAMES for s in (LEARNED, COPY)}
        self.committed: dict[str, list[GeneratedToken]] = {name: [] for name in NAMES}
        self.flight: Flight | None = None
        self.confidence: dict[str, tuple[float, ...]] = {}

    def live(self, name: str) -> bool:
        return rounds.phase_of(self.world, name) is Phase.DECODE

    def outputs(self, name: str) -> int:
        return self.world.scheduler.output_count_of(self.world.streams[name].handle)

    @precondition(lambda self: self.flight is None and any(map(self.live, NAMES)))
    @rule(data=st.data(), graph=st.sampled_from(sorted(WIDTH)))
    def submit(self, data: st.DataObject, graph: str) -> None:
        able = [name for name in NAMES if self.live(name)]
        cohort = data.draw(st.permutations(able).flatmap(lambda p: st.just(p[: 1 + len(p) // 2])))
        ceilings = {}
        for name in cohort:
            left = self.world.streams[name].spec.max_output_tokens - self.outputs(name)
            ceilings[name] = data.draw(st.integers(1, min(WIDTH[graph], left)))
        self.flight = fly(self.world, graph, ceilings)
        self.confidence = {name: data.draw(st.sampled_from(CONFIDENCES)) for name in cohort}

    @rule()
    def pass_time(self) -> None:
        self.world.advance(1.0)

    @precondition(lambda self: self.flight is not None)
    @rule(name=st.sampled_from(NAMES), ending=st.sampled_from(["cancel", "stop"]))
    def end(self, name: str, ending: str) -> None:
        if self.live(name):
            getattr(self.world, ending)(name)

    @precondition(lambda self: self.flight is not None)
    @rule(data=st.data(), with_survival=st.booleans())
    def finish(self, data: st.DataObject, with_survival: bool) -> None:
        assert self.flight is not None
        flight, world, graph = self.flight, self.world, self.flight.plan.graph
        self.flight = None
        ceilings = [step.output_ceiling for step in flight.plan.steps]
        offered = ceilings
        more: dict[str, object] = {}
        if graph.name == DEVICE:
            shown = [self.confidence[name] for name in flight.lanes]
            slots = [step.row for step in flight.plan.steps]
            offered = frontier_lengths(shown, ceilings, slots, graph.rows)
            more["confidence"] = sidecar(world, self.confidence)
        survival = None
        if with_survival and graph.reports_survival:
            survival = (0.75, 0.5, 0.5, 0.25, 0.0)
            more["survival"] = sidecar(world, dict.fromkeys(flight.lanes, survival))
        records = []
        for index, rows in enumerate(offered):
            tokens = data.draw(st.integers(1, rows))
            ended = data.draw(st.integers(0, 9)) == 0
            said = rows if graph.name == DEVICE else 0
            records.append(lane(flight, index, tokens, offered=said, terminated=ended))
        self.try_faults(flight, records, more)
        was_live = [self.live(name) for name in flight.lanes]
        tokens = land(world, flight, records, **more)  # type: ignore[arg-type]
        source = COPY if graph.name == COPY_GRAPH else LEARNED
        for name, alive, record, rows in zip(flight.lanes, was_live, records, offered, strict=True):
            mine = [t for t in tokens if t.handle == world.streams[name].handle]
            assert [t.token for t in mine] == (list(record.tokens) if alive else [])
            self.committed[name] += mine
            if alive:
                at = 1 + len(self.committed[name])
                self.twins[name, source].round(
                    rows,
                    len(record.tokens),
                    at,
                    terminated=record.terminated,
                    survival=survival,
                )

    def try_faults(self, flight: Flight, records: list, more: dict[str, object]) -> None:
        self.world.advance_to(max(self.world.now_ns, flight.finish_ns))
        before = freeze(self.world.scheduler)
        beyond = lane(flight, 0, flight.plan.steps[0].output_ceiling + 1)
        attempts = [([beyond, *records[1:]], more), (records[1:], more)]
        for which, values in more.items():
            spoilt = np.array(values)
            spoilt[:, flight.plan.steps[-1].row, 0] = np.nan
            if (
                which == "confidence"
                or records[-1].offered > 1
                or (not records[-1].offered and flight.plan.steps[-1].output_ceiling > 1)
            ):
                attempts.append((records, {**more, which: spoilt}))
        for wrong, sidecars in attempts:
            with pytest.raises(CompletionError):
                land(self.world, flight, wrong, **sidecars)  # type: ignore[arg-type]
        assert freeze(self.world.scheduler) == before

    @invariant()
    def estimates_equal_the_twins(self) -> None:
        table = rounds.history(self.world).acceptance
        means = table._cells[:, :, MEAN]
        assert ((means >= 0) & (means <= 1)).all()
        for name in NAMES:
            if not self.live(name):
                continue
            rows, at = np.array([rounds.row_of(self.world, name)]), self.outputs(name)
            for source in (LEARNED, COPY):
                twin = self.twins[name, source]
                read = table.survivals(rows, source)[0].tolist()
                assert read == pytest.approx(twin.survivals(), abs=1e-12)
                weights = table.weights(rows, source, np.array([at]))[0].tolist()
                assert weights == pytest.approx([c.aged(at) for c in twin.cells], rel=1e-12)
                assert all(2 * 2 ** (-at / 128) - 1e-12 <= w <= 128 for w in weights)

    @invariant()
    def outputs_are_consecutive_and_within_their_limit(self) -> None:
        for name, tokens in self.committed.items():
            assert [token.output_index for token in tokens] == list(range(1, 1 + len(tokens)))
            assert 1 + len(tokens) <= self.world.streams[name].spec.max_output_tokens
            assert not any(token.is_last for token in tokens[:-1])


class LongRounds(Rounds):
    """The same, for longer."""


Rounds.TestCase.settings = settings(max_examples=6, stateful_step_count=15, deadline=None)
LongRounds.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_random_rounds = Rounds.TestCase
test_many_random_rounds = pytest.mark.slow(LongRounds.TestCase)
