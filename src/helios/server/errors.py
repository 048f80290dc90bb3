"""What goes wrong, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

ApiError              carries its HTTP status; every refusal of a request is one
ClientGoneError       nobody is left to answer; the request is cancelled and nothing is sent
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

MAX_MESSAGE_LENGTH = 1000


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of every answer that is not a success."""

    error: ErrorDetail


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


class ApiError(Exception):
    """A refusal with its status; the message is for the person who wrote the request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(
            message=printable(message), type=kind, param=param and printable(param), code=code
        )
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the JSON body."""
        return msgspec.json.encode(ErrorBody(error=self.detail))

    def response(self) -> Response:
        """Return the HTTP answer."""
        return Response(
            self.body(), self.status, headers=self.headers, media_type="application/json"
        )


def invalid(message: str, param: str | None = None, *, code: str = "invalid_value") -> ApiError:
    """Return the refusal of a request that can never succeed as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, code: str, retry_after_s: int) -> ApiError:
    """Return the refusal of a request that may succeed later."""
    return ApiError(
        503,
        message,
        kind="service_unavailable",
        code=code,
        headers={"Retry-After": str(retry_after_s)},
    )


def internal(request_id: str) -> ApiError:
    """Return the answer to a fault of ours; what happened is in the log under the id."""
    return ApiError(
        500,
        f"the server failed while answering; its log says more under request id {request_id}",
        kind="server_error",
        code="internal_error",
    )


def shown(value: object, limit: int = 60) -> str:
    """Return a value as JSON, as it may appear inside a message."""
    if isinstance(value, list) and value:
        return "an array"
    if isinstance(value, dict) and value:
        return "an object"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(text: str) -> str:
    """Return a text that any client can decode and that no client has to buffer at length."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MAX_MESSAGE_LENGTH else text[: MAX_MESSAGE_LENGTH - 3] + "..."
