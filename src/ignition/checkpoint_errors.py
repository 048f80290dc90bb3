"""The one error of everything that reads a model from disk."""

from __future__ import annotations


class CheckpointError(Exception):
    """A model file or directory that cannot be read exactly.

    The message names the file, the field in it, what was found there and what was expected.
    """

    def __init__(self, *, file: str, field: str, found: object, expected: str) -> None:
        text = str(found)
        if len(text) > 200:
            text = text[:200] + "..."
        super().__init__(f"{file}: {field}: found {text}, expected {expected}")
        self.file = file
        self.field = field
        self.found = text
        self.expected = expected
