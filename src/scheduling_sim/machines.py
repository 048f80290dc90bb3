"""Platforms of measured machines: composed costs, a planned catalog, the pages that are left."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from helios.scheduler import ResourceConfig
from scheduling_sim.costs.composed import ComposedCosts, ComposedOptions
from scheduling_sim.costs.h200 import read_h200
from scheduling_sim.costs.llmservingsim import read_table
from scheduling_sim.costs.models import H200_MEMORY_BYTES, H200_SHAPES, PROFILES
from scheduling_sim.costs.operators import OperatorTable
from scheduling_sim.costs.planner import (
    MIB,
    CatalogOptions,
    CatalogPlan,
    MemoryOptions,
    plan_catalog,
)
from scheduling_sim.costs.recorded import Spread
from scheduling_sim.costs.shipped import load_shipped, shipped_run
from scheduling_sim.costs.trace_file import read_trace
from scheduling_sim.costs.variation import Variation, varied
from scheduling_sim.platform import HostCosts, Platform
from scheduling_sim.recorded import recorded_platform
from scheduling_sim.registry import PlatformEntry


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """Options of a GPU platform; the fields of CatalogOptions are options too."""

    kv_tokens: int | None = None
    """Cache positions; None: what memory leaves."""
    page_size: int = 64
    context: int | None = None
    """Longest prompt plus output; None: the model's, as far as the cache holds it."""
    waiting: int = 1_000_000
    memory_utilization: float = 0.9
    graph_mib: float = 16.0
    """Memory of one captured graph."""
    graph_limit_mib: float | None = None
    snapshot_rows: int = 0
    page_growth: bool = False
    page_prefixes: bool = False
    draft_layers: int = 1
    state_ns: int = 20_000
    noise: float = 0.0
    """Sigma of the lognormal factor of each step."""
    drift: float = 0.0
    outliers: float = 0.0
    """Probability of a step that takes ten times as long."""
    seed: int = 0
    """Of noise, drift and outliers."""
    turn_ns: int = 0
    launch_ns: int = 0
    delivery_ns: int = 0
    originals: str | None = None
    """Folder that holds `llmservingsim/` and `aiconfigurator/`: read the original tables instead of
    the shipped ones."""


_CATALOG_FIELDS = tuple(field.name for field in dataclasses.fields(CatalogOptions))
_GPU_FIELDS = tuple(field.name for field in dataclasses.fields(GpuOptions))


def split_options(name: str, options: dict[str, object]) -> tuple[CatalogOptions, GpuOptions]:
    """Return both kinds of options; ValueError names one that is neither."""
    for option in options:
        if option not in _CATALOG_FIELDS and option not in _GPU_FIELDS:
            known = ", ".join(sorted((*_CATALOG_FIELDS, *_GPU_FIELDS)))
            raise ValueError(f"{name} has no option {option!r}; it has {known}")
    catalog = {key: _tupled(value) for key, value in options.items() if key in _CATALOG_FIELDS}
    rest = {key: value for key, value in options.items() if key in _GPU_FIELDS}
    return CatalogOptions(**catalog), GpuOptions(**rest)  # type: ignore[arg-type]


def _tupled(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@functools.cache
def _table(name: str, originals: str | None) -> OperatorTable:
    if originals is None:
        return load_shipped(name)
    if name in H200_SHAPES:
        table = read_h200(Path(originals), H200_SHAPES[name])
        return dataclasses.replace(table, source=f"{originals}, aiconfigurator-core, Apache-2.0")
    profile = PROFILES[name]
    folder = Path(originals) / "llmservingsim" / "profiler" / "perf" / profile.folder
    table = read_table(folder, profile.facts, link=profile.link, uneven=profile.uneven)
    return dataclasses.replace(table, source=f"{folder}, casys-kaist/LLMServingSim, MIT")


def gpu_plan(
    table: OperatorTable, memory_bytes: int, catalog: CatalogOptions, gpu: GpuOptions
) -> tuple[CatalogPlan, ResourceConfig]:
    """Return the planned catalog and resources of a machine."""
    limit = gpu.graph_limit_mib
    memory = MemoryOptions(
        memory_bytes=memory_bytes,
        utilization=gpu.memory_utilization,
        graph_bytes=round(gpu.graph_mib * MIB),
        graph_limit_bytes=None if limit is None else round(limit * MIB),
        page_size_tokens=gpu.page_size,
        snapshot_rows=gpu.snapshot_rows,
        draft_layers=gpu.draft_layers if catalog.speculates else 0,
    )
    plan = plan_catalog(table.facts, catalog, memory)
    resources = plan.resources(catalog, memory, table.facts)
    pages = plan.page_count if gpu.kv_tokens is None else gpu.kv_tokens // gpu.page_size
    context = min(gpu.context or table.facts.context_length_tokens, pages * gpu.page_size)
    return plan, dataclasses.replace(
        resources,
        page_count=pages,
        context_length_tokens=context,
        waiting_limit=gpu.waiting,
        page_growth=gpu.page_growth,
        page_prefixes=gpu.page_prefixes,
    )


def gpu_platform(
    name: str, table: OperatorTable, memory_bytes: int, options: dict[str, object]
) -> Platform:
    """Build the platform of an operator table. Raises ValueError for an unknown option."""
    catalog, gpu = split_options(name, options)
    plan, resources = gpu_plan(table, memory_bytes, catalog, gpu)
    composed = ComposedCosts(
        table,
        ComposedOptions(
            draft_layers=gpu.draft_layers,
            draft_prompts=catalog.speculates,
            state_ns=gpu.state_ns,
        ),
    )
    variation = Variation(sigma=gpu.noise, drift=gpu.drift, outlier_probability=gpu.outliers)
    return Platform(
        name=name,
        catalog=plan.catalog,
        resources=resources,
        costs=varied(composed, variation, seed=gpu.seed),
        host=HostCosts(turn_ns=gpu.turn_ns, launch_ns=gpu.launch_ns, delivery_ns=gpu.delivery_ns),
        source=table.source,
    )


def _measured(name: str, **options: object) -> Platform:
    originals = options.get("originals")
    table = _table(name, None if originals is None else str(originals))
    memory = H200_MEMORY_BYTES if name in H200_SHAPES else PROFILES[name].memory_bytes
    return gpu_platform(name, table, memory, options)


_MACHINES = {"rtx-4090": "RTX 4090", "rtx-pro-6000": "RTX PRO 6000", "h200": "H200"}


def _summary(name: str) -> str:
    machine, _, model = name.partition("/")
    if name in H200_SHAPES:
        return f"{model} bf16 on {_MACHINES[machine]}, composed of aiconfigurator's operators"
    devices = PROFILES[name].facts.devices
    several = "" if devices == 1 else f"{devices} x "
    return f"{model} bf16 on {several}{_MACHINES[machine]}, composed of LLMServingSim's operators"


def _recorded(**options: object) -> Platform:
    """Build the machine of a recorded run: the shipped one, or that of a trace file.

    `spread` is none, drawn (with `seed`) or in-order: how steps depart from their fitted time.
    """
    known = ("trace", "spread", "seed")
    for option in options:
        if option not in known:
            raise ValueError(f"{RECORDED} has no option {option!r}; it has {', '.join(known)}")
    path, wanted = options.get("trace"), options.get("spread", "none")
    spreads = [spread.value for spread in Spread]
    if wanted not in spreads:
        raise ValueError(f"spread must be one of {', '.join(spreads)}, not {wanted!r}")
    run = shipped_run() if path is None else read_trace(Path(str(path)))
    seed = int(str(options.get("seed", 0)))
    return recorded_platform(run, name=RECORDED, spread=Spread(wanted), seed=seed)


RECORDED = "cpu/recorded"
ENTRIES = {
    **{
        name: PlatformEntry(_summary(name), functools.partial(_measured, name))
        for name in (*PROFILES, *H200_SHAPES)
    },
    RECORDED: PlatformEntry("our CPU engine as recorded: smollm2-135m on two cores", _recorded),
}
"""Measured platforms by name, for the registry."""
