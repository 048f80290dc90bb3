"""Page growth: what may advance on the pages at hand (runtime section 6)."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import NamedTuple

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


class Dealt(NamedTuple):
    """What a deal gave everybody, and what happened on the way."""

    tokens: tuple[int, ...]
    is_stuck: bool
    """Somebody has to wait for the pages of others."""
    longer: int
    """Streams that got more than their least."""
    covered: int
    """Prompts that could become a whole, and so took pages."""


def deal(generating: list[Lane], prompts: list[Lane], available: int, extent: int) -> Dealt:
    """A dumb twin: pages are dealt one at a time from a heap, by the sentences of 6.3."""
    heap = ["page"] * available
    expected = [dealt(lane, lane.least, heap, extent) for lane in generating]
    longer, covered, waits = 0, 0, False
    for index, lane in enumerate(generating):
        if expected[index]:
            most = dealt(with_least(lane, extent), lane.most, heap, extent)
            expected[index] = most or lane.least
            longer += most > lane.least
    for lane in prompts:
        spare = list(heap)
        is_covered = dealt(lane, lane.whole, spare, extent) > 0
        reach = lane.most
        while reach and not dealt(lane, reach, list(heap if is_covered else ()), extent):
            reach -= 1
        expected.append(reach if reach >= lane.least else 0)
        heap = spare if is_covered else heap
        covered += is_covered
        waits = waits or (not is_covered and expected[-1] == 0)
    is_stuck = 0 in expected[: len(generating)] or (waits and not any(expected))
    return Dealt(tuple(expected), is_stuck, longer, covered)


def check_budget(
    generating: list[Lane], prompts: list[Lane], available: int, extent: int
) -> Counter[str]:
    """Compare a budget with the twin; tell what the twin came across."""
    found = budget(generating, prompts, available, extent)
    expected = deal(generating, prompts, available, extent)
    assert found.tokens == expected.tokens, (generating, prompts, available, extent)
    assert (found.pages_wanted > 0) == expected.is_stuck
    return Counter(
        wanted=expected.is_stuck,
        longer=expected.longer,
        covered=expected.covered,
        uncovered=len(prompts) - expected.covered,
    )


def test_every_small_budget() -> None:
    """All of up to two streams and one prompt on pages of four tokens: at the end of a page or one
    token before it, of one or two lengths, with no to three pages free (6.3)."""
    streams = [Lane(position, 2, 1, most) for position in (7, 8) for most in (1, 2, 5)]
    whole = [Lane(p, -(-p // PAGE), least, 5, 8) for p in (0, 3, 4) for least in (1, 5)]
    seen: Counter[str] = Counter()
    for count, chosen in itertools.product(range(3), [[], *([lane] for lane in whole)]):
        for generating in itertools.product(streams, repeat=count):
            for available, extent in itertools.product(range(4), range(2)):
                seen += check_budget(list(generating), chosen, available, extent)
    assert min(seen[name] for name in ("wanted", "longer", "covered", "uncovered")) > 100, seen


def test_the_budget_is_what_a_count_page_by_page_says() -> None:
    """10,000 random worlds of up to three streams and three prompts (6.3)."""
    rng = random.Random(11)
    seen: Counter[str] = Counter()
    for _ in range(10_000):
        generating = [random_lane(rng) for _ in range(rng.randrange(4))]
        prompts = [
            lane._replace(whole=lane.most + rng.randrange(12))
            for lane in (random_lane(rng) for _ in range(rng.randrange(4)))
        ]
        available, extent = rng.randrange(14), rng.randrange(3)
        seen += check_budget(generating, prompts, available, extent)
    assert min(seen[name] for name in ("wanted", "longer", "covered", "uncovered")) > 1_000, seen


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
