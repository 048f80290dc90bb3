"""Draws a View for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flare.top.view import Speculation, View

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_BAR: Final = 24
_SPARKS: Final = 60


def screen(view: View, *, url: str, trouble: str = "") -> RenderableType:
    """Return the whole frame; `trouble` says why it is not up to date."""
    return Group(*_parts(view, url, trouble))


def _parts(view: View, url: str, trouble: str) -> Iterator[RenderableType]:
    yield _head(view, url, trouble)
    yield _now(view)
    yield Text("")
    span = f"last {view.window_s:.0f} s" if view.window_s else "since the server's start"
    yield _latencies(view, span)
    yield Text("")
    yield _programs(view, span)
    for line in _lines(view):
        yield Text.from_markup(line)


def _head(view: View, url: str, trouble: str) -> Text:
    state = "[green]up[/green]" if view.is_up else "[red]engine down[/red]"
    restarts = f", engine restarted {view.restarts} x" if view.restarts else ""
    text = f"[bold]flare top[/bold]  {escape(url)}  {state}{restarts}"
    return Text.from_markup(f"{text}  [red]{escape(trouble)}[/red]" if trouble else text)


def _now(view: View) -> Table:
    grid = Table.grid(padding=(0, 2))
    rows = f"{view.streams} of {view.rows}"
    grid.add_row("streams", bar(view.streams, view.rows), f"{rows}, {view.waiting} waiting")
    kept = f", {view.pages_kept:,} of them kept prefixes" if view.pages_kept else ""
    pages = f"{view.pages_used:,} of {view.pages:,}{kept}"
    grid.add_row("pages", bar(view.pages_used, view.pages), pages)
    if view.rate_s:
        speed = f"{view.output_per_s:,.0f} output, {view.prompt_per_s:,.0f} prompt (last "
        grid.add_row("tokens/s", spark(view.history), f"{speed}{view.rate_s:.1f} s)")
    if view.inside_share is not None:
        live = "" if view.live_share is None else f", requests live {view.live_share:.0%} of it"
        inside = f"{view.inside_share:.1%} of the time with requests{live}"
        grid.add_row("in programs", bar(view.inside_share, 1), inside)
    return grid


def _latencies(view: View, span: str) -> Table:
    table = _table(f"Latency, {span}", ("ms", "count", "P50", "P90", "P99"), 1)
    for one in view.latencies:
        values = (one.p50_ms, one.p90_ms, one.p99_ms)
        table.add_row(one.title, f"{one.observations:,}", *(_number(value) for value in values))
    return table


def _programs(view: View, span: str) -> Table:
    table = _table(f"Programs, {span}", ("program", "share of time", "frames", "mean, ms"), 1)
    for one in view.programs:
        table.add_row(escape(one.name), f"{one.share:.1%}", f"{one.frames:,}", _number(one.mean_ms))
    if view.other_programs:
        table.add_row(f"and {view.other_programs} more", "", "", "")
    if not view.programs:
        table.add_row("nothing ran", "", "", "")
    return table


def _table(title: str, columns: Sequence[str], words: int) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < words else "right", no_wrap=True)
    return table


def _lines(view: View) -> Iterator[str]:
    if view.padding:
        kinds = ", ".join(f"{one.kind} {one.share:.0%}" for one in view.padding)
        yield f"padding      {escape(kinds)}"
    if view.speculation is not None:
        one = view.speculation
        accepted = "" if one.acceptance is None else f" ({one.acceptance:.0%} of offered)"
        lane = "" if one.tokens_per_lane is None else f", {one.tokens_per_lane:.2f} tokens a round"
        yield (
            f"speculation  {one.rounds_per_s:,.1f} rounds/s, {one.proposed:,} proposed, "
            f"{one.offered:,} offered, {one.accepted:,} accepted{accepted}{lane}"
        )
        yield from _accepted(one)
    if view.kept is not None:
        yield (
            f"prefixes     {view.kept.states:,} kept, {view.kept.hits:,} hits, "
            f"{view.kept.misses:,} misses, {view.kept.saved_tokens:,} tokens saved"
        )
    if view.reasons:
        yield f"chosen as    {escape(_listed(view.reasons))}"
    ends = _listed(view.finished) or "none"
    refused = f"; rejected: {_listed(view.rejected)}" if view.rejected else ""
    yield f"ended        {escape(ends + refused)}"
    troubles = {
        "preemptions": view.preemptions,
        "stalls": view.stalls,
        "failed frames": view.failed_frames,
    }
    if any(troubles.values()):
        yield f"[yellow]trouble      {_listed({k: v for k, v in troubles.items() if v})}[/yellow]"


def _accepted(one: Speculation) -> Iterator[str]:
    """Yield a line for each source: the share accepted by depth, and how far estimates were off."""
    for source in dict.fromkeys(depth.source for depth in one.depths):
        depths = [depth for depth in one.depths if depth.source == source]
        shares = ", ".join(f"{depth.depth}: {depth.acceptance:.0%}" for depth in depths)
        errors = [abs(depth.error) for depth in depths if depth.error is not None]
        off = f"; estimates off by at most {max(errors):.0%}" if errors else ""
        yield f"accepted     {escape(source)} by depth {shares}{off}"
    if one.padding is not None:
        yield f"rounds       {one.padding:.1f} rows of padding each"
    if one.credit_ms is not None:
        yield f"probes       {one.probes:,} of deeper rounds, {one.credit_ms:,.1f} ms of credit"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def bar(value: float, whole: float) -> Text:
    """Return a bar of fixed width, filled by `value / whole`."""
    share = min(1.0, value / whole) if whole else 0.0
    filled = round(share * _BAR)
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    return Text.assemble(("█" * filled, style), ("░" * (_BAR - filled), "dim"))


def spark(values: Sequence[float]) -> Text:
    """Return the last values as blocks, the highest one full, as wide as a bar."""
    shown = list(values)[-_BAR:]
    top = max(shown, default=0.0)
    blocks = "".join(_BLOCKS[round(8 * value / top)] if top else " " for value in shown)
    return Text(blocks.rjust(_BAR), style="cyan")
