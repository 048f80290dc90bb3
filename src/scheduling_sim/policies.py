"""Policies by name: the production scheduler with its presets, and what stands in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from helios.engine.ports import DecisionCore
from helios.scheduler import (
    DecodeMode,
    GraphKind,
    PolicyConfig,
    Scheduler,
    SpeculationConfig,
)
from scheduling_sim.baselines.names import ENTRIES as BASELINES
from scheduling_sim.platform import Platform
from scheduling_sim.registry import PolicyEntry, unknown_name
from scheduling_sim.seeds import measured_seeds


def _helios(preset: Callable[[], PolicyConfig]) -> Callable[..., DecisionCore]:
    """Return the builder of the production scheduler with a preset."""

    def build_helios(
        platform: Platform,
        *,
        mode: str = "",
        width: int = 0,
        seeded: bool = False,
        **overrides: object,
    ) -> DecisionCore:
        scheduler = Scheduler(
            catalog=platform.catalog,
            resources=platform.resources,
            policy=_overridden(preset(), overrides),
            speculation=_speculation(platform, mode, width),
        )
        if seeded:
            scheduler.seed_costs(measured_seeds(platform))
        return scheduler

    return build_helios


def _overridden(policy: PolicyConfig, overrides: Mapping[str, object]) -> PolicyConfig:
    """Return the preset with other values. Raises ValueError for an unknown field."""
    known = {field.name for field in dataclasses.fields(PolicyConfig)}
    for name in overrides:
        if name not in known:
            options = ", ".join(sorted(known | {"mode", "seeded", "width"}))
            raise ValueError(f"helios has no option {name!r}; it has {options}")
    return dataclasses.replace(policy, **overrides)  # type: ignore[arg-type]


def _speculation(platform: Platform, mode: str, width: int) -> SpeculationConfig:
    """Return the decode mode that was asked for.

    Without one: adaptive for a catalog that cannot decode otherwise, else ordinary.
    """
    if not mode:
        can_decode = any(graph.kind is GraphKind.DECODE for graph in platform.catalog.graphs)
        chosen = DecodeMode.ORDINARY if can_decode else DecodeMode.ADAPTIVE
        return SpeculationConfig(mode=DecodeMode.FIXED if width else chosen, fixed_width=width)
    known = [each.value for each in DecodeMode]
    if mode not in known:
        raise ValueError(f"mode {mode!r} is none of {', '.join(known)}")
    return SpeculationConfig(mode=DecodeMode(mode), fixed_width=width)


_ENTRIES: Mapping[str, PolicyEntry] = {
    "helios": PolicyEntry(
        "the production scheduler, balanced preset", _helios(PolicyConfig.balanced)
    ),
    "helios-throughput": PolicyEntry(
        "the production scheduler without delivery fairness and age price",
        _helios(PolicyConfig.throughput),
    ),
    "helios-table": PolicyEntry(
        "the production scheduler with the design's table to the letter", _helios(PolicyConfig)
    ),
    **BASELINES,
}


def build(name: str, platform: Platform, **options: object) -> DecisionCore:
    """Build a policy for a platform.

    Helios takes every field of PolicyConfig, `mode` (ordinary, fixed, adaptive), `width` and
    `seeded` (True: it starts with the durations that the package would have measured, as the server
    does; False: it discovers them); the baselines take those of `baselines/names.py`.
    Raises ValueError for an unknown name or option.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        raise unknown_name("policy", name, _ENTRIES)
    return entry.build(platform, **options)


def policy_names() -> dict[str, str]:
    """Return every policy with one line about it."""
    return {name: entry.summary for name, entry in _ENTRIES.items()}
