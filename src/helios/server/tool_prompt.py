"""Conversations with tools as every chat template can write them: roles and texts alone.

The tools stand in the system message, calls in the assistant's text and results in a user's turn,
each between tags. So a template that knows nothing of tools serves them too, and what the model is
told is the form that its answers are read in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from helios.server.errors import shown
from helios.server.output_format import is_name, wrong
from helios.server.tools import CLOSING, OPENING, Tool, ToolUse

MAX_TOOL_CALLS: Final = 128
TOOL_CALLS_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "type": "array",
            "maxItems": MAX_TOOL_CALLS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"},
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
                            "arguments": {"type": "string", "pattern": "^[^\\x00]*$"},
                        },
                        "required": ["name", "arguments"],
                        "additionalProperties": False,
                    },
                },
                "required": ["id", "type", "function"],
                "additionalProperties": False,
            },
        },
        {"type": "null"},
    ]
}


def tool_calls(value: Any) -> tuple[tuple[str, str], ...]:
    """Read the calls of an earlier assistant message as names and texts of arguments."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_TOOL_CALLS:
        raise wrong(f"must be an array of at most {MAX_TOOL_CALLS} calls, not {shown(value)}")
    return tuple(_call(item, index) for index, item in enumerate(value))


def _call(value: Any, index: int) -> tuple[str, str]:
    is_call = isinstance(value, dict) and set(value) == {"id", "type", "function"}
    function = value["function"] if is_call else None
    if not is_call or value["type"] != "function" or not isinstance(function, dict):
        raise wrong(f"[{index}] must hold exactly id, type (function) and function")
    if not isinstance(value["id"], str) or not 1 <= len(value["id"]) <= 128:
        raise wrong(f"[{index}].id must be a string of 1 to 128 characters")
    if not all(part.isascii() and (part.isalnum() or part in "_-") for part in value["id"]):
        raise wrong(f"[{index}].id must be of a-z A-Z 0-9 _ -, not {shown(value['id'])}")
    name, arguments = function.get("name"), function.get("arguments")
    if set(function) != {"name", "arguments"} or not is_name(name):
        raise wrong(f"[{index}].function must hold exactly name and arguments")
    if not isinstance(arguments, str):
        raise wrong(f"[{index}].function.arguments must be a string, not {shown(arguments)}")
    return name, arguments


def call_text(name: str, arguments: str) -> str:
    """Return a call as the model writes it."""
    return f'{OPENING}\n{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}\n{CLOSING}'


def with_tools(messages: Sequence[Mapping[str, str]], use: ToolUse | None) -> list[dict[str, str]]:
    """Return messages whose first one, a system message, describes the tools."""
    told = [dict(message) for message in messages]
    if use is None:
        return told
    text = _description(use.tools)
    if told and told[0]["role"] == "system":
        told[0]["content"] = f"{told[0]['content']}\n\n{text}"
        return told
    return [{"role": "system", "content": text}, *told]


def _description(offered: Sequence[Tool]) -> str:
    lines = []
    for tool in offered:
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": json.loads(tool.parameters),
        }
        lines.append(json.dumps({"type": "function", "function": function}, ensure_ascii=False))
    listed = "\n".join(lines)
    return (
        "You can call functions. These are available:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, answer with its name and arguments as JSON between tags, like this:\n"
        + call_text("NAME", "{...}")
    )
