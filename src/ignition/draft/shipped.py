"""The draft heads that come with this package, one for each target that there is one for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_DIRECTORY: Final = Path(__file__).parent / "data"


def shipped_name(target: str, target_sha256: str) -> str:
    """Return the file name of a target's head: its name is for readers, its hash is looked up."""
    return f"{target}-{target_sha256[:12]}.safetensors"


def shipped_draft(target_sha256: str, directory: Path = _DIRECTORY) -> Path | None:
    """Return the file of the head for a checkpoint of this hash; None where there is none."""
    found = sorted(directory.glob(shipped_name("*", target_sha256)))
    return found[0] if found else None
