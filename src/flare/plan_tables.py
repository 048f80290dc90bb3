"""Plans and packages as tables for a terminal."""

from __future__ import annotations

import re
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from helios.engine.manifest import DraftEntry, Manifest
from ignition.capacity import CapacityPlan

_NAME: Final = re.compile(r"(.*?)-([bc])(\d+)(.*)")
"""Kind, letter and number of the capacity that programs differ by first, and what follows."""


def size_text(count: int) -> str:
    """Return a byte count for people."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.1f} {unit}"
    return f"{count} B"


def plan_tables(name: str, plan: CapacityPlan, *, with_buffers: bool) -> RenderableType:
    """Return the headline, notes, programs, memory and, when asked, every buffer of a plan."""
    pool = plan.pool
    headline = (
        f"{name}: {plan.precision} on {plan.backend}; {pool.row_count} requests at a time, "
        f"context {pool.context_length_tokens} tokens, {pool.page_count} pages of "
        f"{pool.page_size_tokens} tokens; preparing takes about {plan.prepare_s:.0f} s"
    )
    notes = [Text(f"note: {note}") for note in plan.notes]
    parts: list[RenderableType] = [Text(headline), *notes, _programs(plan), _memory(plan)]
    if with_buffers:
        parts.append(_buffers(plan))
    return Group(*parts)


def catalog_line(names: tuple[str, ...]) -> str:
    """Return a catalog in one line, such as `decode-b(1 2 4), prefill-c(16 64)`."""
    capacities: dict[str, list[str]] = {}
    for name in names:
        kind, letter, capacity, rest = _NAME.fullmatch(name).groups()  # type: ignore[union-attr]
        capacities.setdefault(f"{kind}{rest}-{letter}", []).append(capacity)
    return ", ".join(f"{kind}({' '.join(sizes)})" for kind, sizes in capacities.items())


def _programs(plan: CapacityPlan) -> Table:
    table = Table(title="Programs", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("program")
    for title in ("buffers", "prepare s"):
        table.add_column(title, justify="right")
    table.add_column("what it is for", overflow="fold")
    for program in plan.programs:
        table.add_row(
            program.graph.name,
            size_text(program.buffer_bytes),
            f"{program.prepare_s:.1f}",
            program.purpose,
        )
    return table


def _memory(plan: CapacityPlan) -> Table:
    memory, draft = plan.memory, plan.draft_memory
    table = Table(title="Memory", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("use")
    table.add_column("size", justify="right")
    table.add_row("weights", size_text(memory.weights_bytes))
    table.add_row("KV cache pages", size_text(memory.kv_bytes))
    table.add_row("state rows", size_text(memory.state_bytes))
    table.add_row("static buffers of programs", size_text(memory.program_bytes))
    table.add_row("workspace", size_text(memory.workspace_bytes))
    table.add_section()
    table.add_row("together", size_text(memory.total_bytes))
    if draft is not None:
        table.add_section()
        table.add_row("of which the draft model: weights", size_text(draft.weights_bytes))
        table.add_row("its keys and values of the pages", size_text(draft.kv_bytes))
        table.add_row("its workspace", size_text(draft.workspace_bytes))
    return table


def _buffers(plan: CapacityPlan) -> Table:
    table = Table(title="Static buffers", title_justify="left", box=box.SIMPLE_HEAD)
    for title in ("program", "buffer", "role", "shape", "type"):
        table.add_column(title)
    for program in plan.programs:
        for row, buffer in enumerate(program.buffers):
            shape = " x ".join(map(str, buffer.shape)) or "scalar"
            owner = program.graph.name if row == 0 else ""
            table.add_row(owner, buffer.name, buffer.role, shape, buffer.dtype)
    return table


def manifest_tables(manifest: Manifest) -> RenderableType:
    """Return what a package holds."""
    machine = manifest.machine
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    digest = manifest.model.sha256[:16]
    table.add_row("model", f"{manifest.model.name} from {manifest.model.source} ({digest}...)")
    table.add_row("precision", f"{manifest.precision} on {manifest.backend}")
    table.add_row("capacity", capacity_line(manifest))
    if manifest.draft is not None:
        kind = "draft head" if manifest.draft.model is None else "draft model"
        table.add_row(kind, draft_line(manifest.draft))
    features = " ".join([machine.architecture, *machine.cpu_features])
    table.add_row("machine", f"{features}; {machine.threads} threads")
    table.add_row("compiler", machine.compiler or "none")
    table.add_row("written by", f"flare {manifest.flare_version}")
    return Group(table, _measured(manifest))


def draft_line(draft: DraftEntry) -> str:
    """Return what a package's draft is, and what is expected of it."""
    shares = ", ".join(f"{survival:.2f}" for survival in draft.survivals)
    promise = f"; proposals accepted to depth 1, 2, ...: {shares}" if shares else ""
    name = "" if draft.model is None else f"{draft.model.name} from {draft.model.source}, "
    return f"{name}{draft.sha256[:16]}..., {draft.token_count} tokens{promise}"


def capacity_line(manifest: Manifest) -> str:
    """Return what a package can serve at the same time."""
    pool = manifest.pool
    return (
        f"{pool.row_count} requests at a time, context {pool.context_length_tokens} tokens, "
        f"{pool.page_count} pages of {pool.page_size_tokens}"
    )


def _measured(manifest: Manifest) -> Table:
    table = Table(title="Programs", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("program")
    table.add_column("measured ms", justify="right")
    table.add_column("what it is for", overflow="fold")
    for graph in manifest.graphs:
        cost_ns = manifest.costs_ns.get(graph.name)
        cost = "-" if cost_ns is None else f"{cost_ns / 1e6:.2f}"
        table.add_row(graph.name, cost, graph.purpose)
    return table
