"""Reports on the terminal and in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from flare.console import notices, results
from scheduling_sim.report import Report, Table, headline_table, outputs, tables
from scheduling_sim.workload.records import SkippedLine

_PIPED_WIDTH: Final = 160


def show(report: Report, *, is_long: bool) -> None:
    """Print the report: the service table, or every table, and how to make it again."""
    out = results()
    if not out.is_terminal:
        # A pipe or a file has no width; figures must not be cut to one that nobody chose.
        out = Console(width=_PIPED_WIDTH)
    out.print(f"[bold]{escape(report.title)}[/bold]", highlight=False)
    for table in tables(report) if is_long else (headline_table(report),):
        out.print(rich_table(table, out.width))
        if table.note:
            out.print(f"[dim]{escape(table.note)}[/dim]", highlight=False)
    for run in report.runs:
        counts = run.metrics.outcomes
        if counts.errors or counts.rejected or counts.unfinished:
            out.print(
                f"{escape(run.label)}: {counts.errors} errors, {counts.rejected} rejected, "
                f"{counts.unfinished} unfinished of {counts.requests} requests",
                highlight=False,
            )
    for name, skipped in report.skipped:
        out.print(escape(skipped_note(name, skipped)), highlight=False)
    if report.is_partial:
        out.print("[yellow]partial results[/yellow]: interrupted before the end")
    for failure in report.failures:
        notices().print(f"[red]failed:[/red] {escape(failure)}", soft_wrap=True)
    out.print(f"[dim]{escape(report.provenance.line)}[/dim]", soft_wrap=True, highlight=False)


def skipped_note(name: str, skipped: Sequence[SkippedLine]) -> str:
    """Return how many lines of a workload's trace were skipped, and the first of them."""
    return (
        f"{name}: {len(skipped)} lines of the trace were skipped, the first: line "
        f"{skipped[0].line}: {skipped[0].why}"
    )


def rich_table(table: Table, width: int) -> RichTable:
    """Return a table for a terminal of so many columns.

    One that would not fit is turned on its side when it has one column of words: a figure a line.
    """
    if _least_width(table) > width and table.text_columns == 1 and table.rows:
        table = _turned(table)
    drawn = RichTable(title=table.title, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(table.columns):
        is_text = place < table.text_columns
        drawn.add_column(
            escape(column),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
        )
    for cells in table.rows:
        drawn.add_row(*(escape(cell) for cell in cells))
    return drawn


def _least_width(table: Table) -> int:
    """Return the columns that a table takes with its headings in one line each."""
    columns = zip(table.columns, *table.rows, strict=True)
    return sum(max(len(cell) for cell in column) + 1 for column in columns)


def _turned(table: Table) -> Table:
    columns = list(zip(table.columns, *table.rows, strict=True))
    heads, *rest = columns
    return table._replace(columns=("", *heads[1:]), rows=tuple(rest))


def write(report: Report, directory: Path, *, with_plots: bool) -> None:
    """Write every output of the report into a directory, which is made when it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in outputs(report, with_plots=with_plots):
        (directory / name).write_bytes(content)
    front = "partial-" if report.is_partial else ""
    notices().print(f"written to {directory}; the page is {directory / f'{front}report.html'}")
