"""Pairs of a prerequisite and what follows, in numbers (scheduling-utility.md section 10)."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from helios.scheduler import DecodeMode, GraphKind, Phase, PolicyConfig, settlement
from helios.scheduler.allocation import frontier_order, lengths_of_cohorts
from helios.scheduler.blocks import Candidate
from helios.scheduler.candidates import scene_of_view, waiting_of
from helios.scheduler.cost import CostAges
from helios.scheduler.lookahead import preparing_blocks
from helios.scheduler.policy import Decision, score_of
from helios.scheduler.utility import units_of
from tests.scheduler.oracles.preparing import Item, Program, World
from tests.scheduler.test_oracle_preparing import speculation_of, view_of
from tests.support.catalogs import modelled
from tests.support.world import World as Machine

NO_AGES = PolicyConfig(decode_age_price=0.0, terminal_age_price=0.0)
SNAPSHOT = (GraphKind.SNAPSHOT,)


def world(
    durations: dict[str, float | None],
    *items: Item,
    policy: PolicyConfig = NO_AGES,
    mode: DecodeMode = DecodeMode.ORDINARY,
) -> World:
    """A world of named programs; a duration of None is unmeasured."""
    model = modelled({name: ms or 1.0 for name, ms in durations.items()})
    graphs = model.catalog.graphs
    programs = tuple(
        Program(index, graph, durations[graph.name]) for index, graph in enumerate(graphs)
    )
    generates = tuple(model.catalog.generates(graph, speculation_of(mode)) for graph in graphs)
    return World(items, programs, policy, generates)


def decide(situation: World, mode: DecodeMode = DecodeMode.ORDINARY) -> tuple[Decision, Candidate]:
    """The whole decision of a world and its winner."""
    decision = Decision(view_of(situation, mode))
    assert decision.winner is not None
    return decision, decision.winner


def name_of(situation: World, candidate: Candidate) -> str:
    """The program that would be submitted."""
    return situation.programs[candidate.graph_index].graph.name


def streams(count: int, *blocked: int, age_ms: float = 0.0) -> list[Item]:
    """Decoders; those at the places in `blocked` need a snapshot first."""
    return [
        Item(
            place,
            "decode",
            SNAPSHOT if place in blocked else (),
            token_price=1.0,
            delivery_price=2.0,
            age_ms=age_ms,
        )
        for place in range(count)
    ]


BASE: dict[str, float | None] = {"initialize-b1": 0.25, "prefill-c64": 4.0, "terminal-b4": 0.25}


# ---- the score of a sequence ---------------------------------------------------------------


@pytest.mark.parametrize("snapshot_ms", [0.25, 0.5, 0.875, 1.0, 1.125, 2.0])
def test_a_shared_batch_wins_only_when_the_whole_sequence_pays(snapshot_ms: float) -> None:
    """Four streams over T + F against three over F: the snapshot wins below T = F/3 exactly; at the
    threshold the rates are equal and the shorter known time is preferred."""
    situation = world({**BASE, "decode-b4": 3.0, "snapshot-b1": snapshot_ms}, *streams(4, 3))
    _, winner = decide(situation)
    expected = "snapshot-b1" if snapshot_ms < 1.0 else "decode-b4"
    assert name_of(situation, winner) == expected


def test_the_threshold_moves_with_the_waiting_of_the_others() -> None:
    """With ages the same comparison holds between the two whole scores (10.5)."""
    policy = PolicyConfig(decode_age_price=0.5, terminal_age_price=0.0)
    for snapshot_ms in np.arange(1, 33) / 16.0:
        durations = {**BASE, "decode-b4": 3.0, "snapshot-b1": float(snapshot_ms)}
        situation = world(durations, *streams(4, 3, age_ms=2.0), policy=policy)
        _, winner = decide(situation)
        value, sigma, whole_ms = 64 + 16 + 4 * 2, 4 * 3.0 / 4, 3.0 + snapshot_ms
        alone = 3 * (value + 0.5 * sigma * (2.0 + 3.0)) / 3.0 - 3.0 / 2 * 4 * 0.5
        pair = 4 * (value + 0.5 * sigma * (2.0 + whole_ms)) / whole_ms - whole_ms / 2 * 4 * 0.5
        assert (name_of(situation, winner) == "snapshot-b1") == (pair > alone)


def test_a_retired_row_stops_ageing_at_t() -> None:
    """V + c_t sigma (A + T) + c_t (L^2 - T^2)/2 for the row that the first graph retires (10.5)."""
    policy = PolicyConfig(decode_age_price=0.0, terminal_age_price=2.0)
    situation = world(
        {**BASE, "decode-b4": 3.0, "snapshot-b2": 1.0},
        *streams(1, 0),
        Item(1, "terminal", age_ms=8.0),
        policy=policy,
    )
    decision, _ = decide(situation)
    pair = next(c for c in decision.candidates if c.following_index is not None)
    assert pair.terms is not None
    sigma = min(0.25, 1.0)
    assert [lane.request.arrival for lane in pair.cohort] == [0, 1]
    assert pair.terms.terminal == 256.0
    assert pair.terms.age == 2.0 * sigma * (8.0 + 1.0)
    assert pair.terms.saved_waiting == 2.0 * (4.0**2 - 1.0**2) / 2
    total = sum(pair.terms)
    assert -pair.negative_rate == pytest.approx(total / 4.0 - 4.0 / 2 * 2.0)


def test_the_productive_first_stage_competes_alone() -> None:
    """The snapshot that retires is a candidate over T too, its spare row advancing the blocked
    stream; it wins when what would follow is slow (10.5)."""
    situation = world(
        {**BASE, "terminal-b4": None, "decode-b4": 50.0, "snapshot-b2": 1.0},
        *streams(1, 0),
        Item(1, "terminal"),
    )
    situation = dataclasses.replace(
        situation,
        programs=tuple(p for p in situation.programs if p.graph.kind is not GraphKind.TERMINAL),
    )
    situation = dataclasses.replace(
        situation,
        programs=tuple(
            dataclasses.replace(p, index=place) for place, p in enumerate(situation.programs)
        ),
        generates=tuple(p.graph.kind is GraphKind.DECODE for p in situation.programs),
    )
    _, winner = decide(situation)
    assert (name_of(situation, winner), winner.following_index) == ("snapshot-b2", None)
    assert winner.served == 2
    assert -winner.negative_rate == 256.0


def test_a_state_to_be_kept_is_retired_by_a_snapshot_alone() -> None:
    """A terminal graph would lose it; both kinds retire any other row (decision 0009)."""
    durations = {**BASE, "terminal-b1": 0.25, "snapshot-b2": 4.0, "decode-b1": 3.0}
    situation = world(durations, Item(0, "terminal"), Item(1, "terminal"))
    for armed in (False, True):
        view = view_of(situation, DecodeMode.ORDINARY)
        view.terminals[1].transfer_row = 0 if armed else -1
        found: dict[str, list[int]] = {}
        for candidate in Decision(view).candidates:
            arrivals = [lane.request.arrival for lane in candidate.cohort]
            found[name_of(situation, candidate)] = sorted(arrivals)
        assert found["snapshot-b2"] == [0, 1]
        assert found.get("terminal-b4", [0]) == ([0] if armed else [0, 1])


def test_spare_rows_go_to_the_least_recently_used() -> None:
    """Further blocked requests fill the first graph at no cost (10.4)."""
    items = [dataclasses.replace(i, last_used=9 - i.name) for i in streams(4, 0, 1, 2, 3)]
    items[0] = dataclasses.replace(items[0], token_price=8.0)
    durations = {**BASE, "decode-b1": 3.0, "snapshot-b2": 1.0}
    _, winner = decide(world(durations, *items))
    assert [lane.request.arrival for lane in winner.cohort] == [0, 3]
    assert [lane.request.arrival for lane in winner.following_lanes] == [0]


def test_a_pair_is_unknown_when_either_duration_is() -> None:
    """It then scores the plain value at T = L = 0 and beats what is measured (10.5)."""
    for unknown in ("snapshot-b1", "decode-b2"):
        durations = {**BASE, "decode-b1": 3.0, "decode-b2": 3.0, "snapshot-b1": 1.0}
        situation = world({**durations, unknown: None}, *streams(2, 1))
        _, winner = decide(situation)
        assert name_of(situation, winner) == "snapshot-b1"
        assert not winner.determinate
        assert -winner.negative_rate == 2 * (64 + 16 + 8)


# ---- mixed graphs that follow --------------------------------------------------------------

MIXED: dict[str, float | None] = {
    **BASE,
    "prefill-c64": 40.0,
    "decode-b2": 3.0,
    "restore-b2": 0.5,
    "mixed-b2-w1-c64": 6.0,
    "mixed-b4-w1-c128": 8.0,
}


def test_a_following_mixed_graph_has_three_roles_for_its_prompt() -> None:
    """Absent, ready before, or enabled by the prerequisite (10.7)."""
    situation = world(
        MIXED,
        Item(0, "prompt", (GraphKind.RESTORE,), token_price=1.0, prompt_left=40),
        Item(1, "prompt", token_price=1.0, prompt_left=60),
        Item(2, "decode", (GraphKind.RESTORE,), token_price=1.0),
        Item(3, "decode", token_price=1.0),
    )
    decision, _ = decide(situation)
    mixed = next(p.index for p in situation.programs if p.graph.name == "mixed-b4-w1-c128")
    small = next(p.index for p in situation.programs if p.graph.name == "mixed-b2-w1-c64")
    found = {
        tuple(lane.request.arrival for lane in candidate.following_lanes)
        for candidate in decision.candidates
        if candidate.following_index in (mixed, small)
    }
    assert (2, 3) in found, "absent"
    assert (1, 2, 3) in found, "ready before"
    assert (0, 2, 3) in found, "enabled, with a newly ready decoder"
    assert not any(0 not in lanes and 2 not in lanes for lanes in found), "one is newly ready"


def test_the_longer_prompt_escapes_the_smaller_capacity() -> None:
    """The best prompt of c128 fits c64 and belongs there; the larger graph is left with the prompt
    that goes further in it (10.6)."""
    durations = {**MIXED, "mixed-b4-w1-c64": 6.0, "mixed-b4-w1-c128": 2.0}
    del durations["mixed-b2-w1-c64"]
    situation = world(
        durations,
        Item(0, "prompt", (GraphKind.RESTORE,), token_price=16.0, prompt_left=40),
        Item(1, "prompt", (GraphKind.RESTORE,), token_price=0.5, prompt_left=100),
    )
    _, winner = decide(situation)
    lanes = [(lane.request.arrival, lane.prompt_tokens) for lane in winner.following_lanes]
    assert winner.following_index is not None
    assert situation.programs[winner.following_index].graph.name == "mixed-b4-w1-c64"
    assert lanes == [(0, 40)]
    cheaper = world(
        durations,
        Item(0, "prompt", (GraphKind.RESTORE,), token_price=2.0, prompt_left=40),
        Item(1, "prompt", (GraphKind.RESTORE,), token_price=0.5, prompt_left=100, outputs_left=1),
    )
    _, winner = decide(cheaper)
    assert [lane.request.arrival for lane in winner.following_lanes] == [1]
    assert winner.following_lanes[0].prompt_tokens == 100


# ---- rounds whose target rows do not hold every lane ---------------------------------------

RAGGED: dict[str, float | None] = {
    **BASE,
    "speculative-b1-d0-w1": 2.0,
    "speculative-b4-d1-w2-p4": 3.0,
    "speculative-b4-d1-w2-p6": 3.5,
    "snapshot-b1": 0.5,
    "snapshot-b2": 0.75,
}


def causal_best(situation: World, following: Program, first: Program) -> float:
    """The best score of any pair of cohorts, each priced by its causal allocation."""
    blocked = [item for item in situation.items if item.stages]
    items = list(situation.items)
    token = np.array([64 + 16 * item.token_price for item in items])
    delivery = np.array([4 * item.delivery_price for item in items])
    order = frontier_order(0.5 * token[:, None], np.array([2] * len(items)), np.arange(len(items)))
    whole_ms = (first.duration_ms or 0.0) + (following.duration_ms or 0.0)
    best = -np.inf
    for size in range(1, min(following.rows, following.graph.rows, len(items)) + 1):
        for cohort in itertools.combinations(items, size):
            newly = sum(1 for item in cohort if item in blocked)
            if not 1 <= newly <= first.rows:
                continue
            inside = np.array([[item in cohort for item in items]])
            lengths = lengths_of_cohorts(order, inside, np.array([following.graph.rows]))[0]
            tokens = np.where(lengths == 2, 1.5, np.where(lengths == 1, 1.0, 0.0))
            value = float((tokens * token + delivery * inside[0]).sum())
            best = max(best, value / whole_ms)
    return best


def test_ragged_rounds_are_bounded_by_every_cohort() -> None:
    """Adaptive: never above the best causal cohort of all, and mostly equal to it (10.7)."""
    random_ = random.Random(5)
    compared = equal = 0
    for _ in range(60):
        items = [
            dataclasses.replace(
                item,
                token_price=random_.choice((0.5, 2.0, 8.0)),
                delivery_price=random_.choice((0.0, 8.0)),
            )
            for item in streams(5, 0, *random_.sample(range(1, 5), random_.randint(0, 2)))
        ]
        situation = world(RAGGED, *items, mode=DecodeMode.ADAPTIVE)
        view = view_of(situation, DecodeMode.ADAPTIVE)
        units = units_of(view)
        blocks = preparing_blocks(scene_of_view(view, units, waiting_of(view, units)), units)
        for block in blocks:
            for entry in np.flatnonzero(block.rate > -np.inf).tolist():
                candidate = block.best(entry)
                assert candidate.following_index is not None
                following = situation.programs[candidate.following_index]
                if following.graph.rows == following.rows * following.width:
                    continue
                first = situation.programs[candidate.graph_index]
                best = causal_best(situation, following, first)
                score = -candidate.negative_rate
                assert score <= best * (1 + 1e-12)
                assert score <= block.rate[entry] * (1 + 1e-12), "the bound holds"
                assert sum(lane.output_ceiling for lane in candidate.following_lanes) <= (
                    following.graph.rows
                )
                compared += 1
                equal += score == pytest.approx(best, rel=1e-12)
    assert compared > 100
    assert equal >= 0.9 * compared


# ---- explanations --------------------------------------------------------------------------


def test_explained_terms_add_up_for_pairs_and_chains() -> None:
    """Every term of every candidate, in a world with a chain, a pair and a retirement (10.12)."""
    policy = PolicyConfig(decode_age_price=0.5, terminal_age_price=2.0)
    durations = {**BASE, "decode-b4": 3.0, "snapshot-b2": 1.0, "restore-b1": 0.5}
    situation = world(
        durations,
        *streams(2, 1, age_ms=4.0),
        Item(2, "prompt", (GraphKind.SNAPSHOT, GraphKind.RESTORE), prompt_left=40),
        Item(3, "terminal", age_ms=2.0),
        policy=policy,
    )
    decision, _ = decide(situation)
    ages = CostAges((0,) * len(situation.programs), 0)
    scores = [score_of(decision, c, ages, 1) for c in decision.candidates]
    for score in scores:
        total = score.service_value + score.delivery_value + score.age_credit
        total += score.terminal_value + score.saved_waiting + score.continuation_value
        whole_ms = score.duration_ms + score.following_ms
        assert score.value_rate == pytest.approx(total / whole_ms - score.waiting_cost)
    alone = next(s for s in scores if s.graph == "snapshot-b2" and s.following is None)
    # The chain needs 0.5 ms of restore and 4 ms of prefill behind the snapshot's 1 ms.
    assert alone.continuation_value == pytest.approx((40 + 64) * 1.0 / (1.0 + 4.5))
    assert any(score.saved_waiting > 0.0 for score in scores)


# ---- end to end ----------------------------------------------------------------------------


def test_a_snapshot_graph_retires_where_no_terminal_graph_exists() -> None:
    """The response completes and the row is free once the snapshot is done."""
    model = modelled(
        {"initialize-b2": 0.25, "prefill-c64": 4.0, "decode-b2": 3.0, "snapshot-b2": 0.5}
    )
    machine = Machine(model, rows=2)
    for name in "abc":
        machine.admit(name, 32, 3)
    machine.run_until_idle()
    assert all(len(stream.tokens) == 3 for stream in machine.streams.values())
    for stream in machine.streams.values():
        assert machine.scheduler.phase_of(stream.handle) is Phase.RELEASED
    retired = [
        step.is_retired for f in machine.log for step in f.plan.steps if "snapshot" in f.name
    ]
    assert retired == [True] * 3
    assert machine.scheduler.usage().rows_in_use == 0


def test_snapshots_earn_no_token_or_delivery_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a SNAPSHOT alone is worth has no token and no burst, and no price takes one in (P34)."""
    model = modelled(
        {"initialize-b2": 0.25, "prefill-c64": 4.0, "decode-b2": 3.0, "snapshot-b2": 0.5}
    )
    machine = Machine(model, rows=3, seeded=model.duration_ns)
    served: list[int] = []
    settle = settlement.settle

    def listening(shares: Any, served_tokens: Mapping[Any, int], *rest: Any) -> None:
        served[:] = served_tokens.values()
        settle(shares, served_tokens, *rest)

    monkeypatch.setattr(settlement, "settle", listening)
    for index, name in enumerate("abcde"):
        machine.admit(name, 32, 3 + 2 * index)
    priced = finished = 0
    while machine.scheduler.usage().resident:
        if (plan := machine.plan()) is not None:
            for score in machine.scheduler.explain():
                if score.graph == "snapshot-b2" and score.following is None:
                    assert (score.service_value, score.delivery_value) == (0.0, 0.0)
                    assert score.terminal_value > 0.0
                    priced += 1
            machine.commit(plan)
            continue
        flight = machine.queue[0]
        tokens = machine.finish_frame()
        if flight.plan.graph.kind is GraphKind.SNAPSHOT:
            finished += 1
            assert tokens == []
            assert not any(served)
            last = machine.scheduler._state.interval
            assert last is not None
            assert not last.prices_before, "a publication of a snapshot's fence would be a burst"
        elif flight.plan.graph.kind is GraphKind.DECODE:
            assert any(served)
    assert priced > 0
    assert finished > 0


def test_the_plan_and_its_sample_know_the_first_graph_alone() -> None:
    """F and L enter neither the expected end nor what the cost table learns (10.1)."""
    model = modelled(
        {"initialize-b2": 0.25, "prefill-c64": 4.0, "decode-b2": 3.0, "snapshot-b2": 0.5}
    )
    machine = Machine(model, rows=2, seeded=model.duration_ns)
    machine.admit("a", 32, 3)
    plan = machine.plan()
    assert plan is not None
    assert plan.terms is not None
    assert (plan.graph.name, plan.terms.following) == ("initialize-b2", "prefill-c64")
    assert plan.terms.following_ms == 4.0
    assert plan.estimated_duration_ns == 250_000
    machine.commit(plan)
    assert machine.scheduler.trace_of(machine.queue[-1].fence).expected_end_ns == 250_000
    machine.finish_frame()
    machine.admit("b", 32, 3)
    machine.plan()
    costs = {s.graph: s.duration_ms for s in machine.scheduler.explain()}
    assert (costs["initialize-b2"], costs["prefill-c64"]) == (0.25, 4.0)
