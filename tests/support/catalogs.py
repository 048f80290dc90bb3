"""Synthetic catalogs with modelled durations: descriptors plus what each program truly costs.

The numbers are modelled on GPU measurements in shape only: a decode step hardly grows with its
batch, a prefill is nearly linear beyond a small constant, state operations are almost free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from helios.scheduler import Catalog, GraphDescriptor, GraphKind

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


def descriptor(name: str) -> GraphDescriptor:
    """Build a descriptor from its short name: `decode-b4`, `prefill-c512`, `scored-prefill-c64`."""
    kind_name, _, size = name.rpartition("-")
    kind = GraphKind[kind_name.upper().replace("-", "_")]
    capacity = int(size[1:])
    if size[0] == "c":
        return GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=capacity)
    return GraphDescriptor(kind=kind, batch_capacity=capacity)


def modelled(durations_ms: Mapping[str, float]) -> ModelledCatalog:
    """Build a catalog from `name -> milliseconds`."""
    duration_ns = {name: round(ms * NS_PER_MS) for name, ms in durations_ms.items()}
    return ModelledCatalog(Catalog.of(descriptor(name) for name in durations_ms), duration_ns)


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
