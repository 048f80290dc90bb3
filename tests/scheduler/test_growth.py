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


def test_everybody_has_the_least_before_anybody_has_more() -> None:
    """Two streams at the end of their pages and one page: a round for one would stop the other."""
    served_longest_ago, other = Lane(14, 4, 1, 4), Lane(16, 4, 1, 4)
    assert budget([served_longest_ago, other], [], 1) == Budget((1, 4), 0, 1)
    assert budget([served_longest_ago, other], [], 2) == Budget((4, 4), 0, 2)
    assert budget([served_longest_ago, served_longest_ago], [], 1).tokens == (4, 1)


def test_a_prompt_takes_what_there_is() -> None:
    """A capacity that fits no more is cut to the pages at hand instead of skipped whole."""
    assert budget([], [Lane(0, 0, 1, 100)], 3).tokens == (12,)
    assert budget([], [Lane(0, 0, 1, 100)], 3, extent=2).tokens == (10,)
    assert budget([], [Lane(0, 0, 20, 100)], 3) == Budget((0,), 5, 0), "an image is atomic"


def test_a_prompt_takes_further_pages_only_while_it_can_become_a_whole() -> None:
    """Until then it goes as far as the pages that it holds, and waits (6.3)."""
    covered = Lane(8, 2, 1, 8, 16)
    assert budget([], [covered], 4) == Budget((8,), 0, 2)
    assert budget([], [covered], 3, extent=1) == Budget((0,), 1, 0), "nobody advances: it wants"
    assert budget([], [Lane(9, 3, 1, 8, 16)], 3) == Budget((3,), 0, 0), "within what it holds"
    stream = Lane(4, 1, 1, 1)
    assert budget([stream], [covered], 4) == Budget((1, 0), 0, 1), "streams end: it waits"
    full = budget([stream], [covered], 0)
    assert full == Budget((0, 0), 2, 0), "all are stuck: both want"


def test_prompts_are_promised_their_pages_in_their_order() -> None:
    """Those who are let through can all become whole; who cannot does not stop a smaller one."""
    one, two, small = Lane(0, 0, 1, 8, 16), Lane(0, 0, 1, 8, 16), Lane(0, 0, 1, 8, 4)
    assert budget([], [one, two], 8).tokens == (8, 8)
    assert budget([], [one, two], 7).tokens == (8, 0)
    assert budget([], [one, two, small], 5).tokens == (8, 0, 4)
    assert budget([], [two, one], 7).pages_wanted == 0


def test_the_budget_is_what_a_count_page_by_page_says() -> None:
    """A dumb twin: pages are dealt one at a time from a heap, by the sentences of 6.3."""
    rng = random.Random(11)
    seen = {"uncovered": 0, "covered": 0, "wanted": 0, "longer": 0}
    for _ in range(3_000):
        generating = [random_lane(rng) for _ in range(rng.randrange(4))]
        prompts = [
            lane._replace(whole=lane.most + rng.randrange(12))
            for lane in (random_lane(rng) for _ in range(rng.randrange(4)))
        ]
        available, extent = rng.randrange(14), rng.randrange(3)
        found = budget(generating, prompts, available, extent)
        heap = ["page"] * available
        expected = [dealt(lane, lane.least, heap, extent) for lane in generating]
        for index, lane in enumerate(generating):
            if expected[index]:
                longer = dealt(with_least(lane, extent), lane.most, heap, extent)
                expected[index] = longer or lane.least
                seen["longer"] += longer > lane.least
        waits = False
        for lane in prompts:
            spare = list(heap)
            is_covered = dealt(lane, lane.whole, spare, extent) > 0
            reach = lane.most
            while reach and not dealt(lane, reach, list(heap if is_covered else ()), extent):
                reach -= 1
            expected.append(reach if reach >= lane.least else 0)
            if is_covered:
                heap = spare
                seen["covered"] += 1
            else:
                seen["uncovered"] += 1
                waits = waits or expected[-1] == 0
        assert found.tokens == tuple(expected)
        stuck = 0 in expected[: len(generating)] or (waits and not any(expected))
        assert (found.pages_wanted > 0) == stuck
        seen["wanted"] += stuck
    assert min(seen.values()) > 300, seen


def with_least(lane: Lane, extent: int) -> Lane:
    """Return the lane with the pages of its least."""
    count = lane.pages
    while count * PAGE < lane.position + lane.least + extent:
        count += 1
    return lane._replace(pages=count)


def dealt(lane: Lane, tokens: int, heap: list[str], extent: int) -> int:
    """Deal pages until the lane holds that many tokens; return them, or 0 and deal nothing."""
    count, spare = lane.pages, list(heap)
    while count * PAGE < lane.position + tokens + extent:
        if not spare:
            return 0
        spare.pop()
        count += 1
    heap[:] = spare
    return tokens


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
        # Nothing is refused that fits beside the least of those before it; a prompt is behind all.
        left = available
        for tokens, lane in zip(found.tokens, generating, strict=False):
            needed = pages_to_add(lane.least, lane, PAGE, extent)
            assert (tokens == 0) == (needed > left)
            left -= needed if tokens else 0
        left = available - sum(added[: len(generating)])
        for tokens, lane in zip(found.tokens[len(generating) :], prompts, strict=True):
            assert (tokens == 0) == (pages_to_add(lane.least, lane, PAGE, extent) > left)
        blocked += 0 in found.tokens
    assert 500 < blocked < 2_500


def random_lane(rng: random.Random) -> Lane:
    position = rng.randrange(20)
    least = rng.randrange(1, 6)
    return Lane(position, -(-position // PAGE), least, least + rng.randrange(12))
