"""Candidates with a prerequisite against enumeration, in worlds written straight into the view.

Every combination of stages, phases, ages and measured graphs is reached, whether or not a history
leads to it. Times, prices and coefficients are dyadic, so that equal scores are equal.
"""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphKind,
    PolicyConfig,
    RequestHandle,
    RequestSpec,
    SpeculationConfig,
)
from helios.scheduler.acceptance import AcceptanceTable
from helios.scheduler.blocks import Block, Candidate
from helios.scheduler.candidates import scene_of_view, undominated, waiting_of
from helios.scheduler.forecast import ForecastTable
from helios.scheduler.images import ImageSpan
from helios.scheduler.lookahead import preparing_blocks
from helios.scheduler.requests import ImageWindow, Request
from helios.scheduler.selection import Selection
from helios.scheduler.utility import Estimates, Shapes, View, units_of
from helios.scheduler.window import price_ages
from tests.scheduler.oracles import preparing as oracle
from tests.scheduler.oracles.preparing import Item, Program, World
from tests.support.catalogs import descriptor

INIT, RESTORE, VISION, SNAPSHOT = oracle.PREPARING
PROMPT_STAGES = [
    (),
    (INIT,),
    (INIT,),
    (RESTORE,),
    (VISION,),
    (SNAPSHOT,),
    (INIT, VISION),
    (RESTORE, VISION, VISION),
    (SNAPSHOT, RESTORE, VISION),
]
STREAM_STAGES = [(), (), (SNAPSHOT,), (SNAPSHOT,), (RESTORE,), (SNAPSHOT, RESTORE)]
COMMON = ["initialize-b1", "initialize-b4", "restore-b1", "restore-b2", "vision-c64", "vision-c256"]
COMMON += ["snapshot-b1", "snapshot-b2", "snapshot-b4", "prefill-c16", "prefill-c64"]
COMMON += ["scored-prefill-c64", "terminal-b2"]
ORDINARY = ["decode-b1", "decode-b2", "decode-b4", "mixed-b2-w1-c64", "mixed-b4-w1-c64"]
ORDINARY += ["mixed-b4-w1-c128"]
ADAPTIVE = ["speculative-b1-d0-w1", "speculative-b2-d0-w1", "speculative-b2-d1-w2"]
ADAPTIVE += ["speculative-b4-d1-w2", "mixed-b2-d0-w1-c64", "mixed-b4-d1-w2-c64"]
DURATIONS = (0.25, 0.5, 1.0, 1.0, 2.0, 4.0)


FIXED = ["speculative-b2-d1-w2", "speculative-b4-d1-w2-p4", "speculative-b4-d1-w2-p6"]
FIXED += ["speculative-b4-d1-w2", "mixed-b2-d1-w2-c64", "mixed-b4-d1-w2-c64"]
GENERATING = {
    DecodeMode.ORDINARY: ORDINARY,
    DecodeMode.ADAPTIVE: ADAPTIVE,
    DecodeMode.FIXED: FIXED,
}


def speculation_of(mode: DecodeMode) -> SpeculationConfig:
    """The mode, at width two where it is fixed."""
    return SpeculationConfig(mode=mode, fixed_width=2 if mode is DecodeMode.FIXED else 0)


def random_world(random_: random.Random, mode: DecodeMode, requests: int) -> World:
    """Few values, so that ties are common; some worlds have unmeasured programs."""
    generating = GENERATING[mode]
    catalog = Catalog.of([descriptor(name) for name in [*COMMON, *generating]])
    hidden = 0.1 if random_.random() < 0.3 else 0.0
    programs = tuple(
        Program(index, graph, None if random_.random() < hidden else random_.choice(DURATIONS))
        for index, graph in enumerate(catalog.graphs)
    )
    speculation = speculation_of(mode)
    # Lanes of one length make the choice under P target rows exact (10.7).
    outputs = (8,) if mode is DecodeMode.FIXED else (1, 8)
    items = [random_item(random_, name, outputs) for name in range(requests)]
    if random_.random() < 0.3:
        # Tenants: streams share their coefficients, so how they rank depends on the length.
        items = [
            dataclasses.replace(item, share=random_.choice((1.0, 0.5, 0.25)))
            if item.role == "decode"
            else item
            for item in items
        ]
    return World(
        tuple(items),
        programs,
        PolicyConfig(
            decode_age_price=random_.choice((0.0, 0.125, 2.0)),
            gap_objective_ms=random_.choice((0.0, 0.0, 5.0, 30.0)),
            terminal_value=random_.choice((0.0, 256.0)),
            terminal_age_price=random_.choice((0.0, 1.0, 16.0)),
        ),
        tuple(catalog.generates(graph, speculation) for graph in catalog.graphs),
    )


def random_item(random_: random.Random, name: int, outputs: tuple[int, ...]) -> Item:
    """One request of any phase."""
    role = random_.choice(("decode", "decode", "prompt", "prompt", "terminal"))
    stages: tuple[GraphKind, ...] = ()
    if role != "terminal":
        stages = random_.choice(PROMPT_STAGES if role == "prompt" else STREAM_STAGES)
    return Item(
        name,
        role,
        stages,
        token_price=random_.choice((0.5, 0.5, 4.0)),
        delivery_price=random_.choice((0.0, 8.0)),
        age_ms=random_.choice((0.0, 0.0, 16.0)),
        prompt_left=random_.choice((8, 16, 40, 100)) if role == "prompt" else 0,
        outputs_left=random_.choice(outputs),
        scored=role == "prompt" and VISION not in stages and random_.random() < 0.2,
        features=tuple(random_.choice((32, 64, 200)) for _ in range(stages.count(VISION))),
        last_used=random_.choice((-1, -1, 3)),
    )


def view_of(world: World, mode: DecodeMode) -> View:
    """The same world as the scheduler's selection reads it."""
    catalog = Catalog(tuple(program.graph for program in world.programs))
    durations = [program.duration_ms or 0.0 for program in world.programs]
    view = View(Shapes(catalog, speculation_of(mode)), durations, world.policy, 0)
    rows = len(world.items)
    view.estimates = Estimates(
        AcceptanceTable(rows, 1), ForecastTable(rows, 1, range(len(catalog.graphs)))
    )
    if any(item.share != 1.0 for item in world.items):
        view.stream_shares = []
    for item in world.items:
        place(view, item)
    price_ages(view)
    return view


def place(view: View, item: Item) -> None:
    """Write one request into the view."""
    spec = RequestSpec(
        prompt_tokens=max(item.prompt_left, 1),
        max_output_tokens=item.outputs_left,
        scored=item.scored,
        images=tuple(ImageSpan(i, 1, rows) for i, rows in enumerate(item.features)),
    )
    request = Request(RequestHandle(item.name, 0), spec, item.name, 0)
    request.last_used, request.row, request.stages = item.last_used, item.name, item.stages
    if item.features:
        request.window = ImageWindow(0, len(item.features), 0)
    if item.role == "terminal":
        view.terminals.append(request)
        view.terminal_ages_ms.append(item.age_ms)
    elif item.role == "prompt":
        (view.initializing if item.stages else view.prefilling).append(request)
        view.prompt_prices[request] = item.token_price
    else:
        request.prompt_done = request.prompt_tokens
        blocked = bool(item.stages)
        (view.blocked if blocked else view.decoders).append(request)
        prices = (view.token_prices, view.delivery_prices, view.ages_ms)
        if blocked:
            prices = (
                view.blocked_token_prices,
                view.blocked_delivery_prices,
                view.blocked_ages_ms,
            )
        if view.stream_shares is not None:
            (view.blocked_shares if blocked else view.stream_shares).append(item.share)
        for column, value in zip(
            prices, (item.token_price, item.delivery_price, item.age_ms), strict=True
        ):
            column.append(value)


def blocks_of(view: View) -> list[Block]:
    """Return the candidates with a prerequisite."""
    units = units_of(view)
    scene = scene_of_view(view, units, waiting_of(view, units))
    return list(preparing_blocks(scene, units))


def decide(view: View) -> Candidate | None:
    """Return the winner among the candidates with a prerequisite."""
    blocks = blocks_of(view)
    return Selection(blocks, view.shapes.geometry).winner() if blocks else None


def check(world: World, mode: DecodeMode) -> bool:
    """Compare one world with the enumeration; tell whether there was a candidate at all."""
    winner = decide(view_of(world, mode))
    expected = oracle.candidates_of(world)
    if winner is None:
        assert not expected, world
        return False
    best = oracle.best_of(expected, tolerance=1e-12)
    cohort = tuple(sorted(lane.request.arrival for lane in winner.cohort))
    found = [
        candidate
        for candidate in best
        if candidate.first.index == winner.graph_index
        and candidate.cohort == cohort
        and (candidate.following.index if candidate.following else None) == winner.following_index
        and candidate.padding == winner.padding
    ]
    assert found, (winner, best, world)
    assert -winner.negative_rate == pytest.approx(found[0].score, rel=1e-12)
    assert winner.determinate == (not found[0].is_unknown)
    check_terms(winner, world)
    return True


def check_terms(candidate: Candidate, world: World) -> None:
    """The terms add up to the score, for pairs and for first stages on their own (10.12)."""
    assert candidate.terms is not None
    total, known_ms = sum(candidate.terms), candidate.known_ms
    if candidate.determinate:
        total = total / known_ms - world.waiting_cost(known_ms)
    assert total == pytest.approx(-candidate.negative_rate, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("mode", list(DecodeMode))
def test_the_winner_equals_enumeration(mode: DecodeMode) -> None:
    """Both cohorts, prompt roles, retired rows, chains, dominance and ties (section 10)."""
    random_ = random.Random(mode.value)
    compared = sum(check(random_world(random_, mode, 4), mode) for _ in range(60))
    assert compared > 40


@pytest.mark.parametrize("mode", list(DecodeMode))
def test_a_pair_without_hope_has_no_undominated_choice(mode: DecodeMode) -> None:
    """Its following shape is redundant whatever it serves, so nothing of it is compared (9.9)."""
    random_, counts = random.Random(f"{mode.value} hope"), {"hopeless": 0, "left": 0}
    for _ in range(40):
        view = view_of(random_world(random_, mode, 4), mode)
        for block in blocks_of(view):
            flags = block.hopeless()
            for entry in range(len(block.rate)):
                hopeless = flags is not None and bool(flags[entry])
                counts["hopeless" if hopeless else "left"] += 1
                assert not hopeless or undominated(view, block, entry) is None
    assert min(counts.values()) > 50, counts


@pytest.mark.parametrize("mode", list(DecodeMode))
def test_a_settled_entry_is_compared_like_its_candidate(mode: DecodeMode) -> None:
    """Whether it is known, its score, its time and how many it serves; only ties look at the
    candidate itself (5.5)."""
    random_, counts = random.Random(f"{mode.value} settled"), {1: 0, 2: 0}
    for _ in range(40):
        view = view_of(random_world(random_, mode, 5), mode)
        for block in blocks_of(view):
            for entry in np.flatnonzero(block.settled & (block.rate > -np.inf)).tolist():
                best = block.best(entry)
                assert block.determinate[entry] == best.determinate
                assert block.rate[entry] == pytest.approx(-best.negative_rate, rel=1e-12)
                assert block.known_ms[entry] == best.known_ms or not best.determinate
                assert block.served[entry] == best.served
                counts[min(best.served, 2)] += 1
    assert min(counts.values()) > 50, counts


def test_a_retirement_that_is_worth_nothing_fills_a_graph_like_anyone_else() -> None:
    """Beside a chain the spare row goes to whoever was served longest ago (10.4)."""
    mode = DecodeMode.ADAPTIVE
    catalog = Catalog.of([descriptor(name) for name in [*COMMON, *GENERATING[mode]]])
    quick = ("snapshot-b2",)
    programs = tuple(
        Program(index, graph, 0.5 if graph.name in quick else 4.0)
        for index, graph in enumerate(catalog.graphs)
    )
    generates = tuple(catalog.generates(graph, speculation_of(mode)) for graph in catalog.graphs)
    policy = PolicyConfig(terminal_value=0.0, terminal_age_price=0.0)
    chain = Item(0, "prompt", PROMPT_STAGES[-1], 4.0, prompt_left=100, features=(32,))
    stream, terminal = Item(1, "decode", (SNAPSHOT,), 0.5), Item(2, "terminal")
    beside = set()
    for used in itertools.permutations((1, 2, 3)):
        items = tuple(
            dataclasses.replace(item, last_used=last)
            for item, last in zip((chain, stream, terminal), used, strict=True)
        )
        world = World(items, programs, policy, generates)
        assert check(world, mode)
        winner = decide(view_of(world, mode))
        assert winner is not None
        assert winner.following_index is None
        other = max(lane.request.arrival for lane in winner.cohort)
        assert (other == 1) == (used[1] < used[2])
        beside.add(other)
    assert beside == {1, 2}


def small_items() -> list[Item]:
    """A request of every role and chain of stages, at two token prices."""
    found = [Item(0, "terminal", age_ms=age_ms) for age_ms in (0.0, 16.0)]
    for price in (0.5, 4.0):
        for stages in dict.fromkeys(PROMPT_STAGES):
            features = (64,) * stages.count(VISION)
            prompt = Item(0, "prompt", stages, price, prompt_left=40, features=features)
            found.append(prompt)
        streams = dict.fromkeys(STREAM_STAGES)
        found += [Item(0, "decode", stages, price, 8.0, 16.0) for stages in streams]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("unmeasured", [(), (1, 13)], ids=["measured", "unmeasured"])
@pytest.mark.parametrize("mode", list(DecodeMode))
def test_every_pair_of_a_small_world(mode: DecodeMode, unmeasured: tuple[int, ...]) -> None:
    """Every two requests of every role and chain, either one served longer ago (11.3)."""
    speculation = speculation_of(mode)
    catalog = Catalog.of([descriptor(name) for name in [*COMMON, *GENERATING[mode]]])
    durations = itertools.cycle(DURATIONS)
    programs = tuple(
        Program(index, graph, None if index in unmeasured else duration_ms)
        for index, (graph, duration_ms) in enumerate(zip(catalog.graphs, durations, strict=False))
    )
    generates = tuple(catalog.generates(graph, speculation) for graph in catalog.graphs)
    policy = PolicyConfig(decode_age_price=0.125)
    compared = 0
    for pair in itertools.product(small_items(), repeat=2):
        for used in ((1, 2), (2, 1)):
            items = tuple(
                dataclasses.replace(item, name=name, last_used=used[name])
                for name, item in enumerate(pair)
            )
            compared += check(World(items, programs, policy, generates), mode)
    assert compared > 1_000


BEHIND_SNAPSHOT = [
    Item(0, "prompt", (SNAPSHOT, RESTORE, VISION), 4.0, prompt_left=40, features=(64,)),
    Item(0, "decode", (SNAPSHOT, RESTORE), 4.0, 8.0, 16.0),
    Item(0, "decode", (SNAPSHOT,), 0.5),
    Item(0, "terminal", age_ms=16.0),
]


def alone_behind_snapshot(count: int, orders: int, hidden: str) -> int:
    """Check every so many requests behind one stage; tell how often that stage won by itself.

    Programs whose names start with `hidden` are unmeasured.
    """
    catalog = Catalog.of([descriptor(name) for name in [*COMMON, *ORDINARY]])
    programs = tuple(
        Program(index, graph, None if hidden and graph.name.startswith(hidden) else 1.0)
        for index, graph in enumerate(catalog.graphs)
    )
    generates = tuple(
        catalog.generates(graph, speculation_of(DecodeMode.ORDINARY)) for graph in catalog.graphs
    )
    policy, alone = PolicyConfig(decode_age_price=0.125), 0
    for kinds in itertools.product(BEHIND_SNAPSHOT, repeat=count):
        for used in itertools.product(range(1, 1 + orders), repeat=count):
            items = tuple(
                dataclasses.replace(item, name=name, last_used=used[name])
                for name, item in enumerate(kinds)
            )
            world = World(items, programs, policy, generates)
            assert check(world, DecodeMode.ORDINARY)
        winner = decide(view_of(world, DecodeMode.ORDINARY))
        assert winner is not None
        alone += winner.following_index is None
    return alone


def test_the_padding_of_an_image_counts_the_features_that_stay_empty() -> None:
    """The last tie-break of a chain that begins with an image: 32 features in 64 rows (10.6)."""
    catalog = Catalog.of([descriptor(name) for name in [*COMMON, *ORDINARY]])
    programs = tuple(Program(index, graph, 1.0) for index, graph in enumerate(catalog.graphs))
    generates = tuple(
        catalog.generates(graph, speculation_of(DecodeMode.ORDINARY)) for graph in catalog.graphs
    )
    for features in ((32, 64), (64, 200), (200, 32)):
        chain = Item(0, "prompt", (VISION, VISION), 4.0, prompt_left=40, features=features)
        world = World((chain,), programs, PolicyConfig(), generates)
        assert check(world, DecodeMode.ORDINARY)
        winner = decide(view_of(world, DecodeMode.ORDINARY))
        assert winner is not None
        assert winner.padding == (64 if features[0] <= 64 else 256) - features[0]


HIDDEN = ["", "snapshot-b2", "restore", "prefill", "decode"]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_every_two_requests_behind_one_stage(hidden: str) -> None:
    """Chains, a stream of one stage and a retirement share the rows of a SNAPSHOT: every two of
    them, with each part of the chains unmeasured in turn (10.8, 10.10)."""
    assert alone_behind_snapshot(2, 1, hidden) > 2


@pytest.mark.slow
@pytest.mark.parametrize("hidden", HIDDEN)
def test_every_three_requests_behind_one_stage(hidden: str) -> None:
    """Every three of them, in every order of service, ties included (10.8, 10.10)."""
    assert alone_behind_snapshot(3, 2, hidden) > 10


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(4))
@pytest.mark.parametrize("mode", list(DecodeMode))
def test_ten_thousand_more_worlds(mode: DecodeMode, piece: int) -> None:
    """The same, with up to five requests: twelve pieces of 850 worlds (section 10, 11.3)."""
    random_ = random.Random(f"{mode.value} more {piece}")
    worlds = [random_world(random_, mode, random_.randint(1, 5)) for _ in range(850)]
    compared = sum(check(world, mode) for world in worlds)
    assert compared > 600
