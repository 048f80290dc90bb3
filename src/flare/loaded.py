"""What a server runs of a package, once it is decided."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from helios.engine.manifest import Manifest
from helios.scheduler import SpeculationConfig
from ignition.package import LoadLimits


class Decoding(NamedTuple):
    """How decoders generate."""

    speculation: SpeculationConfig
    sources: tuple[str, ...]
    """Where proposals come from, as catalogs and manifests name them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A package, and what of it is served how."""

    directory: Path
    manifest: Manifest
    """With the programs, rows, pages and threads that are served, not all that were prepared."""
    decoding: Decoding

    @property
    def limits(self) -> LoadLimits:
        """What opening the package may load."""
        pool = self.manifest.pool
        return LoadLimits(
            row_count=pool.row_count,
            page_count=pool.page_count,
            context_length_tokens=pool.context_length_tokens,
            graphs=tuple(graph.name for graph in self.manifest.graphs),
        )
