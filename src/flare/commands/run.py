"""`flare run`: fetches and prepares what is missing, then serves until it is told to stop."""

from __future__ import annotations

import dataclasses
import logging
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler
from rich.markup import escape

from flare.compose import ServingOptions, serve_package
from flare.console import notices
from flare.decode_mode import served_mode
from flare.drafts import find_draft, planned_with
from flare.errors import FlareError
from flare.models import find_model
from flare.options import (
    DEFAULT_MODEL,
    PRECISION_QUALITY,
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
    Preset,
    RowSharing,
    RowSharingOption,
    SpeculationMode,
    SpeculationModeOption,
    SpeculationOption,
    SurvivalOption,
    ThreadsOption,
    TokenCapacityOption,
    size_bytes,
)
from flare.packages import default_directory, existing, is_package, prepare
from flare.plan_tables import capacity_line, catalog_line
from flare.policy_options import (
    AdaptationMs,
    AdaptiveVerificationAlpha,
    AloneServiceShare,
    ArrivalShares,
    CheckpointExtraWorkFraction,
    DecodeAgePrice,
    DeliveryFairness,
    EstimateTtlMs,
    GapObjectiveMs,
    OutputTokenValue,
    PopulationWeight,
    PrefillBalance,
    PresetOption,
    TerminalAgePrice,
    TerminalValue,
    TokenFairness,
    policy_of,
)
from flare.request import PackageRequest, package_request
from helios.engine.manifest import Manifest
from helios.server.config import ServerConfig
from helios.server.serve import bind
from ignition.package_manifest import read_manifest

_SERVICE = "Service"


def run(
    *,
    model: ModelArgument = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(rich_help_panel=_SERVICE, help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel=_SERVICE, help="0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="FLARE_API_KEY", rich_help_panel=_SERVICE, help="Key that clients must send."
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_SERVICE, help="Name(s) to serve under."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_SERVICE, help="Origin(s) that browsers may call from."),
    ] = None,
    queue_limit: Annotated[
        int,
        typer.Option(min=1, rich_help_panel=_SERVICE, help="Requests that may wait; then 503."),
    ] = 1024,
    max_body: Annotated[
        str, typer.Option(rich_help_panel=_SERVICE, help="Largest request body.")
    ] = "4MiB",
    drain_timeout_s: Annotated[
        float,
        typer.Option(min=0, rich_help_panel=_SERVICE, help="Time to finish after SIGTERM."),
    ] = 30.0,
    trace: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_SERVICE, help="Write every decision here (`flare trace`)."),
    ] = None,
    log_requests: Annotated[
        bool, typer.Option(rich_help_panel=_SERVICE, help="Log a line per request.")
    ] = False,
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
    speculation_mode: SpeculationModeOption = SpeculationMode.ADAPTIVE,
    draft: DraftOption = None,
    draft_tokens: DraftTokensOption = None,
    speculative_token_capacity: TokenCapacityOption = None,
    row_sharing: RowSharingOption = RowSharing.OFF,
    survival: SurvivalOption = False,
    scheduler_policy: PresetOption = Preset.BALANCED,
    output_token_value: OutputTokenValue = None,
    token_fairness: TokenFairness = None,
    delivery_fairness: DeliveryFairness = None,
    decode_age_price: DecodeAgePrice = None,
    gap_objective_ms: GapObjectiveMs = None,
    terminal_value: TerminalValue = None,
    terminal_age_price: TerminalAgePrice = None,
    adaptation_ms: AdaptationMs = None,
    estimate_ttl_ms: EstimateTtlMs = None,
    arrival_shares: ArrivalShares = None,
    prefill_balance: PrefillBalance = None,
    adaptive_verification_alpha: AdaptiveVerificationAlpha = None,
    checkpoint_extra_work_fraction: CheckpointExtraWorkFraction = None,
    alone_service_share: AloneServiceShare = None,
    population_weight: PopulationWeight = None,
) -> None:
    """Serve a model over the OpenAI API; fetches and prepares what is missing.

    Examples:
    [bold]flare run[/bold]
    [bold]flare run model.gguf --port 9000 --concurrency 32 --memory 4GiB[/bold]
    [bold]flare run --trace run.jsonl --scheduler-policy throughput[/bold]
    [bold]flare run --speculation off[/bold]
    [bold]flare run model.gguf --draft draft-head.safetensors[/bold]
    [bold]flare run model.gguf --draft smaller-model.gguf[/bold]
    """
    policy = policy_of(
        scheduler_policy,
        estimate_ttl_ms=estimate_ttl_ms,
        output_token_value=output_token_value,
        token_fairness=token_fairness,
        delivery_fairness=delivery_fairness,
        decode_age_price=decode_age_price,
        gap_objective_ms=gap_objective_ms,
        terminal_value=terminal_value,
        terminal_age_price=terminal_age_price,
        adaptation_ms=adaptation_ms,
        arrival_shares=arrival_shares,
        prefill_balance=prefill_balance,
        adaptive_verification_alpha=adaptive_verification_alpha,
        checkpoint_extra_work_fraction=checkpoint_extra_work_fraction,
        alone_service_share=alone_service_share,
        population_weight=population_weight,
    )
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
    options = ServingOptions(
        server=_server_config(api_key, served_model_name, allow_origin, max_body),
        policy=policy,
        waiting_limit=queue_limit,
        threads=threads,
        trace_path=None if trace is None else _writable(trace),
        mixed_prefill=mixed_prefill,
        drain_timeout_s=drain_timeout_s,
    )
    _log_to_terminal(log_requests)
    # A port that is taken must be told now, not after minutes of preparing.
    with bind(host, port) as listener:
        directory, manifest = _package(model, request)
        decoding = served_mode(manifest, request, speculation_mode)
        options = dataclasses.replace(options, decoding=decoding, row_sharing=request.row_sharing)
        _serve(listener, host, directory, manifest, options)


def _serve(
    listener: socket.socket,
    host: str,
    directory: Path,
    manifest: Manifest,
    options: ServingOptions,
) -> None:
    """Serve a package on a bound socket, and say where."""
    url = f"http://{host}:{listener.getsockname()[1]}"
    _announce(manifest, url, options.trace_path)
    server = options.server
    name = server.model_names[0] if server.model_names else manifest.model.name
    serve_package(
        directory,
        manifest,
        listener,
        options,
        on_ready=lambda took_s: _announce_ready(name, url, server.api_key, took_s),
    )


def _server_config(
    api_key: str | None, names: list[str] | None, origins: list[str] | None, max_body: str
) -> ServerConfig:
    try:
        return ServerConfig(
            api_key=api_key,
            model_names=tuple(names or ()),
            allow_origins=tuple(origins or ()),
            max_body_bytes=size_bytes(max_body),
        )
    except ValueError as error:
        raise FlareError(f"--{str(error).replace('_', '-', 1)}") from error


def _writable(trace: Path) -> Path:
    """Find out now whether the trace can be written. Raises OSError."""
    with trace.open("wb"):
        return trace.absolute()


def _package(text: str, request: PackageRequest) -> tuple[Path, Manifest]:
    """Return the package to serve, preparing it when it is missing."""
    if is_package(Path(text)):
        return Path(text), read_manifest(Path(text))
    source, summary = find_model(text)
    found_draft = find_draft(request, source, summary)
    plan = planned_with(request, summary, found_draft)
    directory = default_directory(summary, plan, found_draft)
    return directory, existing(directory) or prepare(source, plan, request, directory, found_draft)


def _announce(manifest: Manifest, url: str, trace: Path | None) -> None:
    name, threads = escape(manifest.model.name), manifest.machine.threads
    served = f"{manifest.precision} on {manifest.backend} programs, {threads} threads"
    lines = [
        f"[bold]{name}[/bold] in {served}",
        f"quality, on the default model: {PRECISION_QUALITY[manifest.precision]}",
        capacity_line(manifest),
        f"programs: {catalog_line(tuple(graph.name for graph in manifest.graphs))}",
        *([f"trace: {escape(str(trace))}"] if trace else []),
        f"opening on {url} ...",
    ]
    console = notices()
    for line in lines:
        console.print(line, soft_wrap=True)


def _announce_ready(model: str, url: str, api_key: str | None, took_s: float) -> None:
    key = " -H 'Authorization: Bearer ...'" if api_key else ""
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"Hello"}}],"max_tokens":64}}'
    call = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
    console = notices()
    console.print(
        f"ready in {took_s:.1f} s: [bold]{url}[/bold] (Ctrl-C stops); try", soft_wrap=True
    )
    console.print(f"  {escape(call)}", soft_wrap=True)


def _log_to_terminal(log_requests: bool) -> None:
    handler = RichHandler(console=notices(), show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    if log_requests:
        # One line per request, whatever the width of the terminal: programs read these.
        access = logging.getLogger("helios.access")
        access.setLevel(logging.INFO)
        access.addHandler(logging.StreamHandler())
        access.propagate = False
