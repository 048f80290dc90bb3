"""The application: routes, the layers around them, and what they share."""

from __future__ import annotations

import time

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from helios.engine.backend import EngineBackend
from helios.server.answering import InferenceEndpoint
from helios.server.calls import Admission
from helios.server.config import ServerConfig
from helios.server.encoding import PromptEncoder
from helios.server.errors import ApiError
from helios.server.http_metrics import HttpMetrics
from helios.server.logprobs import TokenNames
from helios.server.middleware import CallMiddleware, KeyMiddleware
from helios.server.openapi import ModelLimits, document
from helios.server.ports import TextModel
from helios.server.requests import chat_job, completion_job
from helios.server.service import Service
from helios.server.status import Handler, get_model, health, list_models, metrics


def create_app(backend: EngineBackend, text: TextModel, config: ServerConfig) -> Starlette:
    """Return the application; `app.state.service` is its Service.

    The engine may still be starting: until it is ready, inference is refused with 503. Starting,
    draining and closing the backend is the caller's business (see `helios.server.serve`).
    """
    service = Service(
        backend=backend,
        text=text,
        config=config,
        admission=Admission(config, backend),
        encoder=PromptEncoder(text, inline_text_length=config.inline_text_length),
        names=TokenNames(text),
        metrics=HttpMetrics(),
        created=int(time.time()),
    )
    routes = [
        Route("/v1/chat/completions", InferenceEndpoint(service, chat_job), methods=["POST"]),
        Route("/v1/completions", InferenceEndpoint(service, completion_job), methods=["POST"]),
        Route("/v1/models", list_models(service), methods=["GET"]),
        Route("/v1/models/{model:path}", get_model(service), methods=["GET"]),
        Route("/health", health(service), methods=["GET"]),
        Route("/metrics", metrics(service), methods=["GET"]),
        Route("/openapi.json", _openapi(service), methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=_middleware(service, [route.path for route in routes]),
        exception_handlers={ApiError: _refuse, HTTPException: _refuse_http},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _middleware(service: Service, paths: list[str]) -> list[Middleware]:
    layers = [Middleware(CallMiddleware, metrics=service.metrics, routes=paths)]
    if service.config.allow_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(service.config.allow_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )
        )
    return [*layers, Middleware(KeyMiddleware, api_key=service.config.api_key)]


def _openapi(service: Service) -> Handler:
    async def handle(_: Request) -> Response:
        engine = service.backend.ready
        limits = None
        if engine is not None:
            limits = ModelLimits(
                model_names=service.model_names(engine),
                context_length_tokens=engine.context_length_tokens,
                vocabulary_size=engine.vocabulary_size,
                eos_token_count=len(service.text.eos_token_ids),
            )
        body = document(limits, with_key=service.config.api_key is not None)
        return Response(msgspec.json.encode(body), media_type="application/json")

    return handle


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _refuse_http(request: Request, error: Exception) -> Response:
    """Give the router's own refusals (404, 405) the shape of all others."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = {
        404: f"there is nothing at {path}",
        405: f"{request.method} is not a method of {path}",
    }.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    return ApiError(error.status_code, message, headers=headers).response()
