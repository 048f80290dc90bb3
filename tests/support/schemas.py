"""Random JSON schemas whose texts are short enough for a small model to finish."""

from __future__ import annotations

import random
import string
from typing import Any

Schema = dict[str, Any]


def random_schema(seed: int) -> Schema:
    """The schema of a seed: the same in every run."""
    rng = random.Random(seed)
    schema = _object(rng, 3)
    if rng.random() < 0.2:
        schema["$defs"] = {"shared": _leaf(rng)}
        schema["properties"]["again"] = {"$ref": "#/$defs/shared"}
        schema["required"] = [*schema["required"], "again"]
    if rng.random() < 0.1:
        schema["properties"]["self"] = {"anyOf": [{"type": "null"}, {"$ref": "#"}]}
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    if depth == 0 or rng.random() < 0.6:
        return _leaf(rng)
    kind = rng.choice(["object", "array", "anyOf"])
    if kind == "object":
        return _object(rng, depth - 1)
    if kind == "array":
        fewest = rng.randrange(3)
        most = fewest + rng.randrange(3)
        return {
            "type": "array",
            "items": _any(rng, depth - 1),
            "minItems": fewest,
            "maxItems": most,
        }
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def _object(rng: random.Random, depth: int) -> Schema:
    names = _names(rng, rng.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _leaf(rng: random.Random) -> Schema:
    least = rng.randrange(-500, 500)
    choices: list[Schema] = [
        {"type": "string", "maxLength": rng.randrange(12)},
        {"type": "string", "minLength": 2, "maxLength": 6},
        {
            "type": "string",
            "pattern": rng.choice(["^[a-c]{1,4}$", "^x(yz|zy)+x$", "^\\d{2}:\\d{2}$"]),
        },
        {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid"])},
        {"type": "integer", "minimum": least, "maximum": least + rng.randrange(2000)},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        {"type": "integer", "minimum": 0, "maximum": 60, "multipleOf": rng.choice([2, 5, 6])},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["boolean", "null"]},
        {"enum": [rng.randrange(100), *_names(rng, 2), None, True, 1.5, ["a", 1], {"k": "v"}]},
        {"const": rng.choice([7, "seven", None, False, {"deep": [1, {"er": "\\"}]}])},
    ]
    return rng.choice(choices)


def _names(rng: random.Random, count: int) -> list[str]:
    alphabet = string.ascii_letters + '_- é"\\'
    names = {"".join(rng.choices(alphabet, k=rng.randrange(1, 8))): None for _ in range(count)}
    return list(names)
