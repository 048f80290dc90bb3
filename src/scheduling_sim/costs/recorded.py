"""Costs from a recorded run of our own engine (`flare run --trace FILE`).

A program's time is a line over what its lanes attend to, fitted to its frames: tokens in the cache
of generating lanes, pairs of positions of prompts. Ratios of observed and fitted time are kept in
order, so that slow spells of a shared machine occur in replays as they did.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Mapping, Sequence

import numpy as np

from helios.scheduler import GraphDescriptor, GraphKind
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.costs.trace_file import RecordedFrame, RecordedRun

INFERENCE = (
    GraphKind.PREFILL,
    GraphKind.SCORED_PREFILL,
    GraphKind.DECODE,
    GraphKind.SPECULATIVE,
    GraphKind.MIXED,
)
SPELL_FRAMES = 64
"""Successive frames whose ratios are drawn together."""
FITTED_FRAMES = 8
"""Fewer frames give a mean and no growth."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramCost:
    """One program's time: base + slope * attended."""

    base_ns: float
    slope_ns: float
    frames: int = 0
    """Frames behind it; none when it is a belief or a guess."""

    def mean_ns(self, attended: float) -> float:
        """Return the fitted time in ns."""
        return self.base_ns + self.slope_ns * attended


def attended(lanes: Sequence[LaneWork]) -> float:
    """Return what the lanes attend to: cached tokens, and pairs of prompt positions."""
    total = 0.0
    for new, cached, is_prompt, _ in lanes:
        total += new * (cached + new / 2) if is_prompt else cached
    return total


def fit_program(points: Sequence[tuple[float, int]]) -> ProgramCost:
    """Fit (attended, device_ns) points; ValueError without any.

    Least squares keeps the mean, and so the length of a replayed run. A slope that is not positive
    is noise and is left out.
    """
    if not points:
        raise ValueError("a program without frames has no cost")
    times = np.array([time for _, time in points], dtype=np.float64)
    work = np.array([attention for attention, _ in points])
    base, slope = float(times.mean()), 0.0
    if len(points) >= FITTED_FRAMES and work.max() > work.min():
        centred = work - work.mean()
        slope = float((centred * times).sum() / (centred * centred).sum())
        base = float(times.mean() - slope * work.mean())
        if slope <= 0 or base <= 0:
            base, slope = float(times.mean()), 0.0
    return ProgramCost(base, slope, len(points))


def occupied_ns(frame: RecordedFrame) -> int:
    """Return how long a frame kept the device: its time, and the gap before it if it was queued.

    The gap before a frame that was planned in time is the device's own; any other gap is the host's
    (see `recorded_host`).
    """
    gap = frame.host_gap_ns if frame.was_queued else None
    return frame.device_ns + (gap or 0)


def speed_ratios(run: RecordedRun, programs: Mapping[str, ProgramCost]) -> tuple[float, ...]:
    """Return observed over fitted time of every inference frame, in the order of the run."""
    return tuple(
        occupied_ns(frame) / programs[frame.graph.name].mean_ns(attended(frame.lanes))
        for frame in run.frames
        if frame.graph.kind in INFERENCE
    )


def fit_programs(run: RecordedRun) -> dict[str, ProgramCost]:
    """Fit every program that ran.

    A program that was weighed and never ran costs what the server believed.
    """
    points: dict[str, list[tuple[float, int]]] = {}
    for frame in run.frames:
        point = (attended(frame.lanes), occupied_ns(frame))
        points.setdefault(frame.graph.name, []).append(point)
    programs = {name: fit_program(found) for name, found in points.items()}
    for name, believed in run.believed_ns.items():
        programs.setdefault(name, ProgramCost(float(believed), 0.0))
    return dict(sorted(programs.items()))


class Spread(enum.Enum):
    """How steps depart from the fitted time of their program."""

    NONE = "none"
    """Not at all."""
    DRAWN = "drawn"
    """By runs of successive recorded frames, begun anywhere: slow spells last as they did."""
    IN_ORDER = "in-order"
    """As the recorded frames did, in their order from the first; the run then begins again."""


class RecordedCosts:
    """Implements `CostModel` over fitted programs.

    A program without a cost takes the time of its kind by rows, interpolated between those that
    have one, a scored prefill without any of its kind that of prefills; else it raises ValueError.
    Steps of inference share one sequence of
    ratios, since what slows a machine down slows all its programs; state operations keep their
    fitted time.
    """

    def __init__(
        self,
        programs: Mapping[str, ProgramCost],
        graphs: Sequence[GraphDescriptor],
        *,
        ratios: Sequence[float] = (1.0,),
        spread: Spread = Spread.NONE,
        seed: int = 0,
    ) -> None:
        if not ratios:
            raise ValueError("ratios must hold at least one ratio of observed and fitted time")
        self.programs = dict(programs)
        self._graphs = tuple(graphs)
        self._guessed: dict[str, ProgramCost] = {}
        self._ratios = tuple(ratios)
        self._spread = spread
        self._random = random.Random(seed)
        self._at = -1

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the device time of a step in ns; see `CostModel`."""
        if graph is None:
            raise ValueError("a recorded run has no free shapes; use a composed platform")
        if not lanes or len(lanes) > graph.batch_capacity:
            raise ValueError(f"{graph.name}: {len(lanes)} lanes, it holds {graph.batch_capacity}")
        name = graph.name
        program = self.programs.get(name) or self._guessed.get(name) or self._guess(graph)
        time = program.mean_ns(attended(lanes))
        if graph.kind in INFERENCE:
            time *= self._ratio()
        return max(1, round(time))

    def _ratio(self) -> float:
        if self._spread is Spread.NONE:
            return 1.0
        self._at += 1
        if self._spread is Spread.DRAWN and self._at % SPELL_FRAMES == 0:
            self._at = self._random.randrange(len(self._ratios)) // SPELL_FRAMES * SPELL_FRAMES
        return self._ratios[self._at % len(self._ratios)]

    def _known(self, kind: GraphKind) -> list[tuple[int, ProgramCost]]:
        """Return rows and cost of the programs of a kind that have one, rising."""
        return sorted(
            (other.rows + other.prefill_capacity, self.programs[other.name])
            for other in self._graphs
            if other.kind is kind and other.name in self.programs
        )

    def _guess(self, graph: GraphDescriptor) -> ProgramCost:
        """Price a program that never ran by its kind: a line through its neighbours' bases."""
        rows = graph.rows + graph.prefill_capacity
        known = self._known(graph.kind)
        if not known and graph.kind is GraphKind.SCORED_PREFILL:
            # A server prepares these whether or not anybody asks for scores; all that is known of
            # them then is that they read a prompt.
            known = self._known(GraphKind.PREFILL)
        if not known:
            raise ValueError(f"no {graph.name} and nothing of its kind ran in the recorded run")
        below = [entry for entry in known if entry[0] <= rows] or known[:1]
        above = [entry for entry in known if entry[0] >= rows] or known[-1:]
        (low, first), (high, second) = below[-1], above[0]
        share = (rows - low) / (high - low) if high > low else rows / low
        base = first.base_ns + share * (second.base_ns - first.base_ns)
        if high == low:
            base = first.base_ns * max(1.0, share)
        slope = (first.slope_ns + second.slope_ns) / 2
        guessed = ProgramCost(base, slope)
        self._guessed[graph.name] = guessed
        return guessed
