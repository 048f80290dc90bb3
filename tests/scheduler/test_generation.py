"""Decode, rounds and mixed graphs: the decision against exhaustive enumeration, ties included.

Prices, survivals and durations are dyadic, so equal scores are equal in floating point and every
word of the order is compared (docs/design/scheduling-utility.md section 9).
"""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphDescriptor,
    PolicyConfig,
    RequestHandle,
    RequestSpec,
    SpeculationConfig,
)
from helios.scheduler.acceptance import (
    COPY,
    LEARNED,
    MEAN,
    WEIGHT,
    AcceptanceTable,
)
from helios.scheduler.blocks import Candidate, rank_key
from helios.scheduler.candidates import undominated
from helios.scheduler.forecast import OWN, ForecastTable
from helios.scheduler.policy import Decision
from helios.scheduler.requests import Request
from helios.scheduler.utility import Estimates, Shapes, View
from helios.scheduler.window import price_ages
from tests.scheduler.oracles.generation import Choice, Decoder, Prompt, World, choices_of
from tests.support.catalogs import descriptor

DEPTH = 3
BASE = ("initialize-b1", "prefill-c64", "prefill-c128", "terminal-b1")
ORDINARY = (
    *BASE,
    *(f"decode-b{b}" for b in (1, 2, 4)),
    *(f"mixed-b{b}-w1-c{c}" for b in (2, 4) for c in (64, 128)),
)
FIXED = (
    *BASE,
    *(f"speculative-b{b}-d2-w3" for b in (1, 2, 4)),
    "speculative-b2-d2-w3-p4",
    "speculative-b4-d2-w3-p6",
    "speculative-b4-d2-w3-p8",
    "speculative-b4-d3-w3-p8",
    "speculative-b2-d2-w3-copy",
    "speculative-b4-d2-w3-p5-copy",
    "speculative-b4-d2-w3-p7-device",
    "speculative-b2-d1-w2",
    "mixed-b2-d2-w3-c64",
    "mixed-b4-d2-w3-c64",
    "mixed-b4-d2-w3-c128",
)
ADAPTIVE = (
    *BASE,
    *(f"speculative-b{b}-d0-w1" for b in (1, 2, 4)),
    "speculative-b1-d3-w4",
    "speculative-b2-d3-w4-p6",
    "speculative-b4-d3-w4-p6",
    "speculative-b4-d3-w4-p9",
    "speculative-b4-d3-w4",
    "speculative-b2-d3-w2",
    "speculative-b4-d2-w3-p7-device",
    "speculative-b2-d2-w3-device",
    "speculative-b2-d2-w3-copy",
    "mixed-b2-d0-w1-c64",
    "mixed-b4-d0-w1-c64",
    "mixed-b4-d0-w1-c128",
    "mixed-b4-d3-w4-c64",
)
MODES = {
    "ordinary": (ORDINARY, SpeculationConfig()),
    "fixed": (FIXED, SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=3)),
    "adaptive": (ADAPTIVE, SpeculationConfig(mode=DecodeMode.ADAPTIVE)),
}
CATALOGS = {
    mode: Catalog.of([descriptor(name) for name in names]) for mode, (names, _) in MODES.items()
}
SURVIVALS = (
    (1.0, 1.0, 1.0),
    (0.5, 0.25, 0.125),
    (0.75, 0.5, 0.5),
    (0.25, 0.0, 0.0),
    (0.0, 0.0, 0.0),
    (1.0, 0.5, 0.25),
)


def view_of(world: World, catalog: Catalog) -> View:
    """Write the world straight into the view that selection reads."""
    shapes = Shapes(catalog, world.speculation)
    view = View(shapes, list(world.durations_ms), world.policy, 0)
    rows = 1 + max((decoder.row for decoder in world.decoders), default=0)
    acceptance = AcceptanceTable(rows, DEPTH)
    forecast = ForecastTable(rows, DEPTH, range(len(catalog.graphs)))
    for decoder in world.decoders:
        spec = RequestSpec(
            prompt_tokens=8,
            max_output_tokens=decoder.limit,
            learned_width_limit=decoder.learned_limit,
        )
        request = Request(RequestHandle(decoder.arrival, 0), spec, decoder.arrival, 0)
        request.row, request.last_used = decoder.row, decoder.last_used
        request.copies = decoder.copies
        view.decoders.append(request)
        view.token_prices.append(decoder.token_price)
        view.delivery_prices.append(decoder.delivery_price)
        view.ages_ms.append(decoder.age_ms)
        cells = acceptance.take(decoder.row)
        cells[LEARNED, MEAN], cells[COPY, MEAN] = decoder.survivals, decoder.copied
        cells[:, WEIGHT] = 8.0 if decoder.is_trained else 2.0
        acceptance.put(decoder.row, cells)
        saved = forecast.take(decoder.row)
        saved.cells[MEAN], saved.cells[OWN] = decoder.forecast, 1.0
        if decoder.starts:
            saved.cells[OWN], saved.starts[:] = 0.0, decoder.starts
        forecast.put(decoder.row, saved)
    if any(decoder.share != 1.0 for decoder in world.decoders):
        view.stream_shares = [decoder.share for decoder in world.decoders]
    for prompt in world.prompts:
        spec = RequestSpec(prompt_tokens=prompt.remaining, max_output_tokens=4)
        request = Request(RequestHandle(prompt.arrival, 0), spec, prompt.arrival, 0)
        request.last_used = prompt.last_used
        view.prefilling.append(request)
        view.prompt_prices[request] = prompt.token_price
    view.estimates = Estimates(acceptance, forecast)
    price_ages(view)
    return view


def described(candidate: Candidate) -> tuple[object, ...]:
    lanes = sorted(candidate.cohort, key=lambda lane: lane.arrival)
    prompts = [lane.arrival for lane in lanes if lane.prompt_tokens]
    return (
        candidate.graph_index,
        tuple(lane.arrival for lane in lanes),
        tuple(lane.prompt_tokens or lane.output_ceiling for lane in lanes),
        tuple(lane.expected_tokens for lane in lanes),
        prompts[0] if prompts else None,
    )


def expected_of(choice: Choice) -> tuple[object, ...]:
    return (choice.graph, choice.cohort, choice.prefixes, choice.expected, choice.prompt)


def check(world: World, catalog: Catalog) -> Choice:
    """Compare the winner, and every graph's best candidate, with the enumeration."""
    decision = Decision(view_of(world, catalog))
    choices = choices_of(world)
    best = min(choices, key=lambda choice: choice.key)
    assert decision.winner is not None
    assert described(decision.winner) == expected_of(best), world
    assert -decision.winner.negative_rate == best.score
    return best


def random_world(source: random.Random, mode: str, *, aged: bool) -> World:
    """Draw a small world; with ages the number of streams is a power of two, to stay dyadic."""
    catalog, speculation = CATALOGS[mode], MODES[mode][1]
    count = source.choice([1, 2, 4] if aged else [0, 1, 2, 3, 4, 5])
    arrivals = source.sample(range(20), count + 2)
    shares = source.choice([(1.0,), (1.0,), (1.0, 0.5, 0.25)])
    rows = source.sample(range(8), count)
    decoders = tuple(
        Decoder(
            arrival=arrivals[i],
            row=rows[i],
            last_used=source.choice([-1, 3, 3, 5]),
            token_price=source.choice([0.0, 1.0, 4.0, 4.0, 16.0]),
            delivery_price=source.choice([0.0, 8.0, 8.0, 64.0]),
            age_ms=source.choice([0.0, 16.0, 64.0]),
            limit=source.choice([1, 2, 3, 8, 8, 8]),
            learned_limit=source.choice([0, 0, 0, 1, 1, 2]),
            copies=source.choice([0, 1, 2]),
            survivals=source.choice(SURVIVALS),
            copied=source.choice(SURVIVALS),
            forecast=source.choice(SURVIVALS),
            share=source.choice(shares),
            is_trained=source.random() < 0.5,
        )
        for i in range(count)
    )
    prompts = tuple(
        Prompt(
            arrivals[count + i],
            source.choice([-1, 3]),
            source.choice([0.0, 1.0, 4.0]),
            source.choice([16, 64, 65, 100, 200]),
        )
        for i in range(source.choice([0, 1, 1, 2]) if count else 1)
    )
    costs = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 8.0] if source.random() < 0.3 else [1.0, 2.0, 4.0]
    policy = PolicyConfig(
        output_token_value=source.choice([0.0, 64.0]),
        token_fairness=source.choice([0.0, 16.0]),
        delivery_fairness=source.choice([0.0, 4.0]),
        decode_age_price=0.125 if aged else 0.0,
        gap_objective_ms=source.choice([0.0, 0.0, 4.0, 25.0]),
        adaptive_verification_alpha=source.choice([1.0, 1.0, 2.0]),
    )
    durations = tuple(source.choice(costs) for _ in catalog.graphs)
    return World(decoders, prompts, catalog.graphs, durations, policy, speculation)


def run(mode: str, seed: int, worlds: int) -> dict[str, int]:
    source = random.Random(seed)
    winners: dict[str, int] = {}
    for number in range(worlds):
        world = random_world(source, mode, aged=number % 2 == 0)
        best = check(world, CATALOGS[mode])
        name = CATALOGS[mode].graphs[best.graph].name
        winners[name] = winners.get(name, 0) + 1
    return winners


def small_decoders() -> list[Decoder]:
    """A stream of two prices, limits, survivals and supplies of copies; the last may learn less."""
    found = []
    for price, limit, survivals, (copies, learned) in itertools.product(
        (0.0, 4.0), (2, 8), (SURVIVALS[0], SURVIVALS[1]), ((0, 0), (2, 1))
    ):
        found.append(
            Decoder(
                arrival=0,
                row=0,
                last_used=0,
                token_price=price,
                delivery_price=8.0,
                age_ms=16.0,
                limit=limit,
                learned_limit=learned,
                copies=copies,
                survivals=survivals,
                copied=SURVIVALS[2],
                forecast=SURVIVALS[5],
                share=1.0,
                is_trained=price > 0.0,
            )
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("unmeasured", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_pair_of_streams(mode: str, unmeasured: bool) -> None:
    """Every two streams alone and beside a prompt that ends or goes on, either one served longer
    ago or neither; every program competes with all of its cohorts (9, decisions 11.3)."""
    catalog, speculation = CATALOGS[mode], MODES[mode][1]
    steps = itertools.cycle((1.0, 2.0, 1.0, 4.0, 2.0))
    durations = [next(steps) for _ in catalog.graphs]
    hidden = [len(BASE), len(BASE) + 3] if unmeasured else []
    for index in hidden:
        durations[index] = 0.0
    policy = PolicyConfig(decode_age_price=0.125)
    winners = set()
    for pair in itertools.product(small_decoders(), repeat=2):
        for used in ((3, 3), (3, 5), (5, 3)):
            decoders = tuple(
                dataclasses.replace(decoder, arrival=place, row=1 - place, last_used=used[place])
                for place, decoder in enumerate(pair)
            )
            # What is unmeasured competes by its useful value: streams alone show that.
            for remaining in (0,) if unmeasured else (0, 64, 100):
                prompts = (Prompt(2, 4, 1.0, remaining),) if remaining else ()
                world = World(
                    decoders, prompts, catalog.graphs, tuple(durations), policy, speculation
                )
                winners.add(check(world, catalog).graph)
    assert winners <= {*hidden} if unmeasured else len(winners) > 1


@pytest.mark.parametrize("mode", MODES)
def test_random_decisions(mode: str) -> None:
    """Winner, cohort, lengths, expected tokens and score of every mode (9, decisions 11.3)."""
    winners = run(mode, 7, 150)
    assert len(winners) > 5, "too few programs ever win, so the comparison sees too little"


DEVICES = Catalog.of(
    [
        descriptor(name)
        for name in (
            *BASE,
            "speculative-b1-d0-w1",
            *(f"speculative-b2-d3-w{w}-p{p}-device" for w, p in ((2, 3), (3, 4), (4, 5))),
            *(f"speculative-b4-d3-w{w}-p{p}-device" for w, p in ((3, 6), (3, 9), (4, 8))),
        )
    ]
)


@pytest.mark.parametrize("worlds", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_programs_whose_forecasts_differ_are_priced_by_their_own(worlds: int) -> None:
    """A row without a forecast stands where each program starts it, and no two alike (9.7)."""
    source, winners = random.Random(97), set()
    for number in range(worlds):
        world = random_world(source, "adaptive", aged=number % 2 == 0)
        decoders = tuple(
            dataclasses.replace(
                decoder, starts=tuple(source.choice(SURVIVALS) for _ in DEVICES.graphs)
            )
            if source.random() < 0.7
            else decoder
            for decoder in world.decoders
        )
        durations = tuple(source.choice([1.0, 1.0, 2.0, 4.0]) for _ in DEVICES.graphs)
        world = dataclasses.replace(
            world, decoders=decoders, graphs=DEVICES.graphs, durations_ms=durations
        )
        if world.decoders or world.prompts:
            winners.add(DEVICES.graphs[check(world, DEVICES).graph].name)
    assert len([name for name in winners if name.endswith("device")]) > 3, winners


WIDER = Catalog.of(
    [descriptor(name) for name in (*BASE, "speculative-b2-d3-w2", "speculative-b2-d3-w4")]
)
"""The widest holds two lanes that the narrower one holds as well, unless one of them is longer."""


@pytest.mark.parametrize("mode", [*MODES, "wider"])
def test_the_best_candidate_of_every_graph_is_that_of_the_enumeration(mode: str) -> None:
    """Who loses is explained as exactly as who wins: of what no smaller shape holds, the first by
    rank, and no entry for a graph all of whose cohorts one holds (5.2, 5.3, 9.9)."""
    source = random.Random(23)
    for number in range(60):
        world = random_world(source, "adaptive" if mode == "wider" else mode, aged=number % 2 == 0)
        catalog = CATALOGS.get(mode, WIDER)
        if catalog is WIDER:
            limits = [source.choice([2, 2, 3, 8]) for _ in world.decoders]
            decoders = tuple(
                dataclasses.replace(decoder, limit=limit, learned_limit=0)
                for decoder, limit in zip(world.decoders, limits, strict=True)
            )
            durations = tuple(source.choice([1.0, 2.0, 4.0]) for _ in WIDER.graphs)
            world = dataclasses.replace(
                world, decoders=decoders, graphs=WIDER.graphs, durations_ms=durations
            )
        found: dict[int, Candidate] = {}
        for candidate in sorted(Decision(view_of(world, catalog)).candidates, key=rank_key):
            found.setdefault(candidate.graph_index, candidate)
        expected: dict[int, Choice] = {}
        for choice in sorted(choices_of(world), key=lambda choice: choice.key):
            expected.setdefault(choice.graph, choice)
        assert {graph: described(each) for graph, each in found.items()} == {
            graph: expected_of(each) for graph, each in expected.items()
        }, world


@pytest.mark.parametrize("mode", MODES)
def test_an_entry_without_hope_has_no_undominated_cohort(mode: str) -> None:
    """Left out before its cohorts are enumerated, because a smaller shape holds every one (9.9)."""
    source, counts = random.Random(3), {"hopeless": 0, "left": 0}
    for number in range(60):
        view = view_of(random_world(source, mode, aged=number % 2 == 0), CATALOGS[mode])
        for block in Decision(view).blocks:
            flags = block.hopeless()
            for entry in range(len(block.rate)):
                if flags is not None and flags[entry]:
                    counts["hopeless"] += 1
                    assert undominated(view, block, entry) is None
                else:
                    counts["left"] += 1
    assert min(counts.values()) > 100, counts


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_random_decisions(mode: str) -> None:
    """The same at length; together with the other modes more than 10,000 (decisions, 11.3)."""
    winners = run(mode, 8, 3500)
    served = [g.name for g in CATALOGS[mode].graphs if _generates(g, MODES[mode][1])]
    assert not [name for name in served if name not in winners], "some program never wins"


def _generates(graph: GraphDescriptor, speculation: SpeculationConfig) -> bool:
    return Catalog.generates(graph, speculation)
