"""Which stale alternative is measured again (docs/design/scheduling-utility.md section 11)."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

import pytest

from helios.scheduler import Catalog, GraphDescriptor, GraphKind
from helios.scheduler.cost import CostTable
from helios.scheduler.refresh import Dispatches, stale_alternative, stale_attention_ns, tolerable
from tests.scheduler.oracles import exploration
from tests.support.catalogs import descriptor

NOW_NS, TTL_NS = 100, 30


class Entry(NamedTuple):
    name: str
    graph_index: int
    determinate: bool
    value: int


CATALOG = Catalog.of(
    [GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=rows) for rows in range(1, 6)]
    + [
        GraphDescriptor(kind=kind, batch_capacity=1)
        for kind in (GraphKind.INITIALIZE, GraphKind.PREFILL, GraphKind.TERMINAL)
    ]
)


def attention_ns(
    winner_index: int,
    observed: list[int | None],
    dispatched: list[int | None],
    *,
    first_ns: int = 0,
) -> dict[int, int]:
    costs = CostTable(CATALOG, ttl_ns=TTL_NS)
    dispatches = Dispatches(len(costs.estimates_ns))
    costs.seed({CATALOG.graphs[index].name: 5 for index in range(len(observed))})
    dispatches.record(7, first_ns)
    for index, at in enumerate(observed):
        if at is not None:
            costs.observe(index, 7, at)
    for index, at in enumerate(dispatched):
        if at is not None:
            dispatches.record(index, at)
    return stale_attention_ns(
        costs,
        dispatches,
        cost_indices=range(len(costs.estimates_ns)),
        winner_graph=winner_index,
        now_ns=NOW_NS,
    )


def chosen(
    entries: list[Entry],
    winner: Entry,
    observed: list[int | None],
    dispatched: list[int | None],
) -> str | None:
    attention = attention_ns(winner.graph_index, observed, dispatched)
    best = stale_alternative(entries, attention, rank=lambda entry: -entry.value)
    return None if best is None else best.name


def expected(
    entries: list[Entry],
    winner: Entry,
    observed: list[int | None],
    dispatched: list[int | None],
) -> str | None:
    described: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "entry": entry.graph_index,
            "measured": entry.determinate,
            "observed_ns": observed[entry.graph_index],
            "dispatched_ns": dispatched[entry.graph_index],
            "value": entry.value,
        }
        for entry in entries
    ]
    ranked = exploration.stale_alternatives(described, winner.name, NOW_NS, TTL_NS)
    return ranked[0] if ranked else None


def test_every_small_world() -> None:
    """Two alternatives and every age around the freshness limit, the winner among them (11.6)."""
    moments: tuple[int | None, ...] = (None, 0, 10, 69, 70, 71, 100)
    for observed in itertools.product(moments, repeat=2):
        for dispatched in itertools.product((None, 0, 60, 95), repeat=2):
            for values in ((5, 3), (3, 5)):
                entries = [Entry("won", 0, True, 9)]
                entries += [Entry(f"g{k}", k + 1, True, values[k]) for k in range(2)]
                times = [0, *observed], [0, *dispatched]
                assert chosen(entries, entries[0], *times) == expected(entries, entries[0], *times)


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 25))]
)
def test_random_worlds(seed: int) -> None:
    """Several candidates per entry, unmeasured ones, seeds, every order: 10,000 in all (11.6)."""
    draw = random.Random(seed)
    for _ in range(400):
        count = draw.randint(1, 6)
        observed = [draw.choice([None, 0, 0, 40, 69, 70, 90]) for _ in range(count)]
        dispatched = [draw.choice([None, 0, 50, 50, 99]) for _ in range(count)]
        entries = [
            Entry(f"c{k}", draw.randrange(count), draw.random() < 0.8, 100 - k) for k in range(8)
        ]
        winner = draw.choice(entries)
        draw.shuffle(entries)
        picked = chosen(entries, winner, observed, dispatched)
        assert picked == expected(entries, winner, observed, dispatched)


def test_a_repeatedly_invalid_alternative_goes_to_the_end_of_the_line() -> None:
    """A dispatch counts as attention, valid or not, so it cannot take every episode (11.6)."""
    entries = [Entry("won", 0, True, 9), Entry("broken", 1, True, 5), Entry("other", 2, True, 3)]
    assert chosen(entries, entries[0], [99, 0, 10], [99, None, None]) == "broken"
    assert chosen(entries, entries[0], [99, 0, 10], [99, 40, None]) == "other"


def test_the_entry_of_the_winner_is_no_alternative() -> None:
    """A stale ordinary winner is measured by running it; nothing is spent on it (11.5)."""
    entries = [Entry("won", 0, True, 9), Entry("same graph", 0, True, 5)]
    assert chosen(entries, entries[0], [0], [0]) is None


def test_attention_is_the_later_of_observation_and_dispatch() -> None:
    """Neither, each alone, and both orders; fresh entries have no place in the line (11.6)."""
    observed = [None, None, 60, 40, 60, 95]
    dispatched = [None, 7, None, 60, 40, None]
    assert attention_ns(7, observed, dispatched) == {0: -1, 1: 7, 2: 60, 3: 60, 4: 60}


@pytest.mark.parametrize(("first_ns", "due"), [(69, True), (70, False), (100, False)])
def test_seeds_wait_for_one_ttl_from_the_first_frame(first_ns: int, due: bool) -> None:
    """Seeds are stale at once, and alternatives only when ordinary work had its time (11.5)."""
    found = attention_ns(7, [None, 60], [None, 75], first_ns=first_ns)
    assert found == ({0: -1, 1: 75} if due else {1: 75})


def test_without_any_frame_no_seed_is_due() -> None:
    """Nothing has been submitted, so nothing has been paid for (11.5)."""
    costs = CostTable(CATALOG, ttl_ns=TTL_NS)
    costs.seed({"decode-b1": 5})
    dispatches = Dispatches(len(costs.estimates_ns))
    found = stale_attention_ns(
        costs, dispatches, cost_indices=range(8), winner_graph=0, now_ns=10**12
    )
    assert found == {}


def test_only_the_interval_that_prices_a_graph_now_is_refreshed() -> None:
    """A run at today's context length says nothing about the entry of another one (11.5)."""
    split = GraphDescriptor(
        kind=GraphKind.DECODE, batch_capacity=9, context_intervals=(1_000, 10_000)
    )
    costs = CostTable(Catalog.of([*CATALOG.graphs, split]), ttl_ns=TTL_NS)
    costs.seed({split.name: 5})
    graph = next(index for index in range(9) if costs.entry_of(index, 5_000.0) != index)
    dispatches = Dispatches(len(costs.estimates_ns))
    dispatches.record(costs.entry_of(graph, 5_000.0), 0)
    indices = list(range(9))
    for tokens in (0.0, 5_000.0, 50_000.0):
        indices[graph] = costs.entry_of(graph, tokens)
        assert costs.graph_of(indices[graph]) == graph
        found = stale_attention_ns(
            costs, dispatches, cost_indices=indices, winner_graph=0, now_ns=NOW_NS
        )
        assert found == {graph: 0 if tokens == 5_000.0 else -1}


def test_an_unmeasured_entry_is_left_to_discovery() -> None:
    """Neither stale nor fresh: nothing is known that could be refreshed (11.5)."""
    costs = CostTable(CATALOG, ttl_ns=TTL_NS)
    assert costs.stale_entries(10**12) == []
    costs.seed({"decode-b2": 5})
    costs.observe(4, 9, 0)
    assert costs.stale_entries(TTL_NS) == [CATALOG.graphs.index(descriptor("decode-b2"))]
    assert costs.stale_entries(TTL_NS + 1) == [3, 4]


def test_a_long_stale_graph_waits_under_a_gap_objective_but_not_for_ever() -> None:
    """What fits is looked at; the rest once overdue, counted from the start at least (11.5.1)."""
    attention = {0: 50, 1: 50, 2: 9, 3: -1}
    estimates = [10.0, 11.0, 11.0, 11.0]
    found = tolerable(attention, estimates, room_ns=10.0, first_ns=0, overdue_ns=10)
    assert found == {0: 50, 2: 9, 3: -1}
    found = tolerable(attention, estimates, room_ns=10.0, first_ns=20, overdue_ns=10)
    assert found == {0: 50}
    assert tolerable(attention, estimates, room_ns=-1.0, first_ns=20, overdue_ns=10) == {}
