"""BenchError: why a measurement cannot begin, or a scenario cannot be used."""

from __future__ import annotations

from flare.errors import FlareError


class BenchError(FlareError):
    """The measurement cannot be made; the message is for the person who typed the command."""
