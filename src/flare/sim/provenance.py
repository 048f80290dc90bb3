"""Which source an output was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from helios import __version__
from scheduling_sim.report import Provenance

_UNKNOWN: Final = "unknown"
_SOURCE: Final = Path(__file__).resolve()


def provenance(command: str, seed: int) -> Provenance:
    """Return the version, the commit and the command of an output."""
    return Provenance(version=__version__, commit=source_commit(), command=command, seed=seed)


def source_commit() -> str:
    """Return the short commit of the checkout that this code runs from.

    `+changes` is added when tracked files differ from it; `unknown` is returned for an installed
    package, even one that lies inside somebody's repository.
    """
    if _git("ls-files", "--error-unmatch", _SOURCE.name) is None:
        return _UNKNOWN
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return _UNKNOWN
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/src")
    return f"{commit}+changes" if changed else commit


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
