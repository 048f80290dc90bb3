"""What every cost model answers: how long one step takes on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from helios.scheduler import GraphDescriptor


class LaneWork(NamedTuple):
    """What one lane runs through the model in a step."""

    new_tokens: int
    """Prompt tokens, or target rows of a generating lane (1 for decode)."""
    cached_tokens: int
    """Tokens of the request that are in the cache before the step."""
    is_prompt: bool
    samples: bool = True
    """An output is drawn: always for generating lanes, for a prompt's last chunk."""


class CostModel(Protocol):
    """Device time of steps; pure, so that two policies meet the same machine."""

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the device time of one step in ns, at least 1.

        With a graph, dense work is that of its captured capacities, padding included, and attention
        is that of the lanes. Without one the step has the lanes' own shape, as an engine has that
        captures nothing. Raises ValueError for lanes that the graph cannot hold.
        """
        ...
