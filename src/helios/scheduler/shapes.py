"""The graphs of a catalog by kind, smallest first: what a decision looks shapes up in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helios.scheduler.catalog import Catalog, GraphKind
from helios.scheduler.config import SpeculationConfig
from helios.scheduler.geometry import Geometry, Integers

Shape = tuple[int, int]
"""Graph index and capacity: request rows, or prompt tokens of a prefill kind."""


class Shapes:
    """The graphs of a catalog by kind, smallest capacity first, under one decode mode.

    Without `copies`, rounds that take copied proposals serve no decoder.
    """

    __slots__ = ("by_kind", "catalog", "geometry", "prompt_shapes", "speculation")

    def __init__(
        self,
        catalog: Catalog,
        speculation: SpeculationConfig | None = None,
        *,
        copies: bool = True,
    ) -> None:
        self.catalog = catalog
        self.speculation = SpeculationConfig() if speculation is None else speculation
        self.geometry = Geometry(catalog, self.speculation, copies=copies)
        self.by_kind: tuple[tuple[Shape, ...], ...] = tuple(
            tuple(
                (index, catalog.graphs[index].batch_capacity * catalog.graphs[index].token_capacity)
                for index in catalog.indices_of(kind)
            )
            for kind in GraphKind
        )
        self.prompt_shapes: dict[GraphKind, tuple[Integers, Integers]] = {
            kind: _columns(self.by_kind[kind])
            for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
        }
        """Graph indices and prompt capacities of the prefill graphs, by kind."""


def _columns(shapes: Sequence[Shape]) -> tuple[Integers, Integers]:
    pairs: Integers = np.array(shapes, dtype=np.int64).reshape(len(shapes), 2)
    indices, capacities = pairs.T.copy()
    return indices, capacities
