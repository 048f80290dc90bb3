"""A measurement on the terminal and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from flare.bench.document import Origin, json_text
from flare.bench.machine import machine, now
from flare.bench.page import outputs
from flare.bench.rounds import Outcome
from flare.bench.tables import (
    headline_table,
    latency_table,
    markdown,
    outcome_table,
    remarks,
    tables,
)
from flare.console import notices, results
from flare.sim.provenance import source_commit
from flare.sim.show import rich_table
from helios import __version__
from scheduling_sim.report.tables import Table

_PIPED_WIDTH: Final = 160


def origin_of(command: str) -> Origin:
    """Return where and when this is measured."""
    return Origin(
        made_at=now(),
        version=__version__,
        commit=source_commit(),
        command=command,
        machine=machine(),
    )


def print_report(outcome: Outcome, *, as_markdown: bool, is_long: bool) -> None:
    """Print the comparison, or every table, and what a reader must know about them."""
    out = results()
    if not out.is_terminal:
        # A pipe or a file has no width; figures must not be cut to one that nobody chose.
        out = Console(width=_PIPED_WIDTH)
    if as_markdown:
        out.print(markdown(outcome), end="", markup=False, highlight=False, soft_wrap=True)
    shown = list(tables(outcome)) if is_long else _usual(outcome)
    for table in () if as_markdown else shown:
        out.print(rich_table(table, out.width))
        if table.note:
            out.print(f"[dim]{escape(table.note)}[/dim]", highlight=False, soft_wrap=True)
    said = notices() if as_markdown else out
    for remark in remarks(outcome):
        said.print(f"[dim]{escape(remark)}[/dim]", highlight=False, soft_wrap=True)
    if outcome.is_partial:
        said.print("[yellow]partial results[/yellow]: interrupted before the end")
    for failure in outcome.failures:
        notices().print(f"[red]failed:[/red] {escape(failure)}", soft_wrap=True)


def _usual(outcome: Outcome) -> list[Table]:
    """Return the comparison and the latencies, and what failed where something did."""
    shown = [headline_table(outcome), latency_table(outcome)]
    if any(run.failures or run.figures.get("short") for run in outcome.runs):
        shown.append(outcome_table(outcome))
    return shown


def write_report(
    outcome: Outcome, origin: Origin, *, directory: Path | None, json_path: Path | None
) -> None:
    """Write what was asked for; directories are made when they are missing."""
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json_text(outcome, origin))
        notices().print(f"written to {json_path}", soft_wrap=True)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in outputs(outcome, origin):
            (directory / name).write_bytes(content)
        front = "partial-" if outcome.is_partial else ""
        page = directory / f"{front}bench.html"
        notices().print(f"written to {directory}; the page is {page}", soft_wrap=True)
