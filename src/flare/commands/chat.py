"""`flare chat`: the options of a conversation in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from flare.chat import chat as converse


def chat(
    *,
    url: Annotated[str, typer.Option(help="The server's URL.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Model to talk to (default: the first one served).")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="FLARE_API_KEY", help="Key that the server wants.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the model.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Limit of each answer.")] = None,
) -> None:
    """Talk to a running server from this terminal.

    Examples:
    [bold]flare chat[/bold]
    [bold]flare chat --url http://127.0.0.1:9000 --system 'Answer briefly.'[/bold]
    """
    converse(
        url,
        model=model,
        api_key=api_key,
        system=system,
        temperature=temperature,
        max_tokens=max_tokens,
    )
