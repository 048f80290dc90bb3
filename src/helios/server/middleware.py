"""Around every request: its id, its line in the access log, its metrics, its key, its last resort.

Nothing here touches bodies, so that streams pass through and disconnects stay visible.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from helios.server.answering import StalledReaderError, engine_failed
from helios.server.calls import Call
from helios.server.choices import EngineFailedError
from helios.server.errors import ApiError, ClientGoneError, internal
from helios.server.http_metrics import HttpMetrics

_access = logging.getLogger("helios.access")
_log = logging.getLogger("helios.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
CLIENT_CLOSED_REQUEST = 499


class CallMiddleware:
    """Names the request, answers what nobody else answered, then logs and counts it."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, routes: Iterable[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        call = Call(request_id=request_id, started_ns=time.monotonic_ns())
        scope.setdefault("state", {})["call"] = call

        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._run(scope, receive, named_send, call)
        finally:
            self._finish(scope, call)

    async def _run(self, scope: Scope, receive: Receive, send: Send, call: Call) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            call.status = CLIENT_CLOSED_REQUEST
        except StalledReaderError:
            # The answer is cut off; ending without the last chunk makes the server drop the
            # connection.
            call.status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # The process is ending by force; nobody waits for this task.
            call.outcome = "stopped"
        except EngineFailedError as error:
            await engine_failed(error, call).response()(scope, receive, send)
        except Exception:
            _log.exception("%s: unexpected failure", call.request_id)
            call.outcome = "failed"
            if call.status:
                raise
            await internal(call.request_id).response()(scope, receive, send)

    def _finish(self, scope: Scope, call: Call) -> None:
        duration_ns = time.monotonic_ns() - call.started_ns
        route = _route(scope, self._routes)
        self._metrics.observe(call, route=route, method=scope["method"], duration_ns=duration_ns)
        first_ms = (call.first_token_ns - call.started_ns) / 1e6 if call.first_token_ns else None
        _access.info(
            "%s %s %s status=%d ms=%.1f%s%s",
            call.request_id,
            scope["method"],
            ascii(scope["path"])[1:-1][:200],
            call.status,
            duration_ns / 1e6,
            ""
            if first_ms is None
            else f" prompt={call.prompt_tokens} output={call.output_tokens} ttft_ms={first_ms:.1f}",
            f" outcome={call.outcome}" if call.outcome else "",
        )


def _route(scope: Scope, routes: frozenset[str]) -> str:
    """Return a label of bounded variety."""
    path: str = scope["path"]
    if path in routes:
        return path
    return "/v1/models/{model}" if path.startswith("/v1/models/") else "other"


class KeyMiddleware:
    """Wants the API key everywhere but on /health."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._expected = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection scope."""
        if scope["type"] != "http" or self._expected is None or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = key.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "bearer" and hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        reason = "the API key is wrong" if key else "an API key is required"
        refusal = ApiError(
            401,
            f"{reason}: send it as `Authorization: Bearer <key>`",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal.response()(scope, receive, send)
