"""The fields that constrain an answer, in every shape that clients send, as one grammar.

response_format      {"type": "text" | "json_object" | "json_schema" | "regex" | "choice", ...}
structured_outputs   {"json" | "json_object" | "regex" | "choice": ...}, as vLLM takes it
guided_json, guided_regex, guided_choice   the same under vLLM's older names
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

import msgspec
from pydantic_core import PydanticCustomError

from helios.engine.messages import GrammarMessage
from helios.server.errors import shown
from helios.server.json_schema import SchemaError, checked_schema

FORMAT_FIELDS: Final = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
)
MAX_REGEX_LENGTH: Final = 4096
MAX_FORMAT_CHOICES: Final = 1000
MAX_CHOICE_LENGTH: Final = 256
MAX_CHOICES_LENGTH: Final = 32 * 1024
"""Characters of all choices together, escapes included."""
_MAX_NAME_LENGTH: Final = 64
_META: Final = frozenset("\\.+*?()|[]{}^$#&-~")

ANY_OBJECT: Final = '{"type":"object"}'
"""The schema of json_object."""
NAME_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"

_REGEX_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_REGEX_LENGTH,
    "pattern": "^[^\\x00]*$",
}
_CHOICE_SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_FORMAT_CHOICES,
    "items": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_CHOICE_LENGTH,
        "pattern": "^[^\\x00]*$",
    },
}
_JSON_SCHEMA: Final[dict[str, Any]] = {"type": "object"}
_JSON_TEXT: Final[dict[str, Any]] = {"type": "string", "pattern": "^[^\\x00]*$"}
_NULL: Final[dict[str, Any]] = {"type": "null"}


def _exactly(kind: str, **more: Any) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **more}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_NAMED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": NAME_PATTERN},
        "description": {"anyOf": [{"type": "string", "pattern": "^[^\\x00]*$"}, _NULL]},
        "schema": _JSON_SCHEMA,
        "strict": {"anyOf": [{"type": "boolean"}, _NULL]},
    },
    "required": ["name", "schema"],
    "additionalProperties": False,
}
RESPONSE_FORMAT_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        _exactly("text"),
        _exactly("json_object"),
        _exactly("json_schema", json_schema=_NAMED),
        _exactly("regex", regex=_REGEX_SCHEMA),
        _exactly("choice", choice=_CHOICE_SCHEMA),
        _NULL,
    ]
}
STRUCTURED_OUTPUTS_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "type": "object",
            "description": "Exactly one of them is not null.",
            "properties": {
                "json": {"anyOf": [_JSON_SCHEMA, _JSON_TEXT, _NULL]},
                "json_object": {"enum": [True, None]},
                "regex": {"anyOf": [_REGEX_SCHEMA, _NULL]},
                "choice": {"anyOf": [_CHOICE_SCHEMA, _NULL]},
            },
            "minProperties": 1,
            "additionalProperties": False,
        },
        _NULL,
    ]
}
GUIDED_JSON_SCHEMA: Final[dict[str, Any]] = {"anyOf": [_JSON_SCHEMA, _JSON_TEXT, _NULL]}
GUIDED_REGEX_SCHEMA: Final[dict[str, Any]] = {"anyOf": [_REGEX_SCHEMA, _NULL]}
GUIDED_CHOICE_SCHEMA: Final[dict[str, Any]] = {"anyOf": [_CHOICE_SCHEMA, _NULL]}


def wrong(message: str) -> PydanticCustomError:
    """Return a refusal of the field that is being read."""
    return PydanticCustomError("invalid_grammar", "{message}", {"message": message})


def response_format(value: Any) -> GrammarMessage | None:
    """Read OpenAI's response_format, with regex and choice beside its own types."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong(f"must be an object with a type, not {shown(value)}")
    kind = value.get("type")
    if kind == "text":
        _only(value, "type")
        return None
    param = "response_format"
    if kind == "json_object":
        _only(value, "type")
        return GrammarMessage(kind="json_schema", text=ANY_OBJECT, param=param)
    if kind == "json_schema":
        _only(value, "type", "json_schema")
        return _named(value.get("json_schema"), param)
    if kind == "regex":
        _only(value, "type", "regex")
        return _regex(value.get("regex"), param, "regex ")
    if kind == "choice":
        _only(value, "type", "choice")
        return _choice(value.get("choice"), param, "choice ")
    raise wrong(f"type must be text, json_object, json_schema, regex or choice, not {shown(kind)}")


def structured_outputs(value: Any) -> GrammarMessage | None:
    """Read vLLM's structured_outputs."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong(f"must be an object, not {shown(value)}")
    given = {name: item for name, item in value.items() if item is not None}
    _only(given, *_STRUCTURED)
    if len(given) != 1:
        raise wrong(f"must hold exactly one of {', '.join(_STRUCTURED)}, not {len(given)}")
    ((name, item),) = given.items()
    return _STRUCTURED[name](item, "structured_outputs", f"{name} ")


def guided_json(value: Any) -> GrammarMessage | None:
    """Read vLLM's guided_json: a schema, or its text."""
    return None if value is None else _schema(value, "guided_json", "")


def guided_regex(value: Any) -> GrammarMessage | None:
    """Read vLLM's guided_regex."""
    return None if value is None else _regex(value, "guided_regex", "")


def guided_choice(value: Any) -> GrammarMessage | None:
    """Read vLLM's guided_choice."""
    return None if value is None else _choice(value, "guided_choice", "")


def the_one(given: Mapping[str, GrammarMessage | None]) -> GrammarMessage | None:
    """Return the only grammar among several fields. Raises PydanticCustomError for two."""
    wanted = [grammar for grammar in given.values() if grammar is not None]
    if len(wanted) > 1:
        names = " and ".join(grammar.param for grammar in wanted[:2])
        raise PydanticCustomError(
            "two_formats", "an answer has one format, but {names} ask for two", {"names": names}
        )
    return wanted[0] if wanted else None


def _named(value: Any, param: str) -> GrammarMessage:
    """Read the json_schema member, whose schema has a name; `strict` changes nothing here."""
    if not isinstance(value, dict):
        raise wrong(f"json_schema must be an object with name and schema, not {shown(value)}")
    _only(value, "name", "description", "schema", "strict", prefix="json_schema.")
    name, text, strict = (value.get(key) for key in ("name", "description", "strict"))
    if not is_name(name):
        raise wrong(f"json_schema.name must be 1 to 64 of a-z A-Z 0-9 _ -, not {shown(name)}")
    if text is not None and not isinstance(text, str):
        raise wrong(f"json_schema.description must be a string, not {shown(text)}")
    if strict is not None and not isinstance(strict, bool):
        raise wrong(f"json_schema.strict must be true or false, not {shown(strict)}")
    if not isinstance(value.get("schema"), dict):
        raise wrong(f"json_schema.schema must be an object, not {shown(value.get('schema'))}")
    return _schema(value["schema"], param, "json_schema.schema ")


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value is a name as functions and schemas have one."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= _MAX_NAME_LENGTH
        and value.isascii()
        and all(character.isalnum() or character in "_-" for character in value)
    )


def _schema(value: Any, param: str, where: str) -> GrammarMessage:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise wrong(f"{where}is no JSON: {error}") from None
    try:
        text = checked_schema(value)
    except SchemaError as error:
        raise wrong(f"{where}{error}") from None
    return GrammarMessage(kind="json_schema", text=text, param=param)


def _any_object(value: Any, param: str, where: str) -> GrammarMessage:
    if value is not True:
        raise wrong(f"{where}must be true, not {shown(value)}")
    return GrammarMessage(kind="json_schema", text=ANY_OBJECT, param=param)


def _regex(value: Any, param: str, where: str) -> GrammarMessage:
    if not isinstance(value, str) or not value:
        raise wrong(f"{where}must be a non-empty string, not {shown(value)}")
    if len(value) > MAX_REGEX_LENGTH:
        raise wrong(
            f"{where}has {len(value)} characters, more than the limit of {MAX_REGEX_LENGTH}"
        )
    return GrammarMessage(kind="regex", text=value, param=param)


def _choice(value: Any, param: str, where: str) -> GrammarMessage:
    if not isinstance(value, list) or not value:
        raise wrong(f"{where}must be a non-empty array of strings, not {shown(value)}")
    if len(value) > MAX_FORMAT_CHOICES:
        raise wrong(f"{where}has {len(value)} choices, more than the limit of {MAX_FORMAT_CHOICES}")
    for choice in value:
        if not isinstance(choice, str) or not choice:
            raise wrong(f"{where}must hold non-empty strings only, not {shown(choice)}")
        if len(choice) > MAX_CHOICE_LENGTH:
            raise wrong(f"{where}holds a string longer than the limit of {MAX_CHOICE_LENGTH}")
    text = "|".join(map(_literal, dict.fromkeys(value)))
    if len(text) > MAX_CHOICES_LENGTH:
        raise wrong(f"{where}is longer than {MAX_CHOICES_LENGTH} characters in all")
    return GrammarMessage(kind="regex", text=f"(?:{text})", param=param)


def _literal(text: str) -> str:
    """Return the regular expression that matches a text and nothing else."""
    return "".join(f"\\{character}" if character in _META else character for character in text)


def _only(value: Mapping[str, Any], *names: str, prefix: str = "") -> None:
    for name in value:
        if name not in names:
            raise wrong(f"{prefix}{name} is unknown; known: {', '.join(names)}")


_STRUCTURED: Final[Mapping[str, Callable[[Any, str, str], GrammarMessage]]] = {
    "json": _schema,
    "json_object": _any_object,
    "regex": _regex,
    "choice": _choice,
}
