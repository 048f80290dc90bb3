"""Atomic spans, legal extents and windows against their dumb twins (runtime section 7)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from helios.scheduler import InvalidRequestError
from helios.scheduler.images import (
    ImageSpan,
    check_capacities,
    check_spans,
    check_stops,
    first_image_from,
    index_around,
    prompt_extent,
    window_count,
    window_end,
)
from tests.scheduler.oracles import images as oracle


def spans_of(layout: tuple[tuple[int, int], ...]) -> tuple[ImageSpan, ...]:
    return tuple(ImageSpan(start, tokens, tokens) for start, tokens in layout)


SMALL = [(n, spans_of(layout)) for n in range(1, 6) for layout in oracle.layouts(n)]


# ---- extents --------------------------------------------------------------------------------


def test_extent_is_the_longest_legal_chunk_on_every_small_layout() -> None:
    """A chunk never splits an image and stops at each boundary, and is never shorter than it must
    (runtime 7.2): every layout, stop set, position, capacity and window end of up to 5 tokens."""
    checked = 0
    for length, images in SMALL:
        for stops in oracle.stop_sets(length):
            for position in range(length):
                if oracle.cuts_an_image(position, images):
                    continue
                ends = [image.start for image in images if image.start > position] + [length]
                for capacity, end in itertools.product(range(1, length + 2), ends):
                    expected = oracle.longest_legal(position, capacity, end, images, stops)
                    assert prompt_extent(position, capacity, end, images, stops) == expected
                    checked += 1
    assert checked > 20_000


def test_zero_only_where_an_image_does_not_fit() -> None:
    """An extent is zero exactly at an image longer than the capacity (runtime 7.3)."""
    for length, images in SMALL:
        for stops in oracle.stop_sets(length):
            for position, capacity in itertools.product(range(length), range(1, length + 1)):
                if oracle.cuts_an_image(position, images):
                    continue
                is_zero = prompt_extent(position, capacity, length, images, stops) == 0
                too_long = any(i.start == position and i.tokens > capacity for i in images)
                assert is_zero == too_long


def test_some_capacity_always_makes_progress_to_the_end() -> None:
    """Progress (runtime 7.3): with the largest capacity that holds every image, chunks of any
    choice of capacities reach the end of every small layout, and no chunk is empty for ever."""
    for length, images in SMALL:
        largest = max((image.tokens for image in images), default=1)
        for stops in oracle.stop_sets(length):
            reached = {0}
            for position in range(length):
                if position not in reached:
                    continue
                extents = [
                    prompt_extent(position, c, length, images, stops) for c in range(1, largest + 1)
                ]
                assert extents[-1] > 0
                assert extents == sorted(extents), "a larger graph never consumes less"
                reached |= {position + extent for extent in extents}
            assert length in reached


@pytest.mark.slow
def test_extent_on_random_large_layouts() -> None:
    """The same equality on 10,000 random prompts of up to 60 tokens."""
    rng = random.Random(1)
    for _ in range(10_000):
        length = rng.randint(1, 60)
        images, at = [], 0
        while at < length:
            at += rng.choice([0, 0, 1, rng.randint(0, 20)])
            tokens = rng.randint(1, 12)
            if at + tokens > length:
                break
            images.append(ImageSpan(at, tokens, 1))
            at += tokens
        stops = sorted(rng.sample(range(1, length + 1), rng.randint(0, min(5, length))))
        legal = [p for p in range(length) if not oracle.cuts_an_image(p, images)]
        position, capacity = rng.choice(legal), rng.randint(1, 70)
        expected = oracle.longest_legal(position, capacity, length, images, stops)
        assert prompt_extent(position, capacity, length, images, stops) == expected


def test_text_consumes_what_is_left_or_what_fits() -> None:
    """Without images and stops an extent is min(capacity, what is left)."""
    assert [prompt_extent(10, c, 74) for c in (1, 63, 64, 65)] == [1, 63, 64, 64]
    assert prompt_extent(74, 64, 74) == 0, "nothing is left"


def test_a_stop_inside_an_image_is_not_obeyed() -> None:
    """An optional cut that an image covers cannot stall its prompt (runtime 7.3)."""
    images = (ImageSpan(2, 4, 4),)
    assert prompt_extent(2, 4, 10, images, (3, 5)) == 4
    assert prompt_extent(0, 10, 10, images, (3, 8)) == 8


# ---- positions ------------------------------------------------------------------------------


def test_positions_and_images() -> None:
    """An image is around every position strictly inside it, and from its start on it is next."""
    images = (ImageSpan(2, 3, 1), ImageSpan(5, 1, 1), ImageSpan(8, 2, 1))
    around = [index_around(images, position) for position in range(11)]
    assert around == [None, None, None, 0, 0, None, None, None, None, 2, None]
    first = [first_image_from(images, position) for position in range(11)]
    assert first == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert index_around((), 3) is None
    assert images[0].end == images[1].start == 5


# ---- windows --------------------------------------------------------------------------------


def test_windows_are_the_fewest_groups_of_whole_images() -> None:
    """Whole images, in order, within the storage, in the fewest windows (runtime 7.1): every list
    of up to 5 images of 1 to 4 rows, for each storage that holds them."""
    for count in range(6):
        for features in itertools.product(range(1, 5), repeat=count):
            for rows in range(max(features, default=1), 9):
                check_windows(features, rows)


def check_windows(features: tuple[int, ...], rows: int) -> None:
    """Walk the windows of images of these feature rows; count them against the enumeration."""
    images = [ImageSpan(i, 1, f) for i, f in enumerate(features)]
    bounds = [0]
    while bounds[-1] < len(images):
        bounds.append(window_end(images, bounds[-1], rows))
    assert all(sum(features[a:b]) <= rows for a, b in itertools.pairwise(bounds))
    assert len(bounds) - 1 == window_count(images, rows)
    assert len(bounds) - 1 == oracle.fewest_windows(features, rows)


def test_windows_of_ten_thousand_random_prompts() -> None:
    """Up to eight images of up to forty feature rows, in any storage that holds them (7.1)."""
    source = random.Random(71)
    for _ in range(10_000):
        features = tuple(source.randint(1, 40) for _ in range(source.randint(0, 8)))
        check_windows(features, source.randint(max(features, default=1), 120))


def test_a_window_is_as_full_as_whole_images_allow() -> None:
    """The next image starts a window of its own only because it does not fit."""
    images = [ImageSpan(i, 1, f) for i, f in enumerate((3, 3, 2, 8, 1))]
    assert [window_end(images, first, 8) for first in range(5)] == [3, 3, 3, 4, 5]
    assert window_end(images, 5, 8) == 5


# ---- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([(0, 4, 4), (3, 2, 2)], r"images\[1\] starts at 3, before the end 4 of images\[0\]"),
        ([(6, 2, 2), (0, 2, 2)], r"images\[1\] starts at 0, before the end 8 of images\[0\]"),
        ([(7, 4, 4)], r"images\[0\] ends at 11, the prompt has 10 tokens"),
        ([(10, 1, 1)], r"images\[0\] ends at 11"),
        ([(-1, 2, 2)], r"images\[0\].start must be an integer of at least 0, not -1"),
        ([(0, 0, 2)], r"images\[0\].tokens must be an integer of at least 1, not 0"),
        ([(0, 2, 0)], r"images\[0\].features must be an integer of at least 1, not 0"),
        ([(0, 2.0, 1)], r"images\[0\].tokens must be an integer of at least 1, not 2.0"),
        ([(True, 2, 1)], r"images\[0\].start must be an integer of at least 0, not True"),
        ([(0, 1, "4")], r"images\[0\].features must be an integer of at least 1, not '4'"),
    ],
)
def test_impossible_spans_are_refused_by_name(images: list[Any], message: str) -> None:
    """Unsorted, overlapping, empty or outside: a typed error that names what and where (7.1)."""
    with pytest.raises(InvalidRequestError, match=message):
        check_spans([ImageSpan(*image) for image in images], 10)


def test_neighbours_and_the_whole_prompt_are_legal() -> None:
    """Images may touch, and fill the whole prompt."""
    check_spans([ImageSpan(0, 4, 9), ImageSpan(4, 6, 1)], 10)
    check_spans([], 1)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ((0,), r"cuts\[0\] must be an integer of at least 1, not 0"),
        ((4, 4), r"cuts\[1\] must be an integer of at least 5, not 4"),
        ((9, 4), r"cuts\[1\] must be an integer of at least 10, not 4"),
        ((11,), r"cuts\[0\] is 11, the prompt has 10 tokens"),
        ((6,), r"cuts\[0\] is 6, inside images\[0\]"),
        ((True,), r"cuts\[0\] must be an integer of at least 1, not True"),
        ((4.0,), r"cuts\[0\] must be an integer of at least 1, not 4.0"),
    ],
)
def test_impossible_stops_are_refused_by_name(stops: Any, message: str) -> None:
    """A stop outside the prompt, out of order or inside an image is refused, never rounded."""
    with pytest.raises(InvalidRequestError, match=message):
        check_stops([ImageSpan(5, 3, 3)], stops, 10, "cuts")


def test_stops_at_the_edges_of_an_image_are_legal() -> None:
    """An image's first position and the one behind it are both fine, and so is the end."""
    check_stops([ImageSpan(5, 3, 3)], (1, 5, 8, 10), 10, "cuts")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ((0, 8, 65), r"images\[1\] needs 65 feature rows, the prepared storage has 64"),
        ((0, 8, 33), r"images\[1\] needs 33 feature rows, the largest vision graph has 32"),
        ((0, 17, 4), r"images\[1\] needs 17 tokens in one chunk, .*prefill graph has 16"),
    ],
)
def test_an_image_that_nothing_holds_is_refused_with_numbers(
    image: tuple[int, int, int], message: str
) -> None:
    """Larger than storage, vision graph or prefill graph: refused at admission (runtime 7.1)."""
    fits = ImageSpan(0, 16, 32)
    sizes = {"feature_rows": 64, "vision_capacity": 32, "prompt_capacity": 16}
    check_capacities([fits], **sizes)
    with pytest.raises(InvalidRequestError, match=message):
        check_capacities([fits, ImageSpan(*image)], **sizes)
