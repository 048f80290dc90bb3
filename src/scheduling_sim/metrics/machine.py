"""What the machine did: padding, pages, queue, decision time, preemptions and speculation."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scheduling_sim.metrics.distribution import Integers
from scheduling_sim.run_log import RequestLog, RunLog, StepLog

FREE: Final = "free"
"""Family of steps that no prepared graph ran."""
_CAPACITIES = re.compile(r"-[bc]\d.*")


def column(values: array[int]) -> Integers:
    """Return a column of a step log as an array."""
    return np.array(values, dtype=np.int64)


def family_of(graph_name: str) -> str:
    """Return a graph's name without its capacities: `decode-b4` and `decode-b8` are `decode`."""
    return _CAPACITIES.sub("", graph_name)


def families(log: RunLog) -> list[str]:
    """Return the family of each step; free for steps whose graph index names no graph."""
    known = [family_of(name) for name in log.graph_names]
    return [known[i] if 0 <= i < len(known) else FREE for i in log.steps.graph_index]


class FamilyWork(NamedTuple):
    """The steps of one graph family."""

    family: str
    steps: int
    device_ns: int
    useful_rows: int
    physical_rows: int

    @property
    def padding_share(self) -> float | None:
        """Part of the computed rows that served no one; None when none was computed."""
        return 1 - self.useful_rows / self.physical_rows if self.physical_rows else None


def work_by_family(log: RunLog) -> tuple[FamilyWork, ...]:
    """Return the work of each family, in order of first use."""
    sums: dict[str, list[int]] = {}
    steps = log.steps
    columns = (steps.device_ns, steps.useful_rows, steps.physical_rows)
    for family, *work in zip(families(log), *columns, strict=True):
        sums.setdefault(family, [0, 0, 0, 0])
        for place, amount in enumerate((1, *work)):
            sums[family][place] += amount
    return tuple(FamilyWork(family, *totals) for family, totals in sums.items())


def busy_share(log: RunLog) -> float | None:
    """Return the part of the run in which the device worked; None for a run without length."""
    return sum(log.steps.device_ns) / log.ended_ns if log.ended_ns > 0 else None


class Level(NamedTuple):
    """A quantity over time; both are None for a run without steps."""

    mean: float | None
    """Weighted by how long each value stood."""
    peak: int | None


def level_of(steps: StepLog, values: array[int], ended_ns: int) -> Level:
    """Return the mean and the peak of a column, each value standing until the next step starts."""
    if not values:
        return Level(None, None)
    starts = column(steps.started_ns)
    standing = np.diff(np.append(starts, max(ended_ns, int(starts[-1]))))
    total = int(standing.sum())
    mean = float((standing * column(values)).sum() / total) if total else float(values[-1])
    return Level(mean, max(values))


def decision_times_ns(steps: StepLog) -> Integers:
    """Return the real host time of each decision; empty when there was no stopwatch."""
    taken = column(steps.decision_ns)
    return taken if taken.any() else taken[:0]


def cached_share(requests: Sequence[RequestLog]) -> float | None:
    """Return the part of the prompt tokens that a checkpoint saved, over dispatched requests.

    None when no request was dispatched.
    """
    served = [one for one in requests if one.dispatched_ns is not None]
    prompt = sum(one.request.prompt_tokens for one in served)
    return sum(one.cached_prompt_tokens for one in served) / prompt if prompt else None


class Rounds(NamedTuple):
    """Speculative rounds of one program; a round is one lane of one step."""

    program: str
    rounds: int
    offered: int
    accepted: int
    device_ns: int

    @property
    def acceptance(self) -> float:
        """Part of the offered tokens that were accepted."""
        return self.accepted / self.offered

    @property
    def accepted_per_round(self) -> float:
        """Accepted proposals per round, without the token that every round yields anyway."""
        return self.accepted / self.rounds


def rounds_by_program(log: RunLog) -> tuple[Rounds, ...]:
    """Return the steps that verified proposals, by program, in order of first use."""
    sums: dict[str, list[int]] = {}
    steps = log.steps
    columns = (steps.graph_index, steps.lanes, steps.offered, steps.accepted, steps.device_ns)
    for graph, *work in zip(*columns, strict=True):
        if not work[1]:
            continue
        name = log.graph_names[graph] if 0 <= graph < len(log.graph_names) else FREE
        totals = sums.setdefault(name, [0, 0, 0, 0])
        for place, amount in enumerate(work):
            totals[place] += amount
    return tuple(Rounds(name, *totals) for name, totals in sums.items())
