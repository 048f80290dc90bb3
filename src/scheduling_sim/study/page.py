"""Results on disk and in the page: one JSON file per group, one table between two markers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scheduling_sim.study.cells import Group, Row

RESULTS_VERSION: Final = 1
_END: Final = "<!-- end -->"


def read_rows(folder: Path, group: Group) -> dict[str, Row]:
    """Return the rows by cell that were found before; empty without a file.

    Raises ValueError, naming the file, for one of another version.
    """
    path = _path_of(folder, group)
    if not path.is_file():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("version") != RESULTS_VERSION:
        raise ValueError(f"{path}: version {document.get('version')}, expected {RESULTS_VERSION}")
    rows: dict[str, Row] = document["rows"]
    return rows


def write_rows(folder: Path, group: Group, rows: Mapping[str, Row]) -> None:
    """Write the rows of a group in the order of its cells; rows of cells that are gone go."""
    document = {
        "version": RESULTS_VERSION,
        "group": group.name,
        "command": f"flare sim study --only {group.name}",
        "rows": {cell.name: rows[cell.name] for cell in group.cells if cell.name in rows},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    path = _path_of(folder, group)
    # Whoever stops the study between two cells keeps every row: a file is old or new, never half.
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def with_table(page: str, group: Group, rows: Mapping[str, Row]) -> str:
    """Return the page with the group's table in its place.

    Raises ValueError where the page has no place for it.
    """
    start = f"<!-- table: {group.name} -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"the page has no {start!r} followed by {_END!r}")
    return f"{before}{start}\n{group.table(rows)}\n{_END}{after}"


def _path_of(folder: Path, group: Group) -> Path:
    return folder / f"{group.name}.json"
