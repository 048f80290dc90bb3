"""Which deeper round is probed (docs/design/scheduling-utility.md section 11)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from helios.scheduler.learning import Lane, Offer, best_probe, least_weight
from tests.scheduler.oracles import exploration

Lanes = dict[str, tuple[int, int]]
Weights = Callable[[str, int], float]


def offer(
    name: str,
    rate: float,
    ms: float,
    lanes: Lanes,
    geometry: tuple[int, ...] = (0,),
    weight_of: Weights = lambda request, depth: 2.0,
) -> Offer[str, str]:
    return Offer(
        name,
        rate,
        ms,
        geometry,
        [Lane(who, *numbers) for who, numbers in lanes.items()],
        lambda: [[weight_of(who, depth) for depth in range(1, 8)] for who in lanes],
    )


def probe_of(
    offers: list[Offer[str, str]],
    rate: float,
    ordinary: dict[str, int],
) -> str | None:
    found = best_probe(offers, rate, ordinary)
    return None if found is None else found.offer.candidate


def dumb(offers: list[Offer[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "name": item.candidate,
            "rate": item.optimistic_rate,
            "ms": item.duration_ms,
            "geometry": item.geometry,
            "lanes": {lane.request: (lane.length, lane.outputs_left) for lane in item.lanes},
        }
        for item in offers
    ]


def test_a_probe_must_be_deeper_than_the_ordinary_choice() -> None:
    """At least one request is offered at least one depth beyond its ordinary lane (11.8)."""
    same = offer("same", 9.0, 1.0, {"a": (3, 100), "b": (1, 100)})
    deeper = offer("deeper", 2.0, 1.0, {"a": (3, 100), "b": (2, 100)})
    assert probe_of([same], 1.0, {"a": 3, "b": 1}) is None
    assert probe_of([same, deeper], 1.0, {"a": 3, "b": 1}) == "deeper"


def test_a_probe_must_beat_the_ordinary_choice_under_optimism() -> None:
    """Equal is not better (11.8)."""
    wide = offer("wide", 4.0, 1.0, {"a": (4, 100)})
    assert probe_of([wide], 4.0, {"a": 1}) is None
    assert probe_of([wide], 3.9375, {"a": 1}) == "wide"


@pytest.mark.parametrize(("outputs", "allowed"), [(6, True), (5, False), (4, False)])
def test_a_probe_must_leave_output_to_use_what_it_finds(outputs: int, allowed: bool) -> None:
    """After its longest outcome another round of the added depth must be possible (11.8)."""
    wide = offer("wide", 4.0, 1.0, {"a": (4, outputs)})
    assert (probe_of([wide], 1.0, {"a": 1}) == "wide") is allowed


def test_a_request_outside_the_ordinary_choice_is_not_compared() -> None:
    """A prefill that wins is not displaced by the rounds that would run next anyway (11.8)."""
    wide = offer("wide", 4.0, 1.0, {"a": (4, 100)})
    assert probe_of([wide], 1.0, {}) is None
    assert probe_of([wide], 1.0, {"b": 1}) is None


def test_improvement_counts_per_physical_time() -> None:
    """A gain of 4 in 2 ms beats one of 6 in 4 ms (11.9)."""
    brief = offer("brief", 5.0, 2.0, {"a": (2, 100)})
    lengthy = offer("lengthy", 7.0, 4.0, {"a": (8, 100)})
    assert probe_of([lengthy, brief], 1.0, {"a": 1}) == "brief"


def test_ties_prefer_the_least_informed_then_shorter_then_smaller() -> None:
    """Equal gains: smallest aged weight of an added depth, duration, geometry (11.9)."""
    known = offer("known", 2.0, 1.0, {"a": (2, 100)}, (1,), lambda who, depth: 40.0)
    unknown = offer("unknown", 3.0, 2.0, {"b": (2, 100)}, (9,))
    both = {"a": 1, "b": 1}
    assert probe_of([known, unknown], 1.0, both) == "unknown"
    brief = offer("brief", 2.0, 1.0, {"a": (2, 100)}, (11,))
    assert probe_of([unknown, brief], 1.0, both) == "brief"
    small = offer("small", 2.0, 1.0, {"a": (2, 100)}, (10, 7))
    assert probe_of([brief, small], 1.0, both) == "small"


def test_the_weight_of_a_probe_is_that_of_its_added_depths_alone() -> None:
    """Depths that the ordinary choice offers already say nothing about the probe (11.9)."""
    known = {1: 2.0, 2: 9.0, 3: 5.0, 4: 3.0}
    deeper = offer("", 2.0, 1.0, {"a": (4, 100), "b": (2, 100)}, (), lambda _, d: known.get(d, 0.0))
    assert least_weight(deeper, {"a": 2, "b": 2}) == 5.0


def test_every_small_world() -> None:
    """All pairs of offers over lengths, rates, durations and outputs agree with a full sort."""
    weights = {("a", depth): float(2 + depth % 2) for depth in range(1, 4)}
    shapes = list(itertools.product((1, 2, 3), (1.0, 2.0, 3.0), (1.0, 2.0), (3, 5, 9)))
    for left, right in itertools.product(shapes, repeat=2):
        offers = [
            offer(
                name,
                rate,
                ms,
                {"a": (length, outputs)},
                (length,),
                lambda who, depth: weights.get((who, depth), 0.0),
            )
            for name, (length, rate, ms, outputs) in (("l", left), ("r", right))
        ]
        for has in (1, 2):
            ranked = exploration.probes(dumb(offers), 1.5, {"a": has}, weights)
            found = probe_of(offers, 1.5, {"a": has})
            assert found == (ranked[0] if ranked else None) or offers[0][1:] == offers[1][1:]


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 34))]
)
def test_random_worlds(seed: int) -> None:
    """Several requests and offers with dyadic rates agree with a full sort: 10,000 in all."""
    draw = random.Random(seed)
    requests = "abcd"
    for _ in range(300):
        weights = {
            (who, depth): draw.choice([2.0, 3.0, 8.0]) for who in requests for depth in range(1, 8)
        }
        ordinary = {who: draw.randint(1, 4) for who in requests if draw.random() < 0.8}
        offers = [
            offer(
                f"o{k}",
                draw.randint(0, 8) / 4,
                draw.choice([0.5, 1.0, 2.0]),
                {
                    who: (draw.randint(1, 8), draw.randint(1, 14))
                    for who in draw.sample(requests, draw.randint(1, 4))
                },
                (draw.randint(1, 2), k),
                lambda who, depth, w=weights: w[who, depth],
            )
            for k in range(draw.randint(1, 5))
        ]
        ranked = exploration.probes(dumb(offers), 1.0, ordinary, weights)
        draw.shuffle(offers)
        found = probe_of(offers, 1.0, ordinary)
        assert found == (ranked[0] if ranked else None)
