"""Costs by program: a time per graph name, with growth per cached token and per row.

The plainest model: what a server measured of its own programs, or numbers made up for a test. Free
shapes, which have no name, interpolate on rows between the decode and prefill programs given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from helios.scheduler import GraphDescriptor
from scheduling_sim.costs.interpolation import line
from scheduling_sim.costs.model import LaneWork


@dataclasses.dataclass(frozen=True, slots=True)
class Growth:
    """What context adds to a program, ns per cached token of all its lanes."""

    ns_per_cached_token: float = 0.0
    ns_per_prompt_pair: float = 0.0
    """Per pair of a prompt token and a token before it: prefill behind a long context."""

    def __post_init__(self) -> None:
        if self.ns_per_cached_token < 0 or self.ns_per_prompt_pair < 0:
            raise ValueError("growth must not be negative")

    def extra_ns(self, lanes: Sequence[LaneWork]) -> float:
        """Return what the lanes' contexts add."""
        tokens = pairs = 0.0
        for new, cached, is_prompt, _ in lanes:
            if is_prompt:
                pairs += new * (cached + new / 2)
            else:
                tokens += cached
        return tokens * self.ns_per_cached_token + pairs * self.ns_per_prompt_pair


class TableCosts:
    """Implements `CostModel` over milliseconds by graph name.

    `growth` holds for every program that it does not name. `free_rows` gives the time in ms of a
    free step by its rows; without it a step that has no program raises ValueError.
    """

    def __init__(
        self,
        milliseconds: Mapping[str, float],
        *,
        growth: Mapping[str, Growth] | None = None,
        default_growth: Growth | None = None,
        free_rows: Mapping[int, float] | None = None,
    ) -> None:
        for name, value in milliseconds.items():
            if not value > 0:
                raise ValueError(f"{name}: a cost must be above 0 ms, not {value}")
        unknown = [name for name in growth or {} if name not in milliseconds]
        if unknown:
            raise ValueError(f"growth of {unknown[0]}, which has no cost")
        self.milliseconds = dict(milliseconds)
        self._growth = dict(growth or {})
        self._default = default_growth or Growth()
        rows = sorted((free_rows or {}).items())
        if rows and len(rows) < 2:
            raise ValueError("free_rows needs at least two points")
        self._rows = tuple(at for at, _ in rows)
        self._times = tuple(value for _, value in rows)

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the device time of a step in ns; see `CostModel`."""
        if graph is None:
            if not self._rows:
                raise ValueError("this table has no free shapes; give free_rows")
            base = line(self._rows, self._times, sum(lane.new_tokens for lane in lanes))
            return max(1, round(base * 1e6 + self._default.extra_ns(lanes)))
        name = graph.name
        if name not in self.milliseconds:
            raise ValueError(f"no cost for {name}; there are {', '.join(self.milliseconds)}")
        if len(lanes) > graph.batch_capacity:
            raise ValueError(f"{name}: {len(lanes)} lanes, it holds {graph.batch_capacity}")
        growth = self._growth.get(name, self._default)
        return max(1, round(self.milliseconds[name] * 1e6 + growth.extra_ns(lanes)))
