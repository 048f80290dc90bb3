"""The served OpenAPI document, made from the schemas that requests and answers really go through.

It is specific to the running server where that is what makes it true: the model names are those
that are served, and fields without effect list the values at which they are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel

from helios import __version__
from helios.server.errors import ErrorBody
from helios.server.fields import (
    CHAT_NEUTRAL,
    COMPLETION_NEUTRAL,
    MESSAGE_NEUTRAL,
    STREAM_NEUTRAL,
    Neutral,
)
from helios.server.schema import ChatRequest, CompletionRequest
from helios.server.wire import ChatCompletion, Completion, Health, ModelCard, ModelList

_REF = "#/components/schemas/{name}"
_EXTRA: Mapping[str, Mapping[str, Neutral]] = {
    "ChatRequest": CHAT_NEUTRAL,
    "CompletionRequest": COMPLETION_NEUTRAL,
    "Message": MESSAGE_NEUTRAL,
    "StreamOptions": STREAM_NEUTRAL,
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_REFUSALS = {
    "400": "The request can never succeed as it is; the message names the field.",
    "401": "The API key is missing or wrong.",
    "404": "No such model or path.",
    "405": "The path has no such method.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not announced as application/json.",
    "500": "A fault of the server.",
    "503": "Not ready, draining, too busy, or the engine failed; try again later.",
}


def document(
    model_names: Sequence[str], *, max_prompt_tokens: int | None, with_key: bool
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document; `model_names` empty means that they are not known yet."""
    schemas = {**_request_schemas(model_names, max_prompt_tokens), **_answer_schemas()}
    components: dict[str, Any] = {"schemas": schemas}
    result: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Helios", "version": __version__, "description": __doc__},
        "paths": _paths(model_names),
        "components": components,
    }
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        result["security"] = [{"key": []}]
        result["paths"]["/health"]["get"]["security"] = []
    return result


def _request_schemas(model_names: Sequence[str], max_prompt_tokens: int | None) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    models: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest)
    for model in models:
        schema = model.model_json_schema(ref_template=_REF.replace("{name}", "{model}"))
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    for name, neutral in _EXTRA.items():
        for field, entry in neutral.items():
            schemas[name]["properties"][field] = {
                "enum": list(entry.accepted),
                "description": f"Accepted at these values only: {entry.reason}.",
            }
    for name in ("ChatRequest", "CompletionRequest"):
        schema = schemas[name]
        if model_names:
            schema["properties"]["model"]["enum"] = list(model_names)
        # Options of a stream want a stream.
        schema["if"] = {
            "properties": {"stream_options": {"type": "object"}},
            "required": ["stream_options"],
        }
        schema["then"] = {"properties": {"stream": {"const": True}}, "required": ["stream"]}
    _limit_prompt(schemas, max_prompt_tokens)
    return schemas


def _limit_prompt(schemas: dict[str, Any], max_prompt_tokens: int | None) -> None:
    if max_prompt_tokens is None:
        return
    for form in schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]:
        items = form.get("items", {})
        if items.get("type") == "integer":
            form["maxItems"] = max_prompt_tokens
        elif items.get("type") == "array":
            form["items"] = {**items, "maxItems": max_prompt_tokens}


def _answer_schemas() -> dict[str, Any]:
    answers = (ChatCompletion, Completion, ModelCard, ModelList, Health, ErrorBody)
    _, components = msgspec.json.schema_components(answers, ref_template=_REF)
    return dict(components)


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


def _responses(
    ok: Mapping[str, Any],
    description: str,
    *refusals: str,
    ok_headers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": description, "content": ok}}
    if ok_headers:
        responses["200"]["headers"] = ok_headers
    for status in refusals:
        entry: dict[str, Any] = {"description": _REFUSALS[status], "content": _json("ErrorBody")}
        if status == "503":
            entry["headers"] = _RETRY_AFTER
        responses[status] = entry
    return responses


def _inference(summary: str, request: str, answer: str) -> dict[str, Any]:
    ok = {
        **_json(answer),
        "text/event-stream": {
            "schema": {"type": "string", "description": "Chunks as events, then [DONE]."}
        },
    }
    statuses = ("400", "401", "404", "405", "408", "413", "415", "500", "503")
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": _json(request)},
            "responses": _responses(ok, "The answer.", *statuses),
        }
    }


def _paths(model_names: Sequence[str]) -> dict[str, Any]:
    model_schema: dict[str, Any] = {"type": "string"}
    if model_names:
        model_schema["examples"] = list(model_names)
    plain = {"text/plain": {"schema": {"type": "string"}}}
    health = _responses(_json("Health"), "Ready.", "500")
    health["503"] = {
        "description": "Not ready.",
        "content": _json("Health"),
        "headers": _RETRY_AFTER,
    }
    return {
        "/v1/chat/completions": _inference("Answer a chat", "ChatRequest", "ChatCompletion"),
        "/v1/completions": _inference("Continue a text", "CompletionRequest", "Completion"),
        "/v1/models": {
            "get": {
                "summary": "List the served models",
                "responses": _responses(_json("ModelList"), "The models.", "401", "500", "503"),
            }
        },
        "/v1/models/{model}": {
            "get": {
                "summary": "Describe one model",
                "parameters": [
                    {"name": "model", "in": "path", "required": True, "schema": model_schema}
                ],
                "responses": _responses(
                    _json("ModelCard"), "The model.", "401", "404", "500", "503"
                ),
            }
        },
        "/health": {"get": {"summary": "Tell whether the server is ready", "responses": health}},
        "/metrics": {
            "get": {
                "summary": "Metrics for Prometheus",
                "responses": _responses(plain, "The metrics.", "401", "500"),
            }
        },
        "/openapi.json": {
            "get": {
                "summary": "This document",
                "responses": _responses(
                    {"application/json": {"schema": {"type": "object"}}}, "It.", "401", "500"
                ),
            }
        },
    }
