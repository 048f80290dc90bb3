"""Which stale alternative is measured again (docs/design/scheduling-utility.md section 11)."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

import pytest

from helios.scheduler.refresh import Dispatches, last_attention_ns, stale_alternative
from tests.scheduler.oracles import exploration

NOW_NS, TTL_NS = 100, 30


class Entry(NamedTuple):
    name: str
    cost_index: int
    determinate: bool
    value: int


def chosen(
    entries: list[Entry],
    winner: Entry,
    observed: list[int | None],
    dispatched: list[int | None],
) -> str | None:
    dispatches = Dispatches(len(observed))
    for index, at in enumerate(dispatched):
        if at is not None:
            dispatches.record(index, at)
    best = stale_alternative(
        entries,
        winner,
        observed,
        dispatches,
        stale_before_ns=NOW_NS - TTL_NS,
        rank=lambda entry: -entry.value,
    )
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
            "entry": entry.cost_index,
            "measured": entry.determinate,
            "observed_ns": observed[entry.cost_index],
            "dispatched_ns": dispatched[entry.cost_index],
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


@pytest.mark.parametrize("seed", range(5))
def test_random_worlds(seed: int) -> None:
    """Several candidates per entry, unmeasured ones, seeds, in every order (11.6)."""
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
    """Each alone, both orders, and neither (11.6)."""
    assert last_attention_ns(None, -1) == -1
    assert last_attention_ns(None, 7) == 7
    assert last_attention_ns(9, 7) == 9
    assert last_attention_ns(7, 9) == 9
