"""The endpoints that tell about the server: health, models, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from helios import __version__
from helios.engine.backend import EngineUnavailableError
from helios.engine.messages import Ready, Stats
from helios.runtime.metrics import METRICS_CONTENT_TYPE, render_metrics
from helios.server.service import Service
from helios.server.wire import Health, ModelCard, ModelList

_log = logging.getLogger("helios.server")
_STATS_TIMEOUT_S = 2.0

Handler = Callable[[Request], Awaitable[Response]]


def _json(
    value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(value), status, headers=headers, media_type="application/json"
    )


def health(service: Service) -> Handler:
    """Return the handler of GET /health: 200 when ready, else 503 with the state."""

    async def handle(_: Request) -> Response:
        state = service.admission.state
        ready = service.backend.ready
        body = msgspec.convert(
            {
                "status": state,
                "model": service.model_names(ready)[0] if ready else None,
                "requests": service.admission.requests,
                "version": __version__,
            },
            Health,
        )
        if state == "ready":
            return _json(body)
        return _json(body, 503, {"Retry-After": str(service.config.retry_after_s)})

    return handle


def list_models(service: Service) -> Handler:
    """Return the handler of GET /v1/models."""

    async def handle(_: Request) -> Response:
        engine = service.admission.engine()
        names = service.model_names(engine)
        return _json(ModelList(data=[_card(service, engine, name) for name in names]))

    return handle


def get_model(service: Service) -> Handler:
    """Return the handler of GET /v1/models/{model}."""

    async def handle(request: Request) -> Response:
        engine = service.admission.engine()
        name = request.path_params["model"]
        service.check_model(name, engine)
        return _json(_card(service, engine, name))

    return handle


def _card(service: Service, engine: Ready, name: str) -> ModelCard:
    return ModelCard(id=name, created=service.created, context_length=engine.context_length_tokens)


def metrics(service: Service) -> Handler:
    """Return the handler of GET /metrics.

    It answers while the engine is down too: flare_engine_up is what alerts watch.
    """

    async def handle(_: Request) -> Response:
        up = service.backend.ready is not None
        stats = Stats(gauges={}, counters={}, labelled_counters={}, histograms={})
        try:
            async with asyncio.timeout(_STATS_TIMEOUT_S):
                stats = await service.backend.stats()
        except (EngineUnavailableError, TimeoutError) as error:
            _log.warning("no engine statistics: %s", error or type(error).__name__)
        restarts = getattr(service.backend, "restarts", 0)
        body = service.metrics.render(service.admission.requests).decode()
        body += render_metrics(stats, engine_restarts=restarts, engine_up=up)
        return Response(body, media_type=METRICS_CONTENT_TYPE)

    return handle
