"""Synthetic catalogs with modelled durations: descriptors plus what each program truly costs.

The numbers are modelled on GPU measurements in shape only: a decode step hardly grows with its
batch, a prefill is nearly linear beyond a small constant, state operations are almost free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    RowAllocation,
)

NS_PER_MS = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class ModelledCatalog:
    """A catalog, and the true duration in nanoseconds of each of its programs by name."""

    catalog: Catalog
    duration_ns: Mapping[str, int]

    def scaled(self, factor: int) -> ModelledCatalog:
        """Return the same programs on a machine that is `factor` times slower."""
        return ModelledCatalog(
            self.catalog, {name: ns * factor for name, ns in self.duration_ns.items()}
        )

    def with_duration(self, name: str, ms: float) -> ModelledCatalog:
        """Return a copy in which one program costs something else."""
        assert name in self.duration_ns, name
        return ModelledCatalog(self.catalog, {**self.duration_ns, name: round(ms * NS_PER_MS)})


def descriptor(name: str, **fields: Any) -> GraphDescriptor:
    """Build a descriptor from its short name; `fields` adds or overrides.

    `decode-b4`, `prefill-c512`, `scored-prefill-c64`, `vision-c256`, `restore-b4`, `snapshot-b4`,
    `speculative-b4-d3-w4` (host allocated, learned), `-p8` when ragged, `-copy`, `-device`;
    `mixed-b4-w1-c64` (ordinary), `mixed-b4-d3-w4-c64` (speculative).
    """
    kind, sizes, words = _parsed(name)
    if kind not in (GraphKind.SPECULATIVE, GraphKind.MIXED):
        if "c" in sizes:
            return GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=sizes["c"], **fields)
        return GraphDescriptor(kind=kind, batch_capacity=sizes["b"], **fields)
    depth = sizes.get("d", 0)
    shape: dict[str, Any] = {
        "batch_capacity": sizes["b"],
        "token_capacity": sizes["w"],
        "proposal_depth": depth,
        "packed_capacity": sizes.get("p", 0),
        "prefill_capacity": sizes.get("c", 0),
        "speculation_enabled": "d" in sizes,
    }
    if depth:
        is_device = "device" in words
        shape["allocation"] = RowAllocation.DEVICE if is_device else RowAllocation.HOST
        shape["source"] = ProposalSource.COPY if "copy" in words else ProposalSource.LEARNED
        shape["confidence_width"] = depth if is_device else 0
    return GraphDescriptor(kind=kind, **{**shape, **fields})


def _parsed(name: str) -> tuple[GraphKind, dict[str, int], list[str]]:
    """Split a name into its kind, its lettered sizes and its trailing words."""
    kind_words, sizes, words = [], {}, []
    for part in name.split("-"):
        if part[1:].isdigit():
            sizes[part[0]] = int(part[1:])
        elif sizes:
            words.append(part)
        else:
            kind_words.append(part.upper())
    return GraphKind["_".join(kind_words)], sizes, words


def modelled(durations_ms: Mapping[str, float], **fields: Any) -> ModelledCatalog:
    """Build a catalog from `name -> milliseconds`; `fields` go to programs that propose."""
    duration_ns = {name: round(ms * NS_PER_MS) for name, ms in durations_ms.items()}
    graphs = [
        descriptor(name, **(fields if _parsed(name)[1].get("d", 0) else {}))
        for name in durations_ms
    ]
    return ModelledCatalog(Catalog.of(graphs), duration_ns)


DECODE_MS = {1: 3.0, 2: 3.2, 4: 3.5, 8: 4.2, 16: 5.0, 32: 5.5, 64: 6.0}
PREFILL_MS = {64: 4.0, 128: 5.5, 256: 8.5, 512: 14.0, 1024: 25.0, 2048: 47.0, 4096: 90.0}


def gpu_like(
    *,
    rows: int = 16,
    prefills: Iterable[int] = (64, 512, 4096),
    scored: Iterable[int] = (),
) -> ModelledCatalog:
    """Return power-of-two buckets up to `rows`, and the given prompt capacities."""
    durations: dict[str, float] = {}
    for batch, ms in DECODE_MS.items():
        if batch <= rows:
            durations[f"initialize-b{batch}"] = 0.20 + 0.01 * batch
            durations[f"decode-b{batch}"] = ms
            durations[f"terminal-b{batch}"] = 0.15 + 0.01 * batch
    for capacity in prefills:
        durations[f"prefill-c{capacity}"] = PREFILL_MS[capacity]
    for capacity in scored:
        durations[f"scored-prefill-c{capacity}"] = 1.25 * PREFILL_MS[capacity]
    return modelled(durations)


TINY = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b2": 0.3,
        "prefill-c16": 4.0,
        "prefill-c64": 9.0,
        "decode-b1": 3.0,
        "decode-b2": 3.5,
        "terminal-b1": 0.25,
        "terminal-b2": 0.3,
    }
)
"""Two shapes of every kind: small enough to enumerate every cohort by hand."""


def cpu_like() -> ModelledCatalog:
    """Return a machine on which batches cost almost linearly and prefill is slow."""
    return modelled(
        {
            "initialize-b1": 0.05,
            "initialize-b4": 0.06,
            "prefill-c64": 114.0,
            "prefill-c256": 419.0,
            "decode-b1": 7.8,
            "decode-b4": 14.0,
            "decode-b16": 51.0,
            "terminal-b1": 0.04,
            "terminal-b4": 0.05,
        }
    )


def round_ms(batch: int, depth: int, rows: int) -> float:
    """Return what a complete round costs: one forward, D small draft steps, and its target rows.

    A whole number of microseconds, so that sums in tests stay readable.
    """
    return round(DECODE_MS[batch] + 0.35 * depth + 0.02 * (rows - batch), 3)


def mixed_ms(batch: int, depth: int, width: int, prompt: int) -> float:
    """Return what a mixed graph costs: the prompt shares the round's pass over the weights."""
    return round(round_ms(batch, depth, batch * width) + 0.8 * PREFILL_MS[prompt], 3)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a speculative, mixed or multimodal catalog holds besides the ordinary programs."""

    rows: int = 16
    prefills: tuple[int, ...] = (64, 512, 4096)
    ordinary: bool = False
    """Decode graphs, for a catalog that is loaded in either decode mode."""
    widths: tuple[int, ...] = (1, 2, 4, 8)
    """Verification widths of rectangular rounds; D = W - 1."""
    ragged: tuple[tuple[int, int], ...] = ()
    """(D, P per row in quarters) of ragged rounds: P = B * (D + 1) * quarters / 4."""
    device: bool = False
    """Ragged rounds are allocated by the device."""
    copy_depths: tuple[int, ...] = ()
    mixed: tuple[tuple[int, int], ...] = ()
    """(W, prompt capacity) of mixed graphs of the speculative mode."""
    mixed_ordinary: tuple[int, ...] = ()
    """Prompt capacities of mixed graphs of the ordinary mode."""
    vision: tuple[int, ...] = ()
    states: bool = False
    """Snapshot and restore graphs."""


def recipe(choice: Recipe, **fields: Any) -> ModelledCatalog:
    """Build the modelled catalog of a recipe; `fields` go to every program that proposes."""
    durations: dict[str, float] = {}
    for batch in (b for b in DECODE_MS if b <= choice.rows):
        durations |= _state_operations(choice, batch) | _rounds(choice, batch)
        if batch > 1:
            durations |= _mixed(choice, batch)
    for capacity in choice.prefills:
        durations[f"prefill-c{capacity}"] = PREFILL_MS[capacity]
    for capacity in choice.vision:
        durations[f"vision-c{capacity}"] = 2.0 + capacity / 64
    return modelled(durations, **fields)


def _state_operations(choice: Recipe, batch: int) -> dict[str, float]:
    found = {
        f"initialize-b{batch}": 0.20 + 0.01 * batch,
        f"terminal-b{batch}": 0.15 + 0.01 * batch,
    }
    if choice.ordinary:
        found[f"decode-b{batch}"] = DECODE_MS[batch]
    if choice.states:
        found[f"snapshot-b{batch}"] = 0.30 + 0.05 * batch
        found[f"restore-b{batch}"] = 0.25 + 0.05 * batch
    return found


def _rounds(choice: Recipe, batch: int) -> dict[str, float]:
    found = {
        f"speculative-b{batch}-d{width - 1}-w{width}": round_ms(batch, width - 1, batch * width)
        for width in choice.widths
    }
    for depth, quarters in choice.ragged:
        rows = max(batch, batch * (depth + 1) * quarters // 4)
        tail = "-device" if choice.device else ""
        name = f"speculative-b{batch}-d{depth}-w{depth + 1}-p{rows}{tail}"
        found[name] = round_ms(batch, depth, rows)
    for depth in choice.copy_depths:
        # Copies need no draft steps, only their target rows.
        name = f"speculative-b{batch}-d{depth}-w{depth + 1}-copy"
        found[name] = round_ms(batch, 0, batch * (depth + 1))
    return found


def _mixed(choice: Recipe, batch: int) -> dict[str, float]:
    found = {
        f"mixed-b{batch}-d{width - 1}-w{width}-c{prompt}": mixed_ms(batch, width - 1, width, prompt)
        for width, prompt in choice.mixed
    }
    for prompt in choice.mixed_ordinary:
        found[f"mixed-b{batch}-w1-c{prompt}"] = mixed_ms(batch, 0, 1, prompt)
    return found


STATES = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c16": 4.0,
        "prefill-c64": 9.0,
        "decode-b1": 3.0,
        "decode-b2": 3.2,
        "decode-b4": 3.5,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
        "vision-c32": 5.0,
        "vision-c64": 8.0,
        "snapshot-b1": 0.5,
        "snapshot-b4": 0.6,
        "restore-b1": 0.4,
        "restore-b4": 0.5,
    }
)
"""Every state operation beside small prefill and decode programs."""
