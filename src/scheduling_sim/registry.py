"""Entries of the registries of policies and platforms."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from helios.engine.ports import DecisionCore
from scheduling_sim.platform import Platform


class PolicyEntry(NamedTuple):
    """A policy that can be run by name."""

    summary: str
    """One line for listings."""
    build: Callable[..., DecisionCore]
    """`build(platform, **options)`; raises ValueError for an option that it does not know."""


class PlatformEntry(NamedTuple):
    """A platform that can be run on by name."""

    summary: str
    """One line for listings."""
    build: Callable[..., Platform]
    """`build(**options)`; raises ValueError for an option that it does not know."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is not in a registry, with the nearest known ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3) or names
    return ValueError(f"there is no {what} {name!r}; known: {', '.join(near)}")
