"""Which shapes and cohorts need comparing, without enumerating subsets of requests.

For a fixed duration and capacity lane values are additive and nonnegative, so the best cohort of a
shape is the longest prefix of the sorted lanes that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from helios.scheduler.shapes import Shape


def useful_shapes(shapes: Sequence[Shape], demand: int) -> Sequence[Shape]:
    """Return the shapes that survive dominance for one cohort or prompt of size `demand`.

    Every shape from the first one that holds all of it does the same logical work; only the
    smallest of them remains, measured or not: a timing cannot make redundant padding preferable.
    The same rule keeps exploration off a larger unmeasured prefill with nothing more to consume.
    """
    for count, (_, capacity) in enumerate(shapes, start=1):
        if capacity >= demand:
            return shapes[:count]
    return shapes


def prefix_values(values: Sequence[float]) -> list[float]:
    """Return the sums of the first 0, 1, ... n values, added in order."""
    return list(accumulate(values, initial=0.0))
