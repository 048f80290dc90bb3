"""`flare inspect`: says what a prepared package holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from flare.console import results
from flare.plan_tables import manifest_tables
from ignition.package_manifest import check_files, read_manifest


def inspect(
    *,
    package: Annotated[Path, typer.Argument(help="Directory that `flare prepare` wrote.")],
    verify: Annotated[bool, typer.Option(help="Hash every file and compare.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Show the model, machine, capacities and programs of a prepared package.

    Examples:
    [bold]flare inspect my-package[/bold]
    [bold]flare inspect my-package --verify[/bold]
    """
    manifest = read_manifest(package)
    check_files(package, manifest, verify=verify)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode())
    else:
        results().print(manifest_tables(manifest))
