"""Images inside a prompt: atomic spans, windows of prepared feature storage, legal prefill extents.

A prefill chunk never cuts an image and never crosses a stop (a system boundary, the first image of
the following window, a snapshot cut), and it is empty only where the next thing is an image longer
than the graph's capacity. Because admission refuses an image that no graph can hold, some capacity
always makes progress: no rule of alignment can round every chunk down to nothing.

    prompt   |--text--[ image 0 ]-text-[ image 1 ]--text--[ image 2 ]--text--|
    windows   <------------- 0 and 1 ------------------->  <------ 2 ------->
                                        window 0 stops here ^
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from helios.scheduler.checks import check_integer
from helios.scheduler.errors import InvalidRequestError


class ImageSpan(NamedTuple):
    """One image of a prompt: the positions it fills and the feature rows that feed them."""

    start: int
    """Prompt position of its first token."""
    tokens: int
    """Prompt positions it fills; they are consumed by one prefill chunk, or not at all."""
    features: int
    """Feature rows that its vision execution writes."""

    @property
    def end(self) -> int:
        """Return the first position behind it."""
        return self.start + self.tokens


def check_spans(images: Sequence[ImageSpan], prompt_tokens: int) -> None:
    """Raise InvalidRequestError unless the images lie in order, apart, and inside the prompt."""
    behind = 0
    for index, image in enumerate(images):
        where = f"images[{index}]"
        for name, value, least in (
            ("start", image.start, 0),
            ("tokens", image.tokens, 1),
            ("features", image.features, 1),
        ):
            check_integer(InvalidRequestError, f"{where}.{name}", value, least=least)
        if image.start < behind:
            raise InvalidRequestError(
                f"{where} starts at {image.start}, before the end {behind} of images[{index - 1}]"
            )
        behind = image.end
        if behind > prompt_tokens:
            raise InvalidRequestError(
                f"{where} ends at {behind}, the prompt has {prompt_tokens} tokens"
            )


def check_stops(
    images: Sequence[ImageSpan], stops: Sequence[int], prompt_tokens: int, name: str
) -> None:
    """Raise InvalidRequestError unless `stops` rise, lie in the prompt and outside every image.

    A stop inside an image could be obeyed by no chunk that consumes the image, so it is refused
    here rather than rounded later. `name` is the field that the message names.
    """
    behind = 0
    for index, stop in enumerate(stops):
        where = f"{name}[{index}]"
        check_integer(InvalidRequestError, where, stop, least=behind + 1)
        if stop > prompt_tokens:
            raise InvalidRequestError(f"{where} is {stop}, the prompt has {prompt_tokens} tokens")
        inside = index_around(images, stop)
        if inside is not None:
            raise InvalidRequestError(f"{where} is {stop}, inside images[{inside}]")
        behind = stop


def check_capacities(
    images: Sequence[ImageSpan],
    *,
    feature_rows: int,
    vision_capacity: int,
    prompt_capacity: int,
) -> None:
    """Raise InvalidRequestError for an image that no prepared storage or graph can hold.

    `feature_rows` is the storage of one window, `vision_capacity` the largest vision graph (feature
    rows), `prompt_capacity` the largest prompt capacity of a graph that may consume this request.
    """
    for index, image in enumerate(images):
        for what, needed, available in (
            ("feature rows, the prepared storage has", image.features, feature_rows),
            ("feature rows, the largest vision graph has", image.features, vision_capacity),
            ("tokens in one chunk, the largest prefill graph has", image.tokens, prompt_capacity),
        ):
            if needed > available:
                raise InvalidRequestError(f"images[{index}] needs {needed} {what} {available}")


def index_around(images: Sequence[ImageSpan], position: int) -> int | None:
    """Return the index of the image that a cut at `position` would split; None when none is."""
    index = bisect_left(images, position, key=_start) - 1
    if index >= 0 and position < images[index].end:
        return index
    return None


def first_image_from(images: Sequence[ImageSpan], position: int) -> int:
    """Return the index of the first image at or behind `position`; their count without one."""
    return bisect_left(images, position, key=_start)


def window_end(images: Sequence[ImageSpan], first: int, feature_rows: int) -> int:
    """Return one past the last image of the window that starts with image `first`.

    The window takes whole images while their feature rows fit; filling each window before the next
    gives the fewest windows. Every image is known to fit alone.
    """
    rows = 0
    for index in range(first, len(images)):
        rows += images[index].features
        if rows > feature_rows:
            return index
    return len(images)


def window_count(images: Sequence[ImageSpan], feature_rows: int) -> int:
    """Return how many windows the images need; a second one needs a private snapshot row."""
    count = first = 0
    while first < len(images):
        first = window_end(images, first, feature_rows)
        count += 1
    return count


def prompt_extent(
    position: int,
    capacity: int,
    end: int,
    images: Sequence[ImageSpan] = (),
    stops: Sequence[int] = (),
) -> int:
    """Return the prompt tokens that a graph of `capacity` prompt tokens consumes from `position`.

    `end` is the farthest position of this chunk's window (the prompt's end, or the first image of
    the following window); `stops` rise, and a stop inside an image is not obeyed. Zero means that
    the next thing is an image longer than the capacity, and that the graph is no candidate.
    `position` is never inside an image, because no chunk ends there.
    """
    reach = min(position + capacity, end)
    if stops:
        for index in range(bisect_right(stops, position), len(stops)):
            if stops[index] >= reach:
                break
            if index_around(images, stops[index]) is None:
                reach = stops[index]
                break
    inside = index_around(images, reach) if images else None
    if inside is not None:
        reach = images[inside].start
    return max(0, reach - position)


def _start(image: ImageSpan) -> int:
    return image.start
