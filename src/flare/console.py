"""Where commands write: results to standard output, everything else to the error stream."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def results() -> Console:
    """Return the console for what a command was asked to print; it may be piped."""
    return Console(soft_wrap=False)


def notices() -> Console:
    """Return the console for progress, warnings and errors."""
    return Console(stderr=True, highlight=False)


def step_progress() -> Progress:
    """Return a progress bar that counts steps."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=notices(),
    )


def byte_progress() -> Progress:
    """Return a progress bar that counts bytes and goes when done; silent without a terminal."""
    console = notices()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
