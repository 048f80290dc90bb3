"""`flare plan`: says what a package would hold and cost, before anything is prepared."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flare.console import results
from flare.drafts import find_draft, planned_with
from flare.models import find_model
from flare.options import DEFAULT_MODEL, ModelArgument, PackageOptions
from flare.plan_tables import plan_tables
from flare.request import package_request
from flare.spread import spread
from ignition.capacity import CapacityPlan
from ignition.sources import ModelSummary


@spread
def plan(
    *,
    model: ModelArgument = DEFAULT_MODEL,
    options: PackageOptions,
    buffers: Annotated[bool, typer.Option(help="List every static buffer too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show the catalog, buffers and memory of a package, and what each program is for.

    Examples:
    [bold]flare plan[/bold]
    [bold]flare plan model.gguf --memory 1GiB --concurrency 32 --json[/bold]
    """
    request = package_request(options)
    source, found = find_model(model)
    found_draft = find_draft(request, source, found)
    planned = planned_with(request, found, found_draft)
    if as_json:
        print(json.dumps(_document(found, planned), indent=1))
    else:
        results().print(plan_tables(found.name, planned, with_buffers=buffers))


def _document(model: ModelSummary, planned: CapacityPlan) -> dict[str, object]:
    identity = {"name": model.name, "sha256": model.sha256}
    return {"model": identity, **planned.to_document()}
