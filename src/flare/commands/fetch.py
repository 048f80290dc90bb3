"""`flare fetch`: downloads a model that is known by name, and says where it is."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from flare.console import results
from flare.errors import FlareError
from flare.models import ByteBars, announce_fetch
from flare.options import DEFAULT_MODEL
from ignition.fetch import KNOWN_MODELS, cache_directory, cached_path
from ignition.fetch import fetch as fetch_model


def fetch(
    *,
    model: Annotated[str, typer.Argument(help="A known name.")] = DEFAULT_MODEL,
    names: Annotated[bool, typer.Option("--list", help="List the known models instead.")] = False,
) -> None:
    """Download a model into the user's cache; nothing happens when it is there already.

    Examples:
    [bold]flare fetch smollm2-135m[/bold]
    [bold]flare fetch --list[/bold]
    """
    if names:
        results().print(_known_table())
        return
    known = KNOWN_MODELS.get(model)
    if known is None:
        raise FlareError(f"unknown model {model!r}; known names: {', '.join(KNOWN_MODELS)}")
    announce_fetch(known)
    with ByteBars() as bars:
        path = fetch_model(known, progress=bars)
    results().print(str(path), soft_wrap=True, highlight=False)


def _known_table() -> Table:
    table = Table()
    for title in ("name", "download", "license", "here"):
        table.add_column(title)
    for model in KNOWN_MODELS.values():
        is_here = cached_path(model, cache_directory()).is_file()
        size = f"{model.wheel_bytes / 1e6:.0f} MB"
        table.add_row(model.name, size, model.license, "yes" if is_here else "no")
    return table
