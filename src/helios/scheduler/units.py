"""Units of the core: integers for nanoseconds, floats only for value."""

from __future__ import annotations

from typing import Final, NewType

Fence = NewType("Fence", int)
"""Identifies one submitted frame; fences of one scheduler strictly increase."""

NANOSECONDS_PER_MS: Final = 1_000_000


def ms_of(duration_ns: int) -> float:
    """Convert a duration from integer nanoseconds to float milliseconds."""
    return duration_ns / NANOSECONDS_PER_MS
