"""Prefill extents and image windows by trying everything; nothing here is optimised.

A layout is a prompt as a string: `.` is text, and each image is a run of one letter (`aab` is an
image of two tokens followed by one of one token).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

Span = tuple[int, int, int]
"""Start, tokens, feature rows."""


def layouts(length: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Return every way to lay images (start, tokens) into a prompt of `length` tokens."""
    if length == 0:
        yield ()
        return
    for shorter in layouts(length - 1):
        yield shorter
    for tokens in range(1, length + 1):
        for shorter in layouts(length - tokens):
            yield (*shorter, (length - tokens, tokens))


def cuts_an_image(end: int, images: Sequence[Span]) -> bool:
    """Whether a chunk that ends at `end` leaves a part of an image behind it and a part before."""
    return any(start < end < start + tokens for start, tokens, _ in images)


def longest_legal(
    position: int, capacity: int, end: int, images: Sequence[Span], stops: Sequence[int]
) -> int:
    """Return the longest chunk that cuts no image, crosses no stop and fits; zero when none is."""
    best = 0
    for length in range(1, capacity + 1):
        chunk_end = position + length
        crosses = any(
            position < stop < chunk_end and not cuts_an_image(stop, images) for stop in stops
        )
        if chunk_end <= end and not crosses and not cuts_an_image(chunk_end, images):
            best = length
    return best


def fewest_windows(features: Sequence[int], rows: int) -> int:
    """Return the least number of runs of consecutive images that fit `rows` feature rows each."""
    count = len(features)
    if not count:
        return 0
    for windows in range(1, count + 1):
        for cuts in itertools.combinations(range(1, count), windows - 1):
            bounds = (0, *cuts, count)
            if all(sum(features[a:b]) <= rows for a, b in itertools.pairwise(bounds)):
                return windows
    raise AssertionError("an image alone is larger than the storage")


def stop_sets(length: int) -> Iterator[tuple[int, ...]]:
    """Return every set of stops strictly inside a prompt, in order."""
    for size in range(length):
        yield from itertools.combinations(range(1, length), size)
