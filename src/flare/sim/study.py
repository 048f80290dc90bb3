"""`flare sim study`: runs the missing cells of the study and rewrites the tables of its page."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from flare.console import results
from flare.errors import FlareError
from flare.sim.provenance import Source, source
from scheduling_sim.report.plots.style import svg_bytes
from scheduling_sim.study.cells import Group, Row, ordered
from scheduling_sim.study.groups import GROUPS
from scheduling_sim.study.page import read_rows, with_table, write_rows
from scheduling_sim.study.plots import PLOTS


class Again(NamedTuple):
    """Which cells run although they have a row."""

    every: bool = False
    stale: bool = False
    """Those whose row was made by other sources: a study that was stopped goes on."""

    def asks_for(self, row: Row, made_by: Source) -> bool:
        """Tell whether a cell with this row runs again. A row without a tree is an old one."""
        return self.every or (self.stale and row.get("tree") != made_by.tree)


_MISSING: Final = Again()


def run_study(only: Sequence[str], page: Path, data: Path, *, again: Again = _MISSING) -> None:
    """Run what is missing and what is asked for again, keep every row at once, rewrite the page.

    The page is read anew for every table, so two calls for different groups may run side by side.
    Raises FlareError for an unknown group or a page that has no place for a table.
    """
    folder = page.with_suffix("")
    try:
        groups = ordered(GROUPS, only)
        for group in groups:
            with_table(page.read_text(encoding="utf-8"), group, {})
        for group in groups:
            rows = _run_group(group, folder, data, again)
            text = with_table(page.read_text(encoding="utf-8"), group, rows)
            page.write_text(text, encoding="utf-8")
        _draw(folder, {group.name for group in groups})
    except (ValueError, OSError) as error:
        raise FlareError(str(error)) from error


def _draw(folder: Path, changed: Set[str]) -> None:
    """Draw the plots that show a group of these, from the rows that are there."""
    known = {group.name: group for group in GROUPS}
    for plot in PLOTS:
        if changed.isdisjoint(plot.groups):
            continue
        rows = [read_rows(folder, known[name]) for name in plot.groups]
        if all(rows):
            path = folder / f"{plot.name}.svg"
            path.write_bytes(svg_bytes(plot.draw(*rows)))


def _run_group(group: Group, folder: Path, data: Path, again: Again) -> dict[str, Row]:
    made_by, rows = source(), dict(read_rows(folder, group))
    spent_s = 0.0
    for number, cell in enumerate(group.cells, 1):
        if cell.name in rows and not again.asks_for(rows[cell.name], made_by):
            continue
        if cell.needs and not (data / cell.needs).exists():
            results().print(f"{group.name} {cell.name}: left out, {cell.needs} is not there")
            continue
        results().print(f"{group.name} {number}/{len(group.cells)}: {cell.name}")
        begun_s, started_s = time.process_time(), time.monotonic()
        row = cell.run(data)
        cpu_s, wall_s = time.process_time() - begun_s, time.monotonic() - started_s
        took = {"cpu_s": round(cpu_s, 1), "wall_s": round(wall_s, 1)}
        rows[cell.name] = {**row, **made_by._asdict(), **took}
        write_rows(folder, group, rows)
        spent_s += cpu_s
    if spent_s:
        results().print(f"{group.name}: {spent_s:.0f} s of one core")
    return rows
