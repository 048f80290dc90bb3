"""Where the traces are that tests read: excerpts in the repository, originals beside it if any."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
AZURE_EXCERPT = ROOT / "tests/data/traces/azure_conv_excerpt.csv"
MOONCAKE_EXCERPT = ROOT / "tests/data/traces/mooncake_conv_excerpt.jsonl"


def _shared() -> Path:
    """Return the shared data folder: beside the repository, or beside that of a worktree."""
    pointer = ROOT / ".git"
    home = ROOT
    if pointer.is_file():
        home = Path(pointer.read_text().removeprefix("gitdir: ").strip()).parents[2]
    return home.parent / "shared" / "data"


AZURE = _shared() / "azure" / "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = _shared() / "mooncake" / "conversation_trace.jsonl"
