"""Platforms by name."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling_sim.machines import ENTRIES
from scheduling_sim.platform import Platform
from scheduling_sim.registry import PlatformEntry, unknown_name
from scheduling_sim.synthetic import synthetic

_ENTRIES: Mapping[str, PlatformEntry] = {
    "synthetic": PlatformEntry("five plain numbers; every kind of program by options", synthetic),
    **ENTRIES,
}


def platform(name: str, **options: object) -> Platform:
    """Build a platform. Raises ValueError for an unknown name or option."""
    entry = _ENTRIES.get(name)
    if entry is None:
        raise unknown_name("platform", name, _ENTRIES)
    return entry.build(**options)


def platform_names() -> dict[str, str]:
    """Return every platform with one line about it."""
    return {name: entry.summary for name, entry in _ENTRIES.items()}
