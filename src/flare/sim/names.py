"""Tables of everything that can be named, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from scheduling_sim import acceptance, platforms, policies
from scheduling_sim.report.figures import MEANINGS
from scheduling_sim.workload import named


def name_tables() -> dict[str, Table]:
    """Return kind -> table, in the order in which they are printed."""
    workloads = {name: named.workload_summary(name) for name in named.workload_names()}
    meanings = {
        f"{one.name}*" if one.name.endswith(".") else one.name: f"{one.definition} [{one.unit}]"
        for one in MEANINGS
    }
    kinds: dict[str, Mapping[str, str]] = {
        "policies": policies.policy_names(),
        "platforms": platforms.platform_names(),
        "workloads": workloads,
        "acceptance": acceptance.acceptance_names(),
        "figures": meanings,
    }
    return {kind: _table(kind, names) for kind, names in kinds.items()}


def _table(kind: str, names: Mapping[str, str]) -> Table:
    table = Table(title=kind, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, summary in names.items():
        table.add_row(escape(name), escape(summary))
    return table
