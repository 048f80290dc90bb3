"""The screening of decoders against the general comparison of every program, bit for bit."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from helios.scheduler import Catalog, DecodeMode, PolicyConfig, SpeculationConfig
from helios.scheduler.acceptance import (
    COUNT,
    LEARNED,
    MEAN,
    START_WEIGHT,
    WEIGHT,
    AcceptanceTable,
)
from helios.scheduler.blocks import Block, Candidate
from helios.scheduler.forecast import OWN
from helios.scheduler.generation import Generation
from helios.scheduler.plan import ScheduledStep
from helios.scheduler.policy import Decision, steps_of
from helios.scheduler.rounds import SLACK
from helios.scheduler.selection import Selection
from helios.scheduler.utility import View
from tests.scheduler.oracles.generation import Decoder, World
from tests.scheduler.test_generation import BASE, CATALOGS, random_world, view_of
from tests.support.catalogs import descriptor

WIDE = (
    *BASE,
    *(f"speculative-b{b}-d{w - 1}-w{w}" for b in (1, 4, 16, 64) for w in (1, 2, 4)),
    *(f"speculative-b{b}-d{w - 1}-w{w}-p{b * (w + 1) // 2}" for b in (4, 16, 64) for w in (2, 4)),
    *(f"speculative-b{b}-d3-w4-p{b * 2}-device" for b in (4, 16, 64)),
    *(f"mixed-b{b}-d0-w1-c64" for b in (4, 16)),
)
PLAIN = (*BASE, *(f"decode-b{b}" for b in range(1, 65)), "mixed-b16-w1-c64")
LARGE = {
    "plain": (Catalog.of([descriptor(name) for name in PLAIN]), SpeculationConfig()),
    "wide": (
        Catalog.of([descriptor(name) for name in WIDE]),
        SpeculationConfig(mode=DecodeMode.ADAPTIVE),
    ),
}


def exactly(candidate: Candidate | None, view: View) -> tuple[object, ...]:
    """Every word of a candidate, its lanes and its steps, with every bit of its numbers."""
    if candidate is None:
        return ()
    kind = view.shapes.catalog.graphs[candidate.graph_index].kind
    steps: tuple[ScheduledStep, ...] = steps_of(candidate, kind, DecodeMode.ADAPTIVE)
    return (repr(candidate[:6]), repr(candidate[7:]), repr(list(candidate.lanes)), repr(steps))


def is_screened(view: View) -> bool:
    """Compare a decision with the general path; tell whether it was decided without it."""
    decision = Decision(view)
    found = exactly(decision.winner, view)
    screened = decision._alone is None
    blocks = decision.blocks
    winner = Selection(blocks, view.shapes.geometry).winner() if blocks else None
    assert found == exactly(winner, view)
    return screened


@pytest.mark.parametrize("mode", ["ordinary", "adaptive"])
def test_small_worlds_full_of_ties(mode: str) -> None:
    """Dyadic prices and durations, so that many scores are equal to the last bit."""
    source, screened = random.Random(11), 0
    for number in range(300):
        world = random_world(source, mode, aged=number % 2 == 0)
        if number % 3:
            world = dataclasses.replace(world, prompts=())
        if world.decoders or world.prompts:
            screened += is_screened(view_of(world, CATALOGS[mode]))
    assert screened > 25, "too few decisions were screened, so the comparison sees too little"


def large_world(source: random.Random, mode: str) -> World:
    """Draw a world of up to 64 streams with arbitrary prices, some near their last token."""
    catalog, speculation = LARGE[mode]
    count = source.choice([1, 3, 4, 5, 13, 16, 30, 64])
    skill = source.random()
    common = source.random() < 0.3
    decoders = []
    for index in range(count):
        chances = [source.random() ** (1.0 - skill) for _ in range(3)]
        survivals = (chances[0], chances[0] * chances[1], chances[0] * chances[1] * chances[2])
        decoders.append(
            Decoder(
                arrival=index,
                row=index,
                last_used=source.choice([2, 2, 2, 1]),
                token_price=7.25 if common else source.uniform(0.0, 30.0),
                delivery_price=12.5 if common else source.uniform(0.0, 60.0),
                age_ms=3.0 if common else source.uniform(0.0, 40.0),
                limit=source.choice([2, 3, 500]) if source.random() < 0.1 else 500,
                learned_limit=1 if skill < 0.15 and index % 3 == 1 else 0,
                copies=0,
                survivals=(0.8, 0.5, 0.25) if common else survivals,
                copied=survivals,
                forecast=survivals,
                share=1.0,
                is_trained=source.random() < 0.8,
            )
        )
    base = source.choice([0.5, 20.0])
    durations = tuple(
        base + source.choice([0.02, 0.1]) * graph.rows + source.choice([0.0, 0.0, 0.3])
        for graph in catalog.graphs
    )
    return World(tuple(decoders), (), catalog.graphs, durations, PolicyConfig(), speculation)


@pytest.mark.parametrize("mode", LARGE)
def test_up_to_sixty_four_streams(mode: str) -> None:
    """Arbitrary numbers: bounds must rule out no program that wins by the last bit."""
    source = random.Random(12)
    worlds = [large_world(source, mode) for _ in range(60)]
    screened = sum(is_screened(view_of(world, LARGE[mode][0])) for world in worlds)
    assert screened > 30, "too few decisions were screened, so the comparison sees too little"


def test_a_round_whose_rows_everybody_shares_has_the_score_of_its_best_cohort() -> None:
    """No smaller cohort is looked at where bounds leave none, and the score is the same bit."""
    source, scored, won = random.Random(31), 0, 0
    for _ in range(90):
        view = view_of(large_world(source, "wide"), LARGE["wide"][0])
        decision = Decision(view)
        shared = {} if decision._screening is None else decision._screening._shared
        if not shared:
            continue
        contest = view.shapes.geometry.contest(len(view.decoders))
        block = next(each for each in decision.blocks if isinstance(each, Generation))
        for place, found in shared.items():
            graph = int(contest.programs.graph[place])
            entry = int(np.flatnonzero(block.graph == graph)[0])
            block.settle(entry, -np.inf)
            assert block.rate[entry] == found.score
            assert block.served[entry] == len(view.decoders)
            best = block.best(entry)
            assert exactly(decision._screening.candidate(place), view) == exactly(best, view)
            scored += 1
            won += decision.winner is not None and decision.winner.graph_index == graph
    assert scored > 20, scored
    assert won > 10, won


def test_programs_with_forecasts_of_their_own_are_left_open() -> None:
    """Bounds that speak for several programs rule out most of them, and the rest are priced."""
    source, screened = random.Random(14), 0
    for number in range(60):
        view = view_of(large_world(source, "wide"), LARGE["wide"][0])
        forget_some(view, np.random.default_rng(number))
        screened += is_screened(view)
    assert screened > 30, "too few decisions were screened, so the comparison sees too little"


def test_what_rests_on_observation_is_told_like_the_aged_weights() -> None:
    """Every age up to where the largest weight counts for nothing, and some that cannot be."""
    source, count, depth = np.random.default_rng(13), 700, 3
    table = AcceptanceTable(count, depth)
    rows = np.arange(count)
    for row in range(count):
        cells = table.take(row)
        cells[LEARNED, WEIGHT] = source.choice([2.0, 4.0, 64.0, 128.0, source.uniform(2.0, 128.0)])
        cells[LEARNED, COUNT] = [5000 - row - 1, 5000 - 2 * row, 5000 - 128 * (row % 8)]
        cells[LEARNED, MEAN] = source.random(depth)
        table.put(row, cells)
    for generated in (4999, 5000, 5001, 60_000):
        counts = np.full(count, generated)
        survivals, informed = table.informed(rows, LEARNED, counts)
        weights = table.weights(rows, LEARNED, counts)
        assert np.array_equal(informed, weights > START_WEIGHT)
        assert np.array_equal(survivals, table.survivals(rows, LEARNED))
    assert informed.sum() == 0
    assert (table.weights(rows, LEARNED, np.full(count, 5000)) == START_WEIGHT).any()


def test_no_bound_lies_below_a_score() -> None:
    """A floor may leave an entry open, with a bound that still is one; what reaches the floor gets
    the very score that it has without one. That holds for programs with forecasts of their own."""
    source, seen = random.Random(21), {"open": 0, "reached": 0, "own": 0}
    for number in range(240):
        if number % 2:
            world = random_world(source, "adaptive", aged=number % 4 == 1)
            view = view_of(world, CATALOGS["adaptive"])
        else:
            view = view_of(large_world(source, "wide"), LARGE["wide"][0])
        forget_some(view, np.random.default_rng(number))
        scores = [score for block in Decision(view).blocks for score in exact_scores(block)]
        bounds = [block for block in Decision(view).blocks if isinstance(block, Generation)]
        pairs = [(block, entry) for block in bounds for entry in np.flatnonzero(~block.settled)]
        for (block, entry), score in zip(pairs, scores, strict=True):
            above = score + 0.01 * abs(score)
            seen["own"] += bool(block._scene.inexact[block._programs.lane_class[entry]])
            block.settle(entry, above)
            if not block.settled[entry]:
                seen["open"] += 1
                assert score - SLACK * abs(score) <= block.rate[entry] < above
                block.settle(entry, score)
            seen["reached"] += 1
            assert block.settled[entry]
            assert block.rate[entry] == score
    assert min(seen.values()) > 50, seen


def forget_some(view: View, source: np.random.Generator) -> None:
    """Let some rows have no forecasts but the priors of the programs, which differ."""
    assert view.estimates is not None
    forecast = view.estimates.forecast
    for request in view.decoders:
        if source.random() < 0.5:
            saved = forecast.take(request.row)
            saved.cells[OWN] = 0.0
            saved.starts[:] = np.sort(source.random(saved.starts.shape))[:, ::-1]
            forecast.put(request.row, saved)


def exact_scores(block: Block) -> list[float]:
    """Return the scores of the open entries of a block of programs, checked against its bounds."""
    if not isinstance(block, Generation):
        return []
    scores = []
    for entry in np.flatnonzero(~block.settled).tolist():
        bound = float(block.rate[entry])
        block.settle(entry, -np.inf)
        scores.append(float(block.rate[entry]))
        assert block.settled[entry]
        assert bound >= scores[-1] - SLACK * abs(scores[-1])
    return scores
