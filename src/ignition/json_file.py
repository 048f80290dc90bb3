"""Reads the JSON files of a model directory, with typed access that names file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ignition.checkpoint_errors import CheckpointError

MAX_BYTES: Final = 256 << 20


def read_text(path: Path) -> str:
    """Return a text file. Raises CheckpointError when it is missing, huge or not UTF-8."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(
                file=path.name, field="size", found=size, expected=f"at most {MAX_BYTES} bytes"
            )
        return path.read_text("utf-8")
    except OSError as error:
        raise CheckpointError(
            file=path.name, field="file", found=error.strerror, expected="a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            file=path.name, field="text", found=error.reason, expected="UTF-8"
        ) from error


class JsonFile:
    """One JSON object; a missing optional file is an empty one."""

    def __init__(self, path: Path, *, optional: bool = False) -> None:
        self.file = path.name
        self.fields: dict[str, object] = {}
        if not optional or path.is_file():
            self.fields = parse_object(path.name, read_text(path))

    def error(self, field: str, found: object, expected: str) -> CheckpointError:
        """Return the error for a field."""
        return CheckpointError(file=self.file, field=field, found=found, expected=expected)

    def get(self, field: str) -> object:
        """Return a field, None when it is absent."""
        return self.fields.get(field)

    def integer(self, field: str, smallest: int, largest: int, default: int | None = None) -> int:
        """Return an integer within limits."""
        value = self.fields.get(field)
        value = default if value is None else value
        good = isinstance(value, int) and not isinstance(value, bool)
        if not isinstance(value, int) or not good or not smallest <= value <= largest:
            found = "nothing" if value is None else repr(value)
            raise self.error(field, found, f"an integer from {smallest} to {largest}")
        return value

    def real(self, field: str, largest: float, default: float) -> float:
        """Return a number in (0, largest]."""
        value = self.fields.get(field)
        value = default if value is None else value
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, int | float) or not good or not 0 < value <= largest:
            raise self.error(field, repr(value), f"a number above 0, at most {largest:g}")
        return float(value)

    def flag(self, field: str) -> bool | None:
        """Return a boolean or None."""
        value = self.fields.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.error(field, repr(value), "true or false")
        return value


def parse_object(file: str, text: str) -> dict[str, object]:
    """Parse a JSON object. Raises CheckpointError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            file=file, field="JSON", found=error, expected="valid JSON"
        ) from error
    if not isinstance(parsed, dict):
        raise CheckpointError(
            file=file, field="JSON", found=type(parsed).__name__, expected="an object"
        )
    return parsed
