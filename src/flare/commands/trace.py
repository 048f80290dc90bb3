"""`flare trace`: renders a trace file as tables and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flare.console import notices, results
from flare.errors import FlareError
from flare.trace import Summary, read_trace, summarise
from flare.trace.tables import DecisionWindow, decision_lines, summary_tables


def trace(
    *,
    file: Annotated[Path, typer.Argument(help="File that `flare run --trace` wrote.")],
    png: Annotated[
        Path | None, typer.Option(help="Write the timeline here (default: FILE.png).")
    ] = None,
    picture: Annotated[bool, typer.Option(help="Draw the timeline.")] = True,
    limit: Annotated[int, typer.Option(min=0, help="Decisions to print.")] = 40,
    from_ms: Annotated[float | None, typer.Option(min=0, help="Begin here.")] = None,
    to_ms: Annotated[float | None, typer.Option(min=0, help="End here.")] = None,
    worst_gap: Annotated[
        int | None, typer.Option(min=1, help="Show the N-th longest gap of any request.")
    ] = None,
) -> None:
    """Show why: every decision with its score, time by graph, who waited; and a PNG timeline.

    Examples:
    [bold]flare trace run.jsonl[/bold]
    [bold]flare trace run.jsonl --worst-gap 1 --limit 100[/bold]
    [bold]flare trace run.jsonl --from-ms 2000 --to-ms 2500 --png zoom.png[/bold]
    """
    if not file.is_file():
        raise FlareError(f"there is no trace file {file}")
    content = read_trace(file)
    summary = summarise(content)
    span_ms = _span(summary, from_ms, to_ms, worst_gap)
    out = results()
    if limit:
        begin_ms, end_ms = span_ms or (0.0, summary.wall_ms)
        window = DecisionWindow(
            begin_ns=summary.begin_ns + int(begin_ms * 1e6),
            end_ns=summary.begin_ns + int(end_ms * 1e6),
            limit=limit,
        )
        out.print(decision_lines(content, summary, window))
    out.print(summary_tables(summary))
    if content.skipped_lines:
        notices().print(f"{content.skipped_lines} lines of the trace were skipped")
    if picture:
        # Drawing pulls in half a second of imports that no other command needs.
        from flare.trace.timeline import draw_timeline  # noqa: PLC0415

        target = png or file.with_suffix(file.suffix + ".png")
        draw_timeline(content, summary, target, span_ms)
        notices().print(f"timeline written to {target}")


def _span(
    summary: Summary, from_ms: float | None, to_ms: float | None, worst_gap: int | None
) -> tuple[float, float] | None:
    """Return what to show in ms since the first request, None for everything."""
    if worst_gap is not None:
        gaps = summary.worst_gaps(worst_gap)
        if len(gaps) < worst_gap:
            raise FlareError(f"--worst-gap {worst_gap}: the trace has only {len(gaps)} gaps")
        interval = gaps[-1].worst_gap_ns
        assert interval is not None
        # The decision that ended in the first delivery was made before it.
        begin_ms, end_ms = ((at - summary.begin_ns) / 1e6 for at in interval)
        margin_ms = 0.2 * (end_ms - begin_ms)
        return begin_ms - margin_ms, end_ms + margin_ms
    if from_ms is None and to_ms is None:
        return None
    begin_ms, end_ms = from_ms or 0.0, summary.wall_ms if to_ms is None else to_ms
    if begin_ms >= end_ms:
        raise FlareError(f"--from-ms {begin_ms:g} is not before --to-ms {end_ms:g}")
    return begin_ms, end_ms
