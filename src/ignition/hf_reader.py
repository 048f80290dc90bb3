"""Reads a local Hugging Face directory of a Llama-family model into a Checkpoint."""

from __future__ import annotations

from pathlib import Path

from ignition.checkpoint import Checkpoint
from ignition.checkpoint_errors import CheckpointError


def read_directory(path: Path, *, name: str) -> Checkpoint:
    """Read a directory. Raises CheckpointError."""
    raise CheckpointError(file=path.name, field=name, found="a directory", expected="a GGUF file")
