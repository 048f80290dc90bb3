"""`flare trace`: renders a trace file as tables and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flare.console import notices, results
from flare.errors import FlareError
from flare.trace import Summary, read_trace, summarise
from flare.trace.tables import DecisionWindow, decision_table, summary_tables


def trace(
    *,
    file: Annotated[Path, typer.Argument(help="File that `flare run --trace` wrote.")],
    png: Annotated[
        Path | None, typer.Option(help="Write the timeline here [default: FILE.png].")
    ] = None,
    picture: Annotated[bool, typer.Option(help="Draw the timeline.")] = True,
    limit: Annotated[int, typer.Option(min=0, help="Decisions to print.")] = 40,
    from_ms: Annotated[float, typer.Option(min=0, help="Print decisions from this time on.")] = 0.0,
    worst_gap: Annotated[
        int | None,
        typer.Option(min=1, help="Print only the decisions during the N-th longest gap."),
    ] = None,
) -> None:
    """Show why: every decision with its score, time by graph, who waited; and a PNG timeline.

    Examples:
    [bold]flare trace run.jsonl[/bold]
    [bold]flare trace run.jsonl --worst-gap 1 --limit 100[/bold]
    """
    if not file.is_file():
        raise FlareError(f"there is no trace file {file}")
    content = read_trace(file)
    summary = summarise(content)
    out = results()
    if limit:
        window = _window(summary, limit, from_ms, worst_gap)
        out.print(decision_table(content, summary, window))
    out.print(summary_tables(summary))
    if content.skipped_lines:
        notices().print(f"{content.skipped_lines} lines of the trace were skipped")
    if picture:
        # Drawing pulls in half a second of imports that no other command needs.
        from flare.trace.timeline import draw_timeline  # noqa: PLC0415

        target = png or file.with_suffix(file.suffix + ".png")
        draw_timeline(content, summary, target)
        notices().print(f"timeline written to {target}")


def _window(summary: Summary, limit: int, from_ms: float, worst_gap: int | None) -> DecisionWindow:
    begin_ns, end_ns = summary.begin_ns + int(from_ms * 1e6), 2**63
    if worst_gap is not None:
        gaps = summary.worst_gaps(worst_gap)
        if len(gaps) < worst_gap:
            raise FlareError(f"--worst-gap {worst_gap}: the trace has only {len(gaps)} gaps")
        interval = gaps[-1].worst_gap_ns
        assert interval is not None
        begin_ns, end_ns = interval
    return DecisionWindow(begin_ns=begin_ns, end_ns=end_ns, limit=limit)
