"""JSON schemas that constrain output: what is checked before a grammar is compiled of one.

A refusal names the place in the schema (a JSON pointer) and what would be right there. Keywords
that could not be enforced are refused, never ignored; annotations and unknown names mean nothing
to validation and pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from helios.server.errors import shown

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Bytes of a schema as compact JSON."""
MAX_SCHEMA_DEPTH: Final = 32
"""Schemas inside one another; references may lead deeper, because text is finite."""
MAX_SUBSCHEMAS: Final = 1000
"""Schemas inside a schema, all together."""
MAX_ENUM_VALUES: Final = 1000
"""Values of one enum."""
MAX_PATTERN_LENGTH: Final = 1024
"""Characters of a pattern."""

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
FORMATS: Final = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
)
"""String formats that are enforced."""
_UNSUPPORTED: Final = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$id",
    "$anchor",
    "x-guidance",
)
_COUNTS: Final = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SCHEMAS: Final = ("items", "additionalItems", "additionalProperties")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")


class SchemaError(ValueError):
    """A schema that cannot constrain output; the message names the place."""


def checked_schema(schema: object) -> str:
    """Return the text of a schema, its keys in the order in which they came.

    Raises SchemaError.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise SchemaError(f"must be an object, not {shown(schema)}")
    walk = _Walk(schema)
    walk.visit(schema, "", 0)
    text = msgspec.json.encode(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"is {len(text)} bytes long, more than the limit of {MAX_SCHEMA_BYTES}")
    return text.decode()


class _Walk:
    """One pass over a schema; counts what it meets."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._count = 0

    def visit(self, schema: object, at: str, depth: int) -> None:
        """Check one schema and those inside it."""
        self._count += 1
        if self._count > MAX_SUBSCHEMAS:
            raise SchemaError(f"holds more than {MAX_SUBSCHEMAS} schemas, which is the limit")
        if depth > MAX_SCHEMA_DEPTH:
            raise _at(at, f"lies deeper than {MAX_SCHEMA_DEPTH} schemas, which is the limit")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise _at(at, f"must be a schema (an object), not {shown(schema)}")
        for name, value in schema.items():
            self._keyword(name, value, f"{at}/{_escaped(name)}", depth)

    def _keyword(self, name: str, value: Any, at: str, depth: int) -> None:
        if name in _UNSUPPORTED and not (name == "uniqueItems" and value is False):
            raise _at(at, "this keyword cannot be enforced; leave it out")
        if name in _LISTS or (name == "items" and isinstance(value, list)):
            _expect(isinstance(value, list) and bool(value), at, "a non-empty array", value)
            for index, item in enumerate(value):
                self.visit(item, f"{at}/{index}", depth + 1)
        elif name in _SCHEMAS:
            self.visit(value, at, depth + 1)
        elif name in _MAPS:
            self._map(name, value, at, depth)
        elif name == "$ref":
            self._reference(value, at)
        elif name in _CHECKS:
            _CHECKS[name](value, at)

    def _map(self, name: str, value: Any, at: str, depth: int) -> None:
        """Check the schemas of an object by name."""
        _expect(isinstance(value, dict), at, "an object of schemas", value)
        for key, item in value.items():
            if name == "patternProperties":
                _pattern(key, f"{at}/{_escaped(key)}")
            self.visit(item, f"{at}/{_escaped(key)}", depth + 1)

    def _reference(self, value: Any, at: str) -> None:
        """A reference must lead to a schema inside this one."""
        _expect(isinstance(value, str), at, "a string", value)
        if not (value == "#" or value.startswith("#/")):
            raise _at(at, f"only references inside the schema (#/...) work, not {shown(value)}")
        found: Any = self._root
        for part in value[2:].split("/") if len(value) > 1 else ():
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdecimal():
                found = found[int(key)] if len(key) < 6 and int(key) < len(found) else None
            else:
                found = found.get(key) if isinstance(found, dict) else None
        if not isinstance(found, (dict, bool)):
            raise _at(at, f"{shown(value)} leads to no schema")


def _type(value: Any, at: str) -> None:
    names = value if isinstance(value, list) else [value]
    if not names:
        raise _at(at, "names no type at all")
    for name in names:
        _expect(name in TYPES, at, f"one of {', '.join(TYPES)}, or a list of them", name)


def _required(value: Any, at: str) -> None:
    is_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    _expect(is_names, at, "an array of strings", value)


def _enum(value: Any, at: str) -> None:
    _expect(isinstance(value, list) and bool(value), at, "a non-empty array", value)
    if len(value) > MAX_ENUM_VALUES:
        raise _at(at, f"has {len(value)} values, more than the limit of {MAX_ENUM_VALUES}")


def _pattern(value: Any, at: str) -> None:
    _expect(isinstance(value, str), at, "a string", value)
    if len(value) > MAX_PATTERN_LENGTH:
        raise _at(at, f"is longer than {MAX_PATTERN_LENGTH} characters, which is the limit")


def _format(value: Any, at: str) -> None:
    _expect(value in FORMATS, at, f"one of {', '.join(FORMATS)}", value)


def _counted(value: Any, at: str) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    _expect(is_count, at, "an integer from 0 to 2147483647", value)


def _number(value: Any, at: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _expect(is_number, at, "a number", value)


def _expect(holds: bool, at: str, right: str, value: object) -> None:
    if not holds:
        raise _at(at, f"must be {right}, not {shown(value)}")


def _at(pointer: str, message: str) -> SchemaError:
    return SchemaError(f"at {pointer or '/'}: {message}" if pointer else message)


def _escaped(key: str) -> str:
    """Return a key as a part of a JSON pointer, cut where it is long."""
    return key[:60].replace("~", "~0").replace("/", "~1")


_CHECKS: Final[Mapping[str, Callable[[Any, str], None]]] = {
    "type": _type,
    "required": _required,
    "enum": _enum,
    "pattern": _pattern,
    "format": _format,
    **dict.fromkeys(_COUNTS, _counted),
    **dict.fromkeys(_NUMBERS, _number),
}
