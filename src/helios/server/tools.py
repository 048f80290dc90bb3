"""Tools that the model may call: what a request says of them, and the grammar of a call.

A call is written as <tool_call>, a line break, {"name": ..., "arguments": {...}}, a line break and
</tool_call>, the form that most open models were trained on (Hermes). Whoever must call is held to
it by a grammar; whoever may is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticCustomError

from helios.engine.messages import GrammarMessage
from helios.server.errors import shown
from helios.server.json_schema import SchemaError, checked_schema
from helios.server.output_format import NAME_PATTERN, is_name, wrong

MAX_TOOLS: Final = 128
OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
_NO_ARGUMENTS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_AFTER: Final = json.dumps("}\n" + CLOSING)
WHITESPACE_OPTION: Final = {"whitespace_pattern": r"[ ]?|\n[ ]{0,16}"}

_TEXT: Final[dict[str, Any]] = {"type": "string", "pattern": "^[^\\x00]*$"}
_NULL: Final[dict[str, Any]] = {"type": "null"}
TOOLS_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "type": "array",
            "maxItems": MAX_TOOLS,
            "items": {
                "type": "object",
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "pattern": NAME_PATTERN},
                            "description": {"anyOf": [_TEXT, _NULL]},
                            "parameters": {"anyOf": [{"type": "object"}, _NULL]},
                            "strict": {"anyOf": [{"type": "boolean"}, _NULL]},
                        },
                        "required": ["name"],
                        "additionalProperties": False,
                    },
                },
                "required": ["type", "function"],
                "additionalProperties": False,
            },
        },
        _NULL,
    ]
}
CHOICE_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "pattern": NAME_PATTERN}},
                    "required": ["name"],
                    "additionalProperties": False,
                },
            },
            "required": ["type", "function"],
            "additionalProperties": False,
        },
    ]
}


class Tool(NamedTuple):
    """One function that may be called."""

    name: str
    description: str
    parameters: str
    """JSON schema of its arguments."""


class ToolUse(NamedTuple):
    """What a request's answer may call, and whether it must."""

    tools: tuple[Tool, ...]
    must_call: bool
    in_parallel: bool

    def grammar(self, wanted: GrammarMessage | None) -> GrammarMessage | None:
        """Return the grammar of the answer; None where anything may be said.

        `wanted` is the format of its text. An answer that must call has none, so the format has
        nothing to say there; where calling is free the answer is one or the other.
        """
        if self.must_call:
            rules = _rules("start", self.tools, in_parallel=self.in_parallel)
            return GrammarMessage(kind="lark", text=rules, param="tools")
        if wanted is None:
            return None
        rules = _rules("calls", self.tools, in_parallel=self.in_parallel)
        either = {"kind": wanted.kind, "text": wanted.text, "calls": rules}
        return GrammarMessage(kind="either", text=json.dumps(either), param=wanted.param)

    def check_format(self, wanted: GrammarMessage | None) -> None:
        """Raise PydanticCustomError for a format whose texts could not be told from calls."""
        if wanted is None or wanted.kind != "regex" or self.must_call:
            return
        if OPENING in wanted.text:
            raise PydanticCustomError(
                "two_formats",
                "a text of this format may hold {tag}, with which calls of the tools begin; "
                "ask for other texts, or without tools",
                {"tag": OPENING},
            )


def tools(value: Any) -> tuple[Tool, ...]:
    """Read the tools of a request."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong(f"must be an array of functions, not {shown(value)}")
    if len(value) > MAX_TOOLS:
        raise wrong(f"has {len(value)} tools, more than the limit of {MAX_TOOLS}")
    found = [_tool(item, index) for index, item in enumerate(value)]
    names = [tool.name for tool in found]
    for name in names:
        if names.count(name) > 1:
            raise wrong(f"has two functions with the name {shown(name)}")
    return tuple(found)


def tool_choice(value: Any) -> str:
    """Read which tool is to be called: none, auto or required, or : and a name; empty: absent."""
    if value is None:
        return ""
    if isinstance(value, str) and value in {"none", "auto", "required"}:
        return value
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    is_exact = isinstance(value, dict) and set(value) == {"type", "function"}
    if not (is_exact and value["type"] == "function" and set(function or ()) == {"name"}):
        raise wrong(
            "must be none, auto, required or "
            f'{{"type": "function", "function": {{"name": ...}}}}, not {shown(value)}'
        )
    if not is_name(name):
        raise wrong(f"function.name must be 1 to 64 of a-z A-Z 0-9 _ -, not {shown(name)}")
    return f":{name}"


def tool_use(given: Sequence[Tool], choice: str, *, in_parallel: bool) -> ToolUse | None:
    """Return what an answer may call; None for nothing. Raises PydanticCustomError."""
    if not given:
        if choice in {"", "none", "auto"}:
            return None
        raise wrong("tool_choice asks for a call, but there are no tools")
    if choice == "none":
        return None
    chosen = tuple(given)
    if choice.startswith(":"):
        chosen = tuple(tool for tool in given if tool.name == choice[1:])
        if not chosen:
            raise wrong(f"tool_choice names {shown(choice[1:])}, which is none of the tools")
        in_parallel = False
    return ToolUse(chosen, choice not in {"", "auto"}, in_parallel)


def _tool(value: Any, index: int) -> Tool:
    where = f"[{index}]"
    if not isinstance(value, dict) or value.get("type") != "function":
        kind = value.get("type") if isinstance(value, dict) else value
        raise wrong(f"{where} must be an object of type function, not {shown(kind)}")
    function = value.get("function")
    if set(value) != {"type", "function"} or not isinstance(function, dict):
        raise wrong(f"{where} must hold exactly type and function (an object)")
    unknown = set(function) - {"name", "description", "parameters", "strict"}
    if unknown:
        raise wrong(f"{where}.function.{min(unknown)} is unknown")
    name, description = function.get("name"), function.get("description")
    if not is_name(name):
        raise wrong(f"{where}.function.name must be 1 to 64 of a-z A-Z 0-9 _ -, not {shown(name)}")
    if description is not None and not isinstance(description, str):
        raise wrong(f"{where}.function.description must be a string, not {shown(description)}")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise wrong(f"{where}.function.strict must be true or false")
    parameters = function.get("parameters")
    try:
        text = checked_schema(_NO_ARGUMENTS if parameters is None else parameters)
    except SchemaError as error:
        raise wrong(f"{where}.function.parameters {error}") from None
    return Tool(name, description or "", text)


def _rules(first: str, chosen: Sequence[Tool], *, in_parallel: bool) -> str:
    """Return the rules of one call of the tools, or of several on lines of their own.

    `first` is the name of the rule that stands for all of it.
    """
    more = r' ("\n" call)*' if in_parallel else ""
    lines = [f"{first}: call{more}", "call: " + " | ".join(f"c{i}" for i in range(len(chosen)))]
    for index, tool in enumerate(chosen):
        # White space is bounded as in any other JSON; the checked schema has no such key itself.
        schema = {"x-guidance": WHITESPACE_OPTION, **json.loads(tool.parameters)}
        # Arguments are an object by the protocol, whether the schema says so or not.
        schema.setdefault("type", "object")
        before = f'{OPENING}\n{{"name": "{tool.name}", "arguments": '
        lines.append(f"c{index}: {json.dumps(before)} a{index} {_AFTER}")
        lines.append(f"a{index}: %json {json.dumps(schema)}")
    return "\n".join(lines) + "\n"
