"""Which source an output was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from helios import __version__
from scheduling_sim.report import Provenance

_UNKNOWN: Final = "unknown"
_SOURCE: Final = Path(__file__).resolve()


def provenance(command: str, seed: int) -> Provenance:
    """Return the version, the commit and the command of an output."""
    return Provenance(version=__version__, commit=source_commit(), command=command, seed=seed)


class Source(NamedTuple):
    """Where a source stands in git."""

    commit: str
    """Short. A commit that is rebased before it lands is in no clone."""
    tree: str
    """Of the folder `src`, short: the same in every commit with the same sources, so that it
    outlives a rebase over changes elsewhere."""


def source() -> Source:
    """Return the commit and the tree of the checkout that this code runs from.

    `+changes` is added to both when tracked files differ; both are `unknown` for an installed
    package, even one that lies inside somebody's repository.
    """
    if _git("ls-files", "--error-unmatch", _SOURCE.name) is None:
        return Source(_UNKNOWN, _UNKNOWN)
    names = [_git("rev-parse", "--short=12", what) or "" for what in ("HEAD", "HEAD:src")]
    if not all(names):
        return Source(_UNKNOWN, _UNKNOWN)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/src")
    return Source(*(f"{name}+changes" if changed else name for name in names))


def source_commit() -> str:
    """Return the short commit of the checkout, as `source` does."""
    return source().commit


def _git(*arguments: str) -> str | None:
    """Return what git prints, None when it cannot."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=_SOURCE.parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
