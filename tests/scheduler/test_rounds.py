"""Rules of rounds and mixed graphs, one by one (docs/design/scheduling-utility.md section 9)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

from helios.scheduler import Catalog, DecodeMode, GraphKind, RowAllocation, SpeculationConfig
from helios.scheduler.blocks import Candidate
from helios.scheduler.policy import Decision, is_queueable, steps_of
from tests.scheduler.oracles.generation import World, ceiling_of
from tests.scheduler.test_generation import CATALOGS, MODES, SURVIVALS, random_world, view_of
from tests.support.catalogs import descriptor, modelled
from tests.support.device import Always
from tests.support.world import World as DeviceWorld
from tests.support.world import measure_directly


def worlds(mode: str, seed: int, count: int = 40) -> Iterator[tuple[World, Decision]]:
    source = random.Random(seed)
    for _ in range(count):
        world = random_world(source, mode, aged=False)
        yield world, Decision(view_of(world, CATALOGS[mode]))


def rows_of(candidate: Candidate) -> list[int]:
    return [lane.output_ceiling for lane in candidate.cohort if not lane.prompt_tokens]


@pytest.mark.parametrize("mode", MODES)
def test_only_programs_of_the_decode_mode_are_candidates(mode: str) -> None:
    """Fixed: its width, host rows, mixed alike; adaptive: width one with draft state too (9.1)."""
    speculation = MODES[mode][1]
    for world, decision in worlds(mode, 1):
        for candidate in decision.candidates:
            graph = world.graphs[candidate.graph_index]
            if graph.kind in (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED):
                assert Catalog.generates(graph, speculation)
                assert graph.speculation_enabled == (mode != "ordinary")
            if mode == "fixed" and graph.speculation_enabled:
                assert graph.token_capacity == speculation.fixed_width
                assert graph.allocation is not RowAllocation.DEVICE


def test_width_one_competes_with_wider_programs_by_cost() -> None:
    """At one bucket the cheaper of width one and width four wins per time (9.1)."""
    names = ("initialize-b1", "prefill-c64", "terminal-b1", "speculative-b1-d0-w1")
    catalog = Catalog.of([descriptor(n) for n in (*names, "speculative-b1-d3-w4")])
    source = random.Random(2)
    decoder = random_world(source, "adaptive", aged=True).decoders[0]
    decoder = dataclasses.replace(
        decoder, limit=8, learned_limit=0, survivals=(0.5, 0.25, 0.125), share=1.0
    )
    for wide_ms, winner in ((1.0, "speculative-b1-d3-w4"), (16.0, "speculative-b1-d0-w1")):
        durations = tuple(wide_ms if g.token_capacity == 4 else 1.0 for g in catalog.graphs)
        world = World(
            (decoder,),
            (),
            catalog.graphs,
            durations,
            random_world(source, "adaptive", aged=False).policy,
            SpeculationConfig(mode=DecodeMode.ADAPTIVE),
        )
        world = dataclasses.replace(
            world, policy=dataclasses.replace(world.policy, output_token_value=64.0)
        )
        chosen = Decision(view_of(world, catalog)).winner
        assert chosen is not None
        assert catalog.graphs[chosen.graph_index].name == winner


@pytest.mark.parametrize("mode", ["fixed", "adaptive"])
def test_lengths_stay_within_their_ceilings_and_host_rows_within_p(mode: str) -> None:
    """min(D + 1, W, limits) per lane; exact host lengths fit P, device ceilings need not (9.2)."""
    exceeded = 0
    for world, decision in worlds(mode, 3):
        by_arrival = {d.arrival: d for d in world.decoders}
        for candidate in decision.candidates:
            graph = world.graphs[candidate.graph_index]
            if graph.kind not in (GraphKind.SPECULATIVE, GraphKind.MIXED):
                continue
            rows = rows_of(candidate)
            for lane in candidate.cohort:
                if not lane.prompt_tokens:
                    ceiling = ceiling_of(graph, by_arrival[lane.arrival])
                    assert 1 <= lane.output_ceiling <= ceiling
                    assert 1.0 <= lane.expected_tokens <= lane.output_ceiling
                    if mode == "fixed" or graph.allocation is RowAllocation.DEVICE:
                        assert lane.output_ceiling == ceiling
            if graph.allocation is RowAllocation.DEVICE:
                exceeded += sum(rows) > graph.rows
            elif graph.kind is GraphKind.SPECULATIVE:
                assert sum(rows) <= graph.rows
    assert mode == "fixed" or exceeded, "no device ceilings ever exceeded P"


def test_prices_rank_cohorts_and_never_move_the_devices_frontier() -> None:
    """With the same cohort, other token prices leave a device's expected rows alone (9.5)."""
    seen = 0
    for world, decision in worlds("adaptive", 4, 60):
        dear = dataclasses.replace(
            world,
            decoders=tuple(
                dataclasses.replace(d, token_price=64.0 * (i + 1))
                for i, d in enumerate(world.decoders)
            ),
        )
        again = Decision(view_of(dear, CATALOGS["adaptive"]))
        for candidate in decision.candidates:
            if world.graphs[candidate.graph_index].allocation is not RowAllocation.DEVICE:
                continue
            cohort = {lane.arrival: lane.expected_tokens for lane in candidate.cohort}
            for other in again.candidates:
                priced = {lane.arrival: lane.expected_tokens for lane in other.cohort}
                same = other.graph_index == candidate.graph_index
                if same and sorted(priced) == sorted(cohort):
                    assert priced == cohort
                    seen += 1
    assert seen


def test_ordinary_selection_reads_historical_means() -> None:
    """The optimistic bound is for acceptance learning alone; it never lowers a value (9.2)."""
    raised = 0
    for world, decision in worlds("adaptive", 5):
        if not world.decoders:
            continue
        for block in decision.optimistic():
            for own in decision.blocks:
                if list(own.graph) == list(block.graph):
                    # Where a device allocates, a forecast prices untrained rows instead.
                    devices = [
                        world.graphs[index].allocation is RowAllocation.DEVICE
                        for index in own.graph.tolist()
                    ]
                    exact = block.settled & own.settled & ~np.array(devices)
                    hopeful, sober = block.rate[exact], own.rate[exact]
                    assert (hopeful >= sober - 1e-9 * abs(sober)).all()
                    raised += int((hopeful > sober).any())
    assert raised


def test_the_whole_duration_is_charged_and_padding_earns_nothing() -> None:
    """The score of a padded mixed graph is its cohort's value over all of T (9.8, 9.10)."""
    for world, decision in worlds("ordinary", 6):
        for candidate in decision.candidates:
            graph = world.graphs[candidate.graph_index]
            if graph.kind is not GraphKind.MIXED or not candidate.determinate:
                continue
            value = sum(-lane.negative_value for lane in candidate.cohort)
            value += candidate.streams * candidate.age_slope * candidate.duration_ms
            charged = value / candidate.duration_ms
            charged -= 0.5 * candidate.duration_ms * decision.waiting.price
            assert -candidate.negative_rate == pytest.approx(charged)
            used = sum(rows_of(candidate)) + sum(x.prompt_tokens for x in candidate.cohort)
            room = graph.prefill_capacity + (graph.batch_capacity - 1) * graph.token_capacity
            assert candidate.padding == room - used >= 0


@pytest.mark.parametrize("mode", MODES)
def test_at_most_one_row_prefills_and_both_pure_populations_are_legal(mode: str) -> None:
    """`prefill_row` names the only prompt row; prompt-only and decode-only graphs occur (9.8)."""
    populations = {"prompt": 0, "decode": 0, "both": 0}
    for world, decision in worlds(mode, 7, 80):
        for candidate in decision.candidates:
            graph = world.graphs[candidate.graph_index]
            if graph.kind is not GraphKind.MIXED:
                continue
            steps = steps_of(candidate, graph.kind, world.speculation.mode)
            prompts = [i for i, step in enumerate(steps) if step.prompt_tokens]
            assert prompts == ([candidate.prefill_row] if candidate.prefill_row >= 0 else [])
            assert all(step.mixed is not None for step in steps)
            kind = "both" if prompts and len(steps) > 1 else "prompt" if prompts else "decode"
            populations[kind] += 1
    assert all(populations.values()), populations


def test_dominance_needs_the_same_depth_and_the_same_prompt_work() -> None:
    """A smaller program of another depth, or one that consumes less, makes nothing redundant."""
    geometry = view_of(next(worlds("adaptive", 8))[0], CATALOGS["adaptive"]).shapes.geometry
    graphs = CATALOGS["adaptive"].graphs
    for index, graph in enumerate(graphs):
        for smaller in geometry.smaller[index].tolist():
            other = graphs[smaller]
            assert other.kind is graph.kind
            assert other.proposal_depth == graph.proposal_depth
            assert other.batch_capacity <= graph.batch_capacity
    for world, decision in worlds("ordinary", 9):
        for candidate in decision.candidates:
            graph = world.graphs[candidate.graph_index]
            if graph.kind is GraphKind.MIXED and graph.prefill_capacity == 128:
                consumed = sum(lane.prompt_tokens for lane in candidate.cohort)
                assert consumed > 64 or graph.batch_capacity > 2, "mixed-b2-c64 does the same"


def test_which_programs_may_occupy_both_frame_slots() -> None:
    """Decode and rounds, unless proposals are copied; mixed graphs never (9.12)."""
    names = {
        "decode-b2": True,
        "speculative-b2-d0-w1": True,
        "speculative-b2-d3-w4": True,
        "speculative-b4-d3-w4-p8-device": True,
        "speculative-b2-d3-w4-copy": False,
        "mixed-b2-w1-c64": False,
        "mixed-b2-d3-w4-c64": False,
        "prefill-c64": False,
        "initialize-b1": False,
        "terminal-b1": False,
        "snapshot-b1": False,
        "restore-b1": False,
        "vision-c64": False,
    }
    assert {name: is_queueable(descriptor(name)) for name in names} == names


def test_high_acceptance_goes_wide_and_low_acceptance_goes_narrow() -> None:
    """The same costs, two acceptance histories: the width follows the yield per time (9.2)."""
    names = ("initialize-b1", "prefill-c64", "terminal-b1", "speculative-b1-d0-w1")
    catalog = Catalog.of([descriptor(n) for n in (*names, "speculative-b1-d3-w4")])
    durations = tuple(2.0 if g.token_capacity == 4 else 1.0 for g in catalog.graphs)
    base = random_world(random.Random(10), "adaptive", aged=True)
    for survivals, width in ((SURVIVALS[0], 4), (SURVIVALS[4], 1)):
        decoder = dataclasses.replace(
            base.decoders[0], limit=8, survivals=survivals, delivery_price=0.0, share=1.0
        )
        policy = dataclasses.replace(base.policy, output_token_value=64.0, decode_age_price=0.0)
        world = dataclasses.replace(
            base, decoders=(decoder,), prompts=(), graphs=catalog.graphs, durations_ms=durations
        )
        chosen = Decision(view_of(dataclasses.replace(world, policy=policy), catalog)).winner
        assert chosen is not None
        assert catalog.graphs[chosen.graph_index].token_capacity == width


def test_a_queued_lane_advances_by_no_more_than_all_target_rows() -> None:
    """Ceiling four, P two: the frame behind it starts at most two further (runtime 2)."""
    model = modelled(
        {
            "initialize-b1": 0.25,
            "prefill-c64": 4.0,
            "terminal-b1": 0.25,
            "speculative-b1-d3-w4-p2-device": 3.0,
        }
    )
    world = DeviceWorld(model, speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE))
    measure_directly(world)
    world.admit("a", 10, 6, acceptance=Always(3))
    world.run(2)
    first, second = (flight.plan.steps[0] for flight in world.submit())
    assert (first.position, first.output_ceiling) == (10, 4)
    assert (second.position, second.output_ceiling) == (12, 3)
    world.run_until_idle()
    assert len(world.streams["a"].tokens) == 6


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_a_device_gets_no_more_rows_than_the_supplied_copies_fill(copies: int) -> None:
    """Who allocates does not change what the host can copy (9.3)."""
    model = modelled(
        {
            "initialize-b1": 0.25,
            "prefill-c64": 4.0,
            "terminal-b1": 0.25,
            "speculative-b1-d3-w4-copy-device": 3.0,
        }
    )
    world = DeviceWorld(model, speculation=SpeculationConfig(mode=DecodeMode.ADAPTIVE))
    measure_directly(world)
    handle = world.admit("a", 10, 60)
    world.run(2)
    world.scheduler.supply_copies(handle, copies)
    (flight,) = world.submit()
    assert flight.plan.steps[0].output_ceiling == 1 + copies
