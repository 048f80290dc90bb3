"""From bytes on the wire to one JSON object: bounded, strict, and with every refusal explained.

Strict means: UTF-8, no key twice, no NaN or Infinity, no lone surrogate and no NUL in any string.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from helios.server.errors import ApiError, ClientGoneError, invalid, shown

_SUSPECT_ESCAPE = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
_BAD_CHARACTER = re.compile("[\x00\ud800-\udfff]")
_DISCARD_FACTOR = 4
_LARGEST_EXACT = 2**53


def check_content_type(request: Request) -> None:
    """Refuse what is not JSON by its own statement.

    A form or plain text body is what a foreign web page can send without asking: with this check
    no page reaches a server on loopback unless its origin is allowed. Raises ApiError (415).
    """
    value = request.headers.get("content-type")
    if value is not None:
        media_type, _, parameters = value.partition(";")
        charset = parameters.strip().lower().replace('"', "")
        if media_type.strip().lower() != "application/json" or charset not in {"", "charset=utf-8"}:
            raise ApiError(415, f"content-type must be application/json, not {shown(value)}")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(415, f"content-encoding {shown(encoding)} is not supported")


async def read_body(request: Request, *, limit_bytes: int, timeout_s: float) -> bytes:
    """Return the body. Raises ApiError (413, 408) or ClientGoneError."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit_bytes and "expect" in request.headers:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(request, limit_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive within {timeout_s:g} s", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None


async def _collect(request: Request, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit_bytes:
            chunks.append(chunk)
            continue
        # A client that is still sending would see a reset instead of the answer, so some of the
        # rest is read and dropped before it is told.
        chunks.clear()
        if size > _DISCARD_FACTOR * limit_bytes:
            break
    if size > limit_bytes:
        raise _too_large(limit_bytes)
    return b"".join(chunks)


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than the limit of {limit_bytes} bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises ApiError (400)."""
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
        )
    except UnicodeDecodeError as error:
        raise _not_json(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _not_json(f"the body is not JSON: {error.msg} ({where})") from None
    except RecursionError:
        raise _not_json("the body is nested too deeply") from None
    except ValueError:
        raise _not_json("the body holds an integer with too many digits") from None
    if not isinstance(value, dict):
        raise _not_json(f"the body must be a JSON object, not {_json_type(value)}")
    if _SUSPECT_ESCAPE.search(data):
        _check_characters(value)
    return value


def _not_json(message: str) -> ApiError:
    return invalid(message, code="invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise invalid(f"the key {shown(key)} appears twice", key, code="duplicate_key")
            seen.add(key)
    return value


def _number(digits: str) -> float | int:
    """JSON does not tell 5.0 from 5, so a field that wants an integer takes both."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) <= _LARGEST_EXACT else value


def _constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not a JSON number")


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _check_characters(value: dict[str, Any]) -> None:
    """Lone surrogates have no UTF-8, and NUL ends strings in native code: neither is text."""
    for path, text in _strings(value):
        found = _BAD_CHARACTER.search(text)
        if found:
            name = "NUL (U+0000)" if found[0] == "\0" else f"a lone surrogate (U+{ord(found[0]):X})"
            raise invalid(
                f"{path}: {name} at character {found.start()} is not text",
                path,
                code="invalid_character",
            )


def _strings(root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    pending: list[tuple[str, Any]] = [("", root)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            for key, item in value.items():
                yield path or "body", key
                pending.append((f"{path}.{key}" if path else key, item))
