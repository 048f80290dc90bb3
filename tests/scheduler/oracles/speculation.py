"""Dumb twins of acceptance, forecasts and row allocation: one value at a time, no arrays."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence


@dataclasses.dataclass
class Cell:
    """One depth of one source of one row."""

    mean: float
    weight: float = 2.0
    at: int = 0
    """Output count at the last observation."""

    def aged(self, generated: int) -> float:
        return self.weight * 2.0 ** (-(generated - self.at) / 128)

    def observe(self, value: float, generated: int) -> None:
        self.weight = min(self.aged(generated) + 1, 128)
        self.mean += (value - self.mean) / self.weight
        self.at = generated


class Row:
    """One row's acceptance by one source, depth by depth."""

    def __init__(self, depth: int) -> None:
        self.cells = [Cell(0.5**d) for d in range(1, depth + 1)]

    def survivals(self) -> list[float]:
        return list(itertools.accumulate((cell.mean for cell in self.cells), min))

    def optimistic(self, generated: int) -> list[float]:
        raised = [
            min(1.0, mean + math.sqrt(math.log(20) / (2 * cell.aged(generated))))
            for mean, cell in zip(self.survivals(), self.cells, strict=True)
        ]
        return list(itertools.accumulate(raised, min))

    def round(
        self,
        offered: int,
        produced: int,
        generated: int,
        *,
        terminated: bool = False,
        survival: Sequence[float] | None = None,
    ) -> None:
        """Learn a round of `offered` target rows that committed `produced` tokens."""
        for d in range(1, offered):
            if d < produced:
                value = 1.0
            elif terminated:
                return
            else:
                value = 0.0
            if survival is not None:
                value = survival[d - 1]
            self.cells[d - 1].observe(value, generated)


class Population:
    """What the requests of one source have shown together, depth by depth."""

    def __init__(self, depth: int) -> None:
        self.means = [0.5**d for d in range(1, depth + 1)]
        self.known = [2.0] * depth

    def round(self, shown: Sequence[dict[int, float]]) -> None:
        """Learn one round: for every lane, the value of each depth that it observed."""
        for index in range(len(self.means)):
            values = [lane[index + 1] for lane in shown if index + 1 in lane]
            total = self.means[index] * self.known[index] + sum(values)
            self.means[index] = total / (self.known[index] + len(values))
            self.known[index] = min(64.0, self.known[index] + len(values))

    def weights(self) -> list[float]:
        """What a new request's start weighs."""
        return [min(8.0, known) for known in self.known]


def frontier_lengths(
    values: Sequence[Sequence[float]], ceilings: Sequence[int], slots: Sequence[int], packed: int
) -> list[int]:
    """Admit one proposal after the other: best value, then shorter prefix, then smaller slot."""
    lengths = [1] * len(slots)
    while sum(lengths) < packed:
        fronts = [
            (-min(values[lane][: lengths[lane]]), lengths[lane], slots[lane], lane)
            for lane in range(len(slots))
            if lengths[lane] < ceilings[lane] and lengths[lane] <= len(values[lane])
        ]
        if not fronts:
            break
        lengths[min(fronts)[3]] += 1
    return lengths


def best_total(values: Sequence[Sequence[float]], ceilings: Sequence[int], packed: int) -> float:
    """Return the largest sum of admitted values over every choice of prefix lengths."""
    return max(
        sum(sum(row[: length - 1]) for row, length in zip(values, lengths, strict=True))
        for lengths in itertools.product(*(range(1, ceiling + 1) for ceiling in ceilings))
        if sum(lengths) <= packed
    )
