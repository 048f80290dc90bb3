"""The composition root: the one place that knows ignition, the runtime and the server."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections.abc import Callable
from pathlib import Path

from flare.engine_side import open_model, open_package_detokenizers, open_package_grammars
from flare.loaded import Loading
from helios.runtime.client import EngineClient
from helios.runtime.settings import EngineSettings, ModelIdentity
from helios.runtime.text import TextModel
from helios.scheduler import PolicyConfig
from helios.server.app import create_app
from helios.server.config import ServerConfig
from helios.server.serve import run
from helios.server.starting import StartingBackend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How to serve a package."""

    server: ServerConfig
    policy: PolicyConfig
    waiting_limit: int
    trace_path: Path | None = None
    drain_timeout_s: float = 30.0


def engine_settings(loading: Loading, options: ServingOptions) -> EngineSettings:
    """Return picklable settings of an engine over a package."""
    directory, manifest = loading.directory, loading.manifest
    return EngineSettings(
        open_model=functools.partial(
            open_model, directory, manifest.machine.threads, loading.limits
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
        speculation=loading.decoding.speculation,
        draft_survivals=() if manifest.draft is None else manifest.draft.survivals,
        waiting_limit=options.waiting_limit,
        trace_path=options.trace_path,
    )


def serve_package(
    loading: Loading,
    listener: socket.socket,
    options: ServingOptions,
    *,
    on_ready: Callable[[float], None],
) -> None:
    """Serve a package on a bound socket until a signal asks to stop.

    The engine runs in its own process; `on_ready` is told the seconds that its start took. Raises
    EngineStartError with that process's reason, and TextError.
    """
    settings = engine_settings(loading, options)
    backend = StartingBackend(functools.partial(EngineClient.start, settings))
    app = create_app(
        backend, TextModel.open(loading.directory, loading.manifest.tokenizer), options.server
    )

    async def start() -> None:
        begin = time.monotonic()
        await backend.start()
        on_ready(time.monotonic() - begin)

    run(app, listener, drain_timeout_s=options.drain_timeout_s, on_start=start)
