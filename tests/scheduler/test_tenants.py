"""Turns between tenants and the floor of a waiting prompt (scheduling-utility.md section 12)."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable

import pytest

from helios.scheduler.service import PRICE_CEILING
from helios.scheduler.tenants import WaitingLines, waiting_floor
from tests.scheduler.oracles.turns import PlainLines


@dataclasses.dataclass(frozen=True)
class Person:
    """A request as the line sees it, with the pages that it needs."""

    arrival: int
    tenant: str = ""
    pages: int = 1


class Pair:
    """The lines and their dumb twin, driven by the same calls."""

    def __init__(self) -> None:
        self.lines: WaitingLines[Person] = WaitingLines()
        self.plain: PlainLines[Person] = PlainLines()
        self.resident: list[Person] = []
        self.count = 0

    def admit(self, tenant: str, pages: int) -> Person:
        person = Person(self.count, tenant, pages)
        self.count += 1
        self.lines.join(tenant)
        self.plain.join(tenant)
        self.lines.append(person)
        self.plain.waiting.append(person)
        return person

    def take(self, pages_free: int) -> Person | None:
        taken = self.lines.take(lambda person: person.pages <= pages_free)
        assert taken == self.plain.take(lambda person: person.pages <= pages_free)
        if taken is not None:
            self.resident.append(taken)
        return taken

    def charge(self, person: Person, tokens: int, weight: float) -> None:
        self.lines.charge(person.tenant, tokens, weight)
        self.plain.charge(person.tenant, tokens, weight)

    def release(self, person: Person) -> None:
        self.resident.remove(person)
        self.lines.leave(person.tenant)
        self.plain.leave(person.tenant)

    def preempt(self, person: Person) -> None:
        self.resident.remove(person)
        self.lines.push_front(person)
        first = [w for w in self.plain.waiting if w.tenant == person.tenant]
        place = self.plain.waiting.index(first[0]) if first else len(self.plain.waiting)
        self.plain.waiting.insert(place, person)

    def give_up(self, person: Person) -> None:
        self.lines.remove(person)
        self.plain.waiting.remove(person)
        self.lines.leave(person.tenant)
        self.plain.leave(person.tenant)

    def check(self) -> None:
        assert len(self.lines) == len(self.plain.waiting)
        assert sorted(self.lines, key=id) == sorted(self.plain.waiting, key=id)
        assert self.lines.tenants == len(self.plain.active)
        for tenant, total in self.plain.active.items():
            assert self.lines.total_of(tenant) == total


def charge_first(pair: Pair) -> None:
    if pair.resident:
        pair.charge(pair.resident[0], 2, 1.0)


def release_last(pair: Pair) -> None:
    if pair.resident:
        pair.release(pair.resident[-1])


MOVES: list[Callable[[Pair], object]] = [
    lambda pair: pair.admit("a", 1),
    lambda pair: pair.admit("a", 2),
    lambda pair: pair.admit("b", 1),
    lambda pair: pair.admit("", 2),
    lambda pair: pair.take(1),
    lambda pair: pair.take(2),
    charge_first,
    release_last,
]


def test_every_short_history_takes_turns_like_the_twin() -> None:
    """All histories of five calls over three tenants and two sizes."""
    for moves in itertools.product(MOVES, repeat=4):
        pair = Pair()
        pair.admit("b", 2)
        for move in moves:
            move(pair)
        pair.check()


def random_history(seed: int, steps: int) -> None:
    roll = random.Random(seed)
    pair = Pair()
    tenants = ["", *"abcdefgh"[: roll.randint(1, 8)]]
    for _ in range(steps):
        kind = roll.random()
        if kind < 0.35:
            pair.admit(roll.choice(tenants), roll.randint(1, 4))
        elif kind < 0.6:
            pair.take(roll.randint(0, 4))
        elif kind < 0.8 and pair.resident:
            # Dyadic weights and small counts make every sum exact.
            pair.charge(roll.choice(pair.resident), roll.randint(1, 8), roll.choice([0.5, 1, 4]))
        elif kind < 0.87 and pair.resident:
            pair.preempt(roll.choice(pair.resident))
        elif kind < 0.92 and pair.plain.waiting:
            pair.give_up(roll.choice(pair.plain.waiting))
        elif pair.resident:
            pair.release(roll.choice(pair.resident))
        pair.check()
    while pair.resident or pair.plain.waiting:
        while pair.take(4) is not None:
            pass
        pair.release(pair.resident[0])
    assert pair.lines.tenants == 0


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_take_turns_like_the_twin(seed: int) -> None:
    """Order, lifts, memory of departed tenants and preemption, compared after every call."""
    random_history(seed, 120)


@pytest.mark.slow
def test_ten_thousand_random_histories_take_turns_like_the_twin() -> None:
    """The same on ten thousand histories."""
    for seed in range(1000, 11_000):
        random_history(seed, 40)


def test_without_tenants_the_order_is_that_of_arrival() -> None:
    """Nothing is reordered within a tenant, whatever its service and whoever would fit."""
    pair = Pair()
    people = [pair.admit("", pages) for pages in (3, 1, 2)]
    assert pair.take(2) is None
    pair.charge(people[0], 100, 1.0)
    assert [pair.take(3) for _ in range(4)] == [*people, None]


def test_a_first_one_that_does_not_fit_blocks_its_own_tenant_only() -> None:
    """A feasible smaller request of another tenant takes the turn (decisions, 10)."""
    pair = Pair()
    big, small = pair.admit("a", 4), pair.admit("a", 1)
    other = pair.admit("b", 1)
    assert pair.take(1) == other
    assert pair.take(1) is None
    assert [pair.take(4), pair.take(4)] == [big, small]


def test_a_turn_goes_to_the_least_served_tenant_per_weight() -> None:
    """Service counts divided by the weight of the request that got it (12.4)."""
    pair = Pair()
    first, second = pair.admit("a", 1), pair.admit("b", 1)
    assert [pair.take(1), pair.take(1)] == [first, second]
    pair.charge(first, 8, 4.0)
    pair.charge(second, 4, 1.0)
    waiting = [pair.admit(tenant, 1) for tenant in "bbaa"]
    assert [pair.take(1) for _ in range(4)] == [waiting[2], waiting[3], waiting[0], waiting[1]]


def test_a_newcomer_starts_at_the_smallest_active_total() -> None:
    """It neither owes what others were served, nor is it owed anything (12.5)."""
    pair = Pair()
    residents = [pair.admit(tenant, 1) for tenant in "ab"]
    for _ in residents:
        pair.take(1)
    pair.charge(residents[0], 100, 1.0)
    pair.charge(residents[1], 30, 1.0)
    pair.admit("new", 1)
    assert pair.lines.total_of("new") == 30


def test_leaving_for_a_moment_does_not_make_a_newcomer() -> None:
    """A tenant that returns keeps what it had, as long as somebody was active (12.5)."""
    pair = Pair()
    heavy, light = pair.admit("heavy", 1), pair.admit("light", 1)
    pair.take(1), pair.take(1)
    pair.charge(heavy, 500, 1.0)
    pair.release(heavy)
    pair.admit("heavy", 1)
    assert pair.lines.total_of("heavy") == 500
    pair.release(light)
    pair.release(pair.take(1) or heavy)
    pair.admit("heavy", 1)
    assert pair.lines.total_of("heavy") == 0.0, "with nobody active there is nothing to be fair to"


def test_a_thousand_waiting_tenants_take_turns() -> None:
    """As many tenants as may wait, with totals that change between turns."""
    roll = random.Random(5)
    pair = Pair()
    for index in range(1000):
        pair.admit(f"t{index}", 1)
    for _ in range(40):
        pair.take(1)
        pair.charge(roll.choice(pair.resident), 8, 1.0)
        pair.admit(roll.choice(pair.resident).tenant, 1)
    pair.check()


def test_giving_up_leaves_nothing_behind() -> None:
    """A line in which only people come and go does not grow."""
    pair = Pair()
    pair.admit("a", 9)
    for _ in range(2000):
        pair.give_up(pair.admit("b", 9))
    assert len(pair.lines._turns) < 100
    with pytest.raises(ValueError, match=r"not in deque"):
        pair.lines.remove(Person(99, "a"))


def test_the_floor_grows_with_the_wait_and_is_divided_among_the_prompts() -> None:
    """waited / (adaptation * rate) is what an own price would have become at least (12.6)."""
    alone = waiting_floor(50.0, machine_rate=16.0, prompts=1, adaptation_ms=100.0)
    assert alone == 50.0 / 100.0 / 16.0
    assert waiting_floor(50.0, machine_rate=16.0, prompts=4, adaptation_ms=100.0) == alone / 4
    assert waiting_floor(0.0, machine_rate=16.0, prompts=1, adaptation_ms=100.0) == 0.0
    absurd = waiting_floor(1e300, machine_rate=1e-300, prompts=1, adaptation_ms=1e-300)
    assert absurd == PRICE_CEILING
    assert math.isfinite(absurd)
