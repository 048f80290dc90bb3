"""What a model is, before its tensors are read: name, hash and geometry."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from flare.commands.fetch import fetched
from flare.console import notices
from ignition.checkpoint import Checkpoint
from ignition.fetch import KNOWN_MODELS
from ignition.geometry import ModelGeometry
from ignition.gguf_reader import read_gguf_geometry
from ignition.sources import ModelSource, SourceKind, read_source, resolve


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that can be prepared. Its tensors are read only when `checkpoint` is called."""

    source: ModelSource
    sha256: str
    geometry: ModelGeometry
    loaded: Checkpoint | None = None
    """The whole model, where finding out the rest meant reading it."""

    def checkpoint(self) -> Checkpoint:
        """Read the model. Raises CheckpointError or SourceError."""
        return read_source(self.source) if self.loaded is None else self.loaded


def find_model(text: str) -> Model:
    """Resolve what the person typed, fetching a known model that is missing.

    Raises SourceError, FetchError or CheckpointError.
    """
    source = resolve(text)
    if source.kind is SourceKind.KNOWN:
        known = KNOWN_MODELS[source.location]
        path = fetched(known)
        return Model(source=source, sha256=known.gguf_sha256, geometry=read_gguf_geometry(path))
    if source.kind is SourceKind.GGUF:
        path = Path(source.location)
        geometry = read_gguf_geometry(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Model(source=source, sha256=digest, geometry=geometry)
    notices().print(f"reading {source.name} ...")
    checkpoint = read_source(source)
    return Model(
        source=source, sha256=checkpoint.sha256, geometry=checkpoint.geometry, loaded=checkpoint
    )
