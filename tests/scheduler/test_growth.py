"""Page growth: what may advance on the pages at hand (runtime section 6)."""

from __future__ import annotations

import itertools
import random

from helios.scheduler.growth import Budget, Lane, budget_of, pages_to_add, reach_of

PAGE = 4


def budget(generating: list[Lane], prompts: list[Lane], available: int, extent: int = 0) -> Budget:
    return budget_of(generating, prompts, available, page_size=PAGE, extent=extent)


def test_pages_cover_the_ceiling_and_the_draft_extent() -> None:
    """Reservation reaches position + ceiling + extent, to the last full page."""
    for position, pages, tokens, extent in itertools.product(
        range(10), range(4), range(1, 6), range(4)
    ):
        lane = Lane(position, pages, 1, tokens)
        added = pages_to_add(tokens, lane, PAGE, extent)
        held = (pages + added) * PAGE
        assert held >= position + tokens + extent
        assert added == 0 or held - PAGE < position + tokens + extent
        assert reach_of(lane, added, PAGE, extent) == tokens


def test_a_large_lane_that_does_not_fit_does_not_stop_a_small_one() -> None:
    """Field report 5: what cannot grow is skipped, whoever comes behind it runs."""
    large = Lane(16, 4, 9, 9)
    small = Lane(12, 3, 1, 1)
    inside = Lane(5, 2, 1, 1)
    found = budget([large, small, inside], [], 1)
    assert found == Budget((0, 1, 1), 3, 1)
    found = budget([], [large, small], 1)
    assert found == Budget((0, 1), 3, 1)


def test_a_lane_falls_back_to_its_least() -> None:
    """A round that may not be wide may still be narrow."""
    lane = Lane(15, 4, 1, 4)
    assert budget([lane], [], 1).tokens == (4,)
    assert budget([lane], [], 0).tokens == (1,)
    assert budget([Lane(16, 4, 1, 4)], [], 0) == Budget((0,), 1, 0)


def test_a_prompt_takes_what_there_is() -> None:
    """A capacity that fits no more is cut to the pages at hand instead of skipped whole."""
    assert budget([], [Lane(0, 0, 1, 100)], 3).tokens == (12,)
    assert budget([], [Lane(0, 0, 1, 100)], 3, extent=2).tokens == (10,)
    assert budget([], [Lane(0, 0, 20, 100)], 3) == Budget((0,), 5, 0), "an image is atomic"


def test_every_cohort_within_the_budget_fits() -> None:
    """Whatever subset of generating lanes runs, beside at most one prompt, its pages exist."""
    rng = random.Random(7)
    blocked = 0
    for _ in range(3_000):
        generating = [random_lane(rng) for _ in range(rng.randrange(4))]
        prompts = [random_lane(rng) for _ in range(rng.randrange(3))]
        available, extent = rng.randrange(8), rng.randrange(3)
        found = budget(generating, prompts, available, extent)
        added = [
            pages_to_add(tokens, lane, PAGE, extent) if tokens else 0
            for tokens, lane in zip(found.tokens, [*generating, *prompts], strict=True)
        ]
        together = sum(added[: len(generating)]) + max(added[len(generating) :], default=0)
        assert together == found.pages_used <= available
        for tokens, lane in zip(found.tokens, [*generating, *prompts], strict=True):
            assert tokens == 0 or lane.least <= tokens <= lane.most
        # Nothing is refused that fits beside what was let through before it.
        left = available
        for index, lane in enumerate([*generating, *prompts]):
            needed = pages_to_add(lane.least, lane, PAGE, extent)
            assert (found.tokens[index] == 0) == (needed > left)
            left -= added[index] if index < len(generating) else 0
        blocked += 0 in found.tokens
    assert 500 < blocked < 2_500


def random_lane(rng: random.Random) -> Lane:
    position = rng.randrange(20)
    least = rng.randrange(1, 6)
    return Lane(position, -(-position // PAGE), least, least + rng.randrange(12))
