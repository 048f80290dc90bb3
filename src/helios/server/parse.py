"""From a JSON object to a checked request, or to one refusal that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

from helios.server.errors import ApiError, invalid, shown
from helios.server.fields import (
    CHAT_NEUTRAL,
    COMPLETION_NEUTRAL,
    MESSAGE_NEUTRAL,
    STREAM_NEUTRAL,
    Neutral,
    without_neutral,
)
from helios.server.schema import ChatRequest, CompletionRequest, Message, StreamOptions

_PARAM_OF_CHECK = {
    "stream_options": "stream_options",
    "top_logprobs": "top_logprobs",
    "too_many_choices": "n",
    "two_formats": "response_format",
    "tool_calls": "messages",
    "invalid_grammar": "tool_choice",
}
M = TypeVar("M", ChatRequest, CompletionRequest)

_OWN_CODES = frozenset({"too_many_choices", "invalid_grammar", "two_formats"})
"""Refusals of what no schema of the request can say; the kind is the code."""
_SHOW_NO_INPUT = frozenset({"missing", "refused", "invalid_grammar"})


def parse_chat(raw: Mapping[str, Any]) -> ChatRequest:
    """Return the chat request. Raises ApiError (400)."""
    fields = _prepare(raw, CHAT_NEUTRAL, ChatRequest)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_message(item, index) for index, item in enumerate(messages)]
    return _validate(ChatRequest, fields)


def _message(item: Any, index: int) -> Any:
    """Return one message's fields that are acted on; calls may stand without any content."""
    if not isinstance(item, dict):
        return item
    kept = without_neutral(item, MESSAGE_NEUTRAL, Message.model_fields, f"messages[{index}].")
    if kept.get("tool_calls") and kept.get("role") == "assistant" and kept.get("content") is None:
        kept["content"] = ""
    return kept


def parse_completion(raw: Mapping[str, Any]) -> CompletionRequest:
    """Return the completion request. Raises ApiError (400)."""
    return _validate(CompletionRequest, _prepare(raw, COMPLETION_NEUTRAL, CompletionRequest))


def _prepare(
    raw: Mapping[str, Any], neutral: Mapping[str, Neutral], model: type[pydantic.BaseModel]
) -> dict[str, Any]:
    fields = without_neutral(raw, neutral, model.model_fields)
    options = fields.get("stream_options")
    if isinstance(options, dict):
        fields["stream_options"] = without_neutral(
            options, STREAM_NEUTRAL, StreamOptions.model_fields, "stream_options."
        )
    return fields


def _validate(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model.model_validate(fields)
    except pydantic.ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: pydantic.ValidationError) -> ApiError:
    """Turn the first finding into a refusal; the others wait until it is repaired."""
    found = error.errors(include_url=False)
    first = found[0]
    kind = str(first["type"])
    param = _path(first["loc"]) or _PARAM_OF_CHECK.get(kind)
    message = first["msg"]
    if kind == "missing":
        message = "is required"
    elif kind not in _SHOW_NO_INPUT and first["loc"]:
        message = f"{_reworded(message)}, not {shown(first['input'])}"
    more = f" ({len(found) - 1} more fields are wrong)" if len(found) > 1 else ""
    return invalid(f"{param}: {message}{more}", param, code=_code(kind))


def _reworded(message: str) -> str:
    """Speak of JSON to the client, not of Python."""
    for theirs, ours in (
        ("Input should be", "must be"),
        ("a valid dictionary or instance of Message", "an object"),
        ("a valid dictionary or instance of StreamOptions", "an object"),
        ("a valid list", "an array"),
    ):
        message = message.replace(theirs, ours)
    return message[:1].lower() + message[1:]


def _code(kind: str) -> str:
    if kind in _OWN_CODES:
        return kind
    return "missing_parameter" if kind == "missing" else "invalid_value"


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else (f".{step}" if path else step)
    return path
