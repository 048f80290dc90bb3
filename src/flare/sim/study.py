"""`flare sim study`: runs the missing cells of the study and rewrites the tables of its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flare.console import results
from flare.errors import FlareError
from flare.sim.provenance import source_commit
from scheduling_sim.study.cells import Group, Row, ordered
from scheduling_sim.study.groups import GROUPS
from scheduling_sim.study.page import read_rows, with_table, write_rows


def run_study(only: Sequence[str], page: Path, data: Path, *, force: bool) -> None:
    """Run what is missing (or all, with `force`), keep every row at once, rewrite the page.

    Raises FlareError for an unknown group or a page that has no place for a table.
    """
    folder = page.with_suffix("")
    try:
        groups = ordered(GROUPS, only)
        text = page.read_text(encoding="utf-8")
        for group in groups:
            rows = _run_group(group, folder, data, force=force)
            text = with_table(text, group, rows)
            page.write_text(text, encoding="utf-8")
    except (ValueError, OSError) as error:
        raise FlareError(str(error)) from error


def _run_group(group: Group, folder: Path, data: Path, *, force: bool) -> dict[str, Row]:
    commit = source_commit()
    rows = {} if force else dict(read_rows(folder, group))
    for number, cell in enumerate(group.cells, 1):
        if cell.name in rows:
            continue
        if cell.needs and not (data / cell.needs).exists():
            results().print(f"{group.name} {cell.name}: left out, {cell.needs} is not there")
            continue
        results().print(f"{group.name} {number}/{len(group.cells)}: {cell.name}")
        rows[cell.name] = cell.run(data)
        write_rows(folder, group, rows, commit)
    return rows
