"""`flare top`: watches a running server in the terminal."""

from __future__ import annotations

import itertools
from typing import Annotated, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from flare.console import results
from flare.top.screen import screen
from flare.top.watching import Frame, Server, frames

_PIPED_WIDTH: Final = 120


def top(
    *,
    url: Annotated[str, typer.Argument(help="The server's URL.")] = "http://127.0.0.1:8000",
    interval: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds between two readings.")
    ] = 1.0,
    window: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds that percentiles and shares look back.")
    ] = 30.0,
    once: Annotated[
        bool,
        typer.Option(help="Print one frame, of two readings an interval apart, and leave."),
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="FLARE_API_KEY", help="Key that the server wants.")
    ] = None,
) -> None:
    """Watch a running flare server: streams, tokens per second, latencies, pages, programs.

    Ctrl-C leaves. A server that is away is waited for.

    Examples:
    [bold]flare top[/bold]
    [bold]flare top http://127.0.0.1:8000 --once[/bold]
    """
    server = Server(url, api_key)
    out = results()
    if not out.is_terminal:
        # A pipe has no width; figures must not be cut to one that nobody chose.
        out = Console(width=_PIPED_WIDTH)
    if once:
        server.read()
        pair = frames(server.read, interval_s=interval, window_s=window)
        *_, frame = itertools.islice(pair, 2)
        out.print(_drawn(frame, server.url), highlight=False)
        return
    with Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
        for frame in frames(server.read, interval_s=interval, window_s=window):
            live.update(_drawn(frame, server.url), refresh=True)


def _drawn(frame: Frame, url: str) -> RenderableType:
    if frame.view is None:
        return Text.assemble(("flare top  ", "bold"), (f"{frame.trouble}; waiting for it", "red"))
    return screen(frame.view, url=url, trouble=frame.trouble)
