"""The composition root: the one place that knows ignition, the runtime and the server."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flare.engine_side import open_model, open_package_detokenizers, open_package_grammars
from helios.engine.manifest import Manifest
from helios.runtime.client import EngineClient
from helios.runtime.settings import EngineSettings, ModelIdentity
from helios.runtime.text import TextModel
from helios.scheduler import PolicyConfig, SpeculationConfig
from helios.server.app import create_app
from helios.server.config import ServerConfig
from helios.server.serve import run
from helios.server.starting import StartingBackend


class Decoding(NamedTuple):
    """How decoders generate."""

    speculation: SpeculationConfig
    sources: tuple[str, ...]
    """Where proposals come from, as catalogs and manifests name them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How to serve a package."""

    server: ServerConfig
    policy: PolicyConfig
    waiting_limit: int
    threads: int | None = None
    """None: as many as the package was prepared for."""
    trace_path: Path | None = None
    decoding: Decoding = dataclasses.field(
        default_factory=lambda: Decoding(SpeculationConfig(), ())
    )
    """The package must have programs of it."""
    mixed_prefill: bool = False
    """Run the mixed programs that the package has; without, they are left out."""
    row_sharing: str = "off"
    """off, host or device: which of the ragged rounds that the package has to run."""
    drain_timeout_s: float = 30.0


def engine_settings(directory: Path, manifest: Manifest, options: ServingOptions) -> EngineSettings:
    """Return picklable settings of an engine over a package."""
    return EngineSettings(
        open_model=functools.partial(
            open_model,
            directory,
            options.threads,
            options.decoding.speculation,
            sources=options.decoding.sources,
            mixed_prefill=options.mixed_prefill,
            row_sharing=options.row_sharing,
        ),
        open_detokenizers=functools.partial(open_package_detokenizers, directory),
        open_grammars=functools.partial(open_package_grammars, directory),
        model=ModelIdentity(
            name=manifest.model.name,
            vocabulary_size=manifest.tokenizer.vocabulary_size,
            eos_token_ids=manifest.tokenizer.eos_token_ids,
            backend=manifest.backend,
            precision=manifest.precision,
        ),
        policy=options.policy,
        speculation=options.decoding.speculation,
        draft_survivals=() if manifest.draft is None else manifest.draft.survivals,
        waiting_limit=options.waiting_limit,
        trace_path=options.trace_path,
    )


def serve_package(
    directory: Path,
    manifest: Manifest,
    listener: socket.socket,
    options: ServingOptions,
    *,
    on_ready: Callable[[float], None],
) -> None:
    """Serve a package on a bound socket until a signal asks to stop.

    The engine runs in its own process; `on_ready` is told the seconds that its start took. Raises
    EngineStartError with that process's reason, and TextError.
    """
    settings = engine_settings(directory, manifest, options)
    backend = StartingBackend(functools.partial(EngineClient.start, settings))
    app = create_app(backend, TextModel.open(directory, manifest.tokenizer), options.server)

    async def start() -> None:
        begin = time.monotonic()
        await backend.start()
        on_ready(time.monotonic() - begin)

    run(app, listener, drain_timeout_s=options.drain_timeout_s, on_start=start)
