"""The served OpenAPI document, made from the schemas that requests and answers really go through.

It is specific to the running server where that is what makes it true: the model names are those
that are served, and fields without effect list the values at which they are accepted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel

from helios import __version__
from helios.engine.ports import MAX_STOP_TOKENS
from helios.server.errors import ErrorBody
from helios.server.fields import (
    CHAT_NEUTRAL,
    COMPLETION_NEUTRAL,
    MESSAGE_NEUTRAL,
    STREAM_NEUTRAL,
    Neutral,
)
from helios.server.schema import ChatRequest, CompletionRequest
from helios.server.wire import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Health,
    ModelCard,
    ModelList,
)

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the served model makes true."""

    model_names: Sequence[str]
    context_length_tokens: int
    vocabulary_size: int
    eos_token_count: int


def document(limits: ModelLimits | None, *, with_key: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document; without `limits` while the model is not known yet."""
    schemas = {**_request_schemas(), **_answer_schemas()}
    if limits is not None:
        _state_limits(schemas, limits)
    model_names = () if limits is None else limits.model_names
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


def _request_schemas() -> dict[str, Any]:
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
    _state_content(schemas["Message"])
    wants_stream = _wants("stream_options", "object", "stream")
    schemas["CompletionRequest"]["allOf"] = [wants_stream]
    schemas["ChatRequest"]["allOf"] = [wants_stream, _wants("top_logprobs", "integer", "logprobs")]
    return schemas


def _state_content(message: dict[str, Any]) -> None:
    """An assistant message with calls may have no content, every other one has some."""
    content = message["properties"]["content"]
    content["anyOf"] = [*content["anyOf"], {"type": "null"}]
    message["required"] = [name for name in message["required"] if name != "content"]
    calls = {
        "role": {"const": "assistant"},
        "tool_calls": {"type": "array", "minItems": 1},
    }
    none = {"anyOf": [{"type": "array", "maxItems": 0}, {"type": "null"}]}
    plain = {"content": {"not": {"type": "null"}}, "tool_calls": none}
    message["anyOf"] = [
        {"properties": plain, "required": ["content"]},
        {"properties": calls, "required": ["role", "tool_calls"]},
    ]


def _wants(field: str, kind: str, other: str) -> dict[str, Any]:
    """A field that is there, and not null, wants another one to be true."""
    return {
        "if": {"properties": {field: {"type": kind}}, "required": [field]},
        "then": {"properties": {other: {"const": True}}, "required": [other]},
    }


def _state_limits(schemas: dict[str, Any], limits: ModelLimits) -> None:
    """Write what the model makes true into the request schemas."""
    largest = limits.vocabulary_size - 1
    for name in ("ChatRequest", "CompletionRequest"):
        fields = schemas[name]["properties"]
        fields["model"]["enum"] = list(limits.model_names)
        stops, bias = fields["stop_token_ids"]["anyOf"][0], fields["logit_bias"]["anyOf"][0]
        stops["maxItems"] = MAX_STOP_TOKENS - limits.eos_token_count
        stops["items"]["maximum"] = largest
        pattern = f"^(0|[1-9][0-9]{{0,{len(str(largest)) - 1}}})$"
        fields["logit_bias"]["anyOf"][0] = {**bias, "propertyNames": {"pattern": pattern}}
    token_ids = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": largest},
        "minItems": 1,
        "maxItems": limits.context_length_tokens - 1,
    }
    forms = schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]
    forms[2] = token_ids
    forms[3] = {**forms[3], "items": token_ids}


def _answer_schemas() -> dict[str, Any]:
    answers = (
        ChatCompletion,
        ChatCompletionChunk,
        Completion,
        CompletionChunk,
        ModelCard,
        ModelList,
        Health,
        ErrorBody,
    )
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


def _events(chunk: str) -> dict[str, Any]:
    """Describe a stream by one of its events; the last one's data is [DONE]."""
    chunks = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {
            "anyOf": [{"$ref": _REF.format(name=name)} for name in (chunk, "ErrorBody")]
        },
    }
    data = {"anyOf": [{"const": "[DONE]"}, chunks]}
    return {
        "text/event-stream": {
            "schema": {
                "type": "object",
                "description": "One event. The last event's data is [DONE].",
                "properties": {"data": data},
                "required": ["data"],
            }
        }
    }


def _inference(summary: str, request: str, answer: str) -> dict[str, Any]:
    ok = {**_json(answer), **_events(f"{answer}Chunk")}
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
