"""The baselines by name."""

from __future__ import annotations

from scheduling_sim.baselines.core import BaselineCore
from scheduling_sim.baselines.fcfs import Fcfs
from scheduling_sim.baselines.shapes import FreeShapes, PreparedShapes
from scheduling_sim.platform import Platform


def build_fcfs(platform: Platform, *, frames: int = 2) -> BaselineCore:
    """Return FCFS continuous batching on the prepared catalog."""
    resources = platform.resources
    shapes = PreparedShapes(platform.catalog, rows=resources.row_count)
    return BaselineCore(Fcfs(), shapes=shapes, resources=resources, frames=frames)


def build_fcfs_free(
    platform: Platform, *, frames: int = 2, max_sequences: int = 256, max_batched_tokens: int = 2048
) -> BaselineCore:
    """Return FCFS continuous batching with steps of any shape."""
    shapes = FreeShapes(max_sequences=max_sequences, max_batched_tokens=max_batched_tokens)
    return BaselineCore(Fcfs(), shapes=shapes, resources=platform.resources, frames=frames)
