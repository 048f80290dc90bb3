"""PackageError: a prepared package cannot be written or opened, and which field says so."""

from __future__ import annotations


class PackageError(Exception):
    """The message starts with the manifest field, file or option that is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
