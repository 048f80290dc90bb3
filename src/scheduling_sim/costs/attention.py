"""Attention of one layer in one step, read off a measured four-dimensional grid.

The tables know at most one prompt chunk (`chunk` tokens behind `kv_prefill` cached ones) beside
`lanes` decoding lanes of equal context. What a step really holds is brought to that form:

* Uneven decode contexts cost `mean + alpha * (longest - mean)`, alpha by the number of lanes. A
  kernel that splits long contexts over the machine follows the mean; the kernel of mixed steps does
  not split and follows the longest lane while there are few lanes.
* Several prompt chunks become one chunk of as many tokens with the same attended area (query times
  key positions), the sum of `c * (cached + c / 2)`. Never less than the longest chunk by itself,
  which is what a step waits for when it has few chunks on long contexts.
* A generating lane of several rows (verification) costs a decoding lane of a mixed step: up to 16
  rows share one tile of queries, so the cache is read once whatever the width, and the kernel is
  the one of variable lengths that mixed steps were measured with. The longest such lane stands in
  the chunk's place where the step has no prompt.
* A mixed step whose contexts reach beyond the grid goes on along the ray on which both shrink
  together: attention is linear in keys when all contexts grow alike. Axis by axis it is not, for
  the kernel hides the shorter of the two walks behind the longer one; two lines extended from there
  would say that a step with 100k cached tokens costs less than one with 10k, or nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from scheduling_sim.costs.interpolation import cell, check_axis, line, plane

TILE_ROWS = 16
"""Rows of queries that cost as much as one; the smallest chunk that was measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class Skew:
    """Share of the way from the mean to the longest context, by the number of lanes."""

    lanes: tuple[int, ...] = (1, 256)
    pure: tuple[float, ...] = (0.0, 0.0)
    mixed: tuple[float, ...] = (0.0, 0.0)

    def __post_init__(self) -> None:
        check_axis("skew.lanes", self.lanes)
        if not len(self.lanes) == len(self.pure) == len(self.mixed):
            raise ValueError("skew: lanes, pure and mixed must have the same length")


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionGrid:
    """Measured times in us of one layer; lookups interpolate linearly on every axis.

    Beyond its ends each axis goes on by itself, but for the two contexts of a mixed step.
    """

    chunk: tuple[int, ...]
    kv_prefill: tuple[int, ...]
    lanes: tuple[int, ...]
    kv_pure: tuple[int, ...]
    pure: tuple[float, ...]
    """Decode only: lanes x kv_pure."""
    prompt: tuple[float, ...]
    """Chunk only: chunk x kv_prefill."""
    mixed_lanes: tuple[int, ...] = ()
    kv_decode: tuple[int, ...] = ()
    mixed: tuple[float, ...] = ()
    """chunk x kv_prefill x mixed_lanes x kv_decode. Empty where no mixed step was measured: chunk
    and lanes then pay one after the other, less one launch (the first decode time)."""
    skew: Skew = Skew()

    def __post_init__(self) -> None:
        beside = ("mixed_lanes", "kv_decode") if self.mixed else ()
        for name in ("chunk", "kv_prefill", "lanes", "kv_pure", *beside):
            check_axis(f"attention.{name}", getattr(self, name))
        prompts = len(self.chunk) * len(self.kv_prefill)
        sizes = {
            "pure": len(self.lanes) * len(self.kv_pure),
            "prompt": prompts,
            "mixed": prompts * len(self.mixed_lanes) * len(self.kv_decode),
        }
        for name, size in sizes.items():
            values = getattr(self, name)
            if len(values) != size:
                raise ValueError(f"attention.{name}: {len(values)} values, the axes need {size}")
            if not all(value > 0 and math.isfinite(value) for value in values):
                raise ValueError(f"attention.{name}: times must be positive and finite")

    def decode_us(self, lanes: int, mean: float, longest: float) -> float:
        """Return the time of `lanes` decoding lanes of the given mean and longest context."""
        alpha = line(self.skew.lanes, self.skew.pure, lanes) if longest > mean else 0.0
        context = mean + max(0.0, alpha) * (longest - mean)
        row, col = cell(self.lanes, lanes), cell(self.kv_pure, context)
        return plane(self.pure, 0, len(self.kv_pure), row, col)

    def chunk_us(self, chunk: float, cached: float) -> float:
        """Return the time of one prompt chunk behind `cached` tokens and nothing else."""
        largest = self.chunk[-1]
        if chunk > largest:
            # A longer chunk costs its rows at the mean context that they see.
            seen = max(0.0, cached + (chunk - largest) / 2)
            return self.chunk_us(largest, seen) * chunk / largest
        row, col = cell(self.chunk, chunk), cell(self.kv_prefill, cached)
        return plane(self.prompt, 0, len(self.kv_prefill), row, col)

    def mixed_us(
        self, chunk: float, cached: float, lanes: int, mean: float, longest: float
    ) -> float:
        """Return the time of a chunk beside decoding lanes."""
        if not lanes:
            return self.chunk_us(chunk, cached)
        largest = self.chunk[-1]
        if chunk > largest:
            seen = max(0.0, cached + (chunk - largest) / 2)
            rest = self.chunk_us(largest, seen) * (chunk / largest - 1)
            return rest + self.mixed_us(largest, seen, lanes, mean, longest)
        if not self.mixed:
            launch = self.pure[0]
            return self.chunk_us(chunk, cached) + self.decode_us(lanes, mean, longest) - launch
        alpha = line(self.skew.lanes, self.skew.mixed, lanes) if longest > mean else 0.0
        context = mean + min(1.0, max(0.0, alpha)) * (longest - mean)
        least, most = self.kv_prefill[0], self.kv_prefill[-1]
        least_beside, most_beside = self.kv_decode[0], self.kv_decode[-1]
        walk, beside = cached - least, max(0.0, context - least_beside)
        scale = max(walk / (most - least), beside / (most_beside - least_beside))
        if scale <= 1.0:
            return self._four(chunk, cached, lanes, context)
        walk, beside = walk / scale, beside / scale
        edge = self._four(chunk, least + walk, lanes, least_beside + beside)
        half = self._four(chunk, least + walk / 2, lanes, least_beside + beside / 2)
        return edge + 2 * (scale - 1.0) * max(0.0, edge - half)

    def _four(self, chunk: float, cached: float, lanes: int, context: float) -> float:
        width = len(self.kv_decode)
        block = len(self.mixed_lanes) * width
        first, first_share = cell(self.chunk, chunk)
        second, second_share = cell(self.kv_prefill, cached)
        row, col = cell(self.mixed_lanes, lanes), cell(self.kv_decode, context)
        columns = len(self.kv_prefill)
        origin = (first * columns + second) * block
        left = plane(self.mixed, origin, width, row, col)
        if second_share:
            right = plane(self.mixed, origin + block, width, row, col)
            left += second_share * (right - left)
        if not first_share:
            return left
        origin += columns * block
        above = plane(self.mixed, origin, width, row, col)
        if second_share:
            right = plane(self.mixed, origin + block, width, row, col)
            above += second_share * (right - above)
        return left + first_share * (above - left)

    def chunks_us(
        self, chunks: Sequence[tuple[int, int]], lanes: int, mean: float, longest: float
    ) -> float:
        """Return the time of several (tokens, cached) chunks beside decoding lanes."""
        if len(chunks) == 1:
            chunk, cached = chunks[0]
            return self.mixed_us(chunk, cached, lanes, mean, longest)
        total, area = 0, 0.0
        for tokens, cached in chunks:
            total += tokens
            area += tokens * (cached + tokens / 2)
        cached_mean = area / total - total / 2
        if cached_mean >= 0:
            joint = self.mixed_us(total, cached_mean, lanes, mean, longest)
        else:
            joint = self.mixed_us(math.sqrt(2 * area), 0, lanes, mean, longest)
        alone = max(self.chunk_us(tokens, cached) for tokens, cached in chunks)
        return max(joint, alone)
