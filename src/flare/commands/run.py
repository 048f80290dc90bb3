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
from flare.errors import FlareError
from flare.loaded import Loading
from flare.loading import loading_of
from flare.options import (
    DEFAULT_MODEL,
    PRECISION_QUALITY,
    ModelArgument,
    PackageOptions,
    SpeculationMode,
    SpeculationModeOption,
    size_bytes,
)
from flare.plan_tables import capacity_line, catalog_line
from flare.policy_options import PolicyOptions
from flare.spread import spread
from helios.engine.manifest import Manifest
from helios.scheduler import PolicyConfig
from helios.server.config import ServerConfig
from helios.server.serve import bind

_SERVICE = "Service"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where and how the API is served."""

    host: Annotated[str, typer.Option(rich_help_panel=_SERVICE, help="Address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel=_SERVICE, help="0 takes a free one.")
    ] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="FLARE_API_KEY", rich_help_panel=_SERVICE, help="Key that clients must send."
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_SERVICE, help="Name(s) to serve under."),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_SERVICE, help="Origin(s) that browsers may call from."),
    ] = None
    queue_limit: Annotated[
        int,
        typer.Option(min=1, rich_help_panel=_SERVICE, help="Requests that may wait; then 503."),
    ] = 1024
    max_body: Annotated[
        str, typer.Option(rich_help_panel=_SERVICE, help="Largest request body.")
    ] = "4MiB"
    drain_timeout_s: Annotated[
        float,
        typer.Option(min=0, rich_help_panel=_SERVICE, help="Time to finish after SIGTERM."),
    ] = 30.0
    trace: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_SERVICE, help="Write every decision here (`flare trace`)."),
    ] = None
    log_requests: Annotated[
        bool, typer.Option(rich_help_panel=_SERVICE, help="Log a line per request.")
    ] = False

    def serving(self, policy: PolicyConfig) -> ServingOptions:
        """Return what serving needs to know. Raises FlareError, and OSError for the trace."""
        return ServingOptions(
            server=self._server_config(),
            policy=policy,
            waiting_limit=self.queue_limit,
            trace_path=None if self.trace is None else _writable(self.trace),
            drain_timeout_s=self.drain_timeout_s,
        )

    def _server_config(self) -> ServerConfig:
        try:
            return ServerConfig(
                api_key=self.api_key,
                model_names=tuple(self.served_model_name or ()),
                allow_origins=tuple(self.allow_origin or ()),
                max_body_bytes=size_bytes(self.max_body),
            )
        except ValueError as error:
            raise FlareError(f"--{str(error).replace('_', '-', 1)}") from error


@spread
def run(
    *,
    model: ModelArgument = DEFAULT_MODEL,
    service: ServiceOptions,
    options: PackageOptions,
    speculation_mode: SpeculationModeOption = SpeculationMode.ADAPTIVE,
    policy: PolicyOptions,
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
    serving = service.serving(policy.config())
    _log_to_terminal(service.log_requests)
    # A port that is taken must be told now, not after minutes of preparing.
    with bind(service.host, service.port) as listener:
        _serve(listener, service.host, loading_of(model, options, speculation_mode), serving)


def _serve(listener: socket.socket, host: str, loading: Loading, options: ServingOptions) -> None:
    """Serve a package on a bound socket, and say where."""
    manifest = loading.manifest
    url = f"http://{host}:{listener.getsockname()[1]}"
    _announce(manifest, url, options.trace_path)
    server = options.server
    name = server.model_names[0] if server.model_names else manifest.model.name
    serve_package(
        loading,
        listener,
        options,
        on_ready=lambda took_s: _announce_ready(name, url, server.api_key, took_s),
    )


def _writable(trace: Path) -> Path:
    """Find out now whether the trace can be written. Raises OSError."""
    with trace.open("wb"):
        return trace.absolute()


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
