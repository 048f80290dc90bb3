"""Piecewise linear interpolation on ascending axes, with the rules beyond their ends.

Below its first knot an axis is clamped: a kernel has a floor, which a line would leave. Above its
last knot the last segment goes on, since work grows linearly with cached tokens and with rows.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence


def cell(axis: Sequence[int], value: float) -> tuple[int, float]:
    """Return the segment that holds `value` and the position in it, 0 at its left knot.

    The position is 0 for values below the axis and above 1 for values beyond it. An axis has at
    least two knots.
    """
    index = bisect_right(axis, value) - 1
    if index < 0:
        return 0, 0.0
    index = min(index, len(axis) - 2)
    left = axis[index]
    return index, (value - left) / (axis[index + 1] - left)


def line(axis: Sequence[int], values: Sequence[float], at: float) -> float:
    """Return the value at `at` of the polyline through the knots."""
    index, share = cell(axis, at)
    left = values[index]
    return left + share * (values[index + 1] - left)


def plane(
    values: Sequence[float], origin: int, width: int, row: tuple[int, float], col: tuple[int, float]
) -> float:
    """Return the bilinear value of a grid that lies row by row in `values` from `origin`."""
    at = origin + row[0] * width + col[0]
    share = col[1]
    first = values[at]
    first += share * (values[at + 1] - first)
    if not row[1]:
        return first
    at += width
    second = values[at]
    second += share * (values[at + 1] - second)
    return first + row[1] * (second - first)


def check_axis(name: str, axis: Sequence[int]) -> None:
    """Raise ValueError unless the axis has two knots or more and ascends."""
    if len(axis) < 2:
        raise ValueError(f"{name}: an axis needs at least two knots, it has {len(axis)}")
    for left, right in itertools.pairwise(axis):
        if left >= right:
            raise ValueError(f"{name}: knots must ascend, {right} follows {left}")
