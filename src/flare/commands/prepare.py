"""`flare prepare`: writes a package, so that serving only has to open it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flare.console import results
from flare.drafts import find_draft, planned_with
from flare.models import find_model
from flare.options import DEFAULT_MODEL, ModelArgument, PackageOptions
from flare.packages import default_directory, existing
from flare.packages import prepare as prepare_package
from flare.request import package_request
from flare.spread import spread


@spread
def prepare(
    *,
    model: ModelArgument = DEFAULT_MODEL,
    options: PackageOptions,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory to write (default: in the user's cache)."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Prepare again what is there.")] = False,
) -> None:
    """Compile and measure the programs of a model for this machine; prints the package's directory.

    Examples:
    [bold]flare prepare[/bold]
    [bold]flare prepare model.gguf --precision fp32 --output my-package[/bold]
    [bold]flare prepare model.gguf --draft draft-head.safetensors[/bold]
    [bold]flare prepare model.gguf --draft smaller-model.gguf[/bold]
    """
    request = package_request(options)
    source, found = find_model(model)
    found_draft = find_draft(request, source, found)
    planned = planned_with(request, found, found_draft)
    directory = output or default_directory(found, planned, found_draft)
    # A directory that the person named may hold a package of other options: it is replaced.
    if force or output is not None or existing(directory) is None:
        prepare_package(source, planned, request, directory, found_draft)
    results().print(str(directory), soft_wrap=True, highlight=False)
