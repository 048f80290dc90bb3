"""`flare plan`: says what a package would hold and cost, before anything is prepared."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flare.console import results
from flare.drafts import find_draft, planned_with
from flare.models import find_model
from flare.options import (
    DEFAULT_MODEL,
    Backend,
    BackendOption,
    BucketsOption,
    CapacitiesOption,
    ConcurrencyOption,
    ContextOption,
    DraftOption,
    DraftTokensOption,
    MemoryOption,
    MixedPrefillOption,
    ModelArgument,
    PrecisionOption,
    RowSharing,
    RowSharingOption,
    SpeculationOption,
    SurvivalOption,
    ThreadsOption,
    TokenCapacityOption,
)
from flare.plan_tables import plan_tables
from flare.request import package_request
from ignition.capacity import CapacityPlan
from ignition.sources import ModelSummary


def plan(
    *,
    model: ModelArgument = DEFAULT_MODEL,
    precision: PrecisionOption = None,
    backend: BackendOption = Backend.AUTO,
    memory: MemoryOption = None,
    concurrency: ConcurrencyOption = 16,
    threads: ThreadsOption = None,
    context: ContextOption = None,
    request_buckets: BucketsOption = None,
    prefill_capacities: CapacitiesOption = None,
    mixed_prefill: MixedPrefillOption = False,
    speculation: SpeculationOption = None,
    draft: DraftOption = None,
    draft_tokens: DraftTokensOption = None,
    speculative_token_capacity: TokenCapacityOption = None,
    row_sharing: RowSharingOption = RowSharing.OFF,
    survival: SurvivalOption = False,
    buffers: Annotated[bool, typer.Option(help="List every static buffer too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show the catalog, buffers and memory of a package, and what each program is for.

    Examples:
    [bold]flare plan[/bold]
    [bold]flare plan model.gguf --memory 1GiB --concurrency 32 --json[/bold]
    """
    request = package_request(
        backend=backend,
        precision=precision,
        memory=memory,
        concurrency=concurrency,
        threads=threads,
        context=context,
        request_buckets=request_buckets,
        prefill_capacities=prefill_capacities,
        speculation=speculation,
        draft_tokens=draft_tokens,
        speculative_token_capacity=speculative_token_capacity,
        mixed_prefill=mixed_prefill,
        row_sharing=row_sharing,
        survival=survival,
        draft=draft,
    )
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
