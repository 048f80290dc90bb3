"""The study: its frame by one small cell, and the page against the committed results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from flare.errors import FlareError
from flare.sim import study
from flare.sim.provenance import source
from scheduling_sim.report.plots.style import new_figure, svg_bytes
from scheduling_sim.study import long_prompt, speculation, tenants
from scheduling_sim.study.cells import Cell, Group, Row, Verdict, number, ordered, text_of
from scheduling_sim.study.groups import GROUPS
from scheduling_sim.study.page import read_rows, with_table, write_rows
from scheduling_sim.study.plots import PLOTS, StudyPlot

ROOT = Path(__file__).parents[3]
PAGE = "# Page\n<!-- table: small -->\nold\n<!-- end -->\nAfter.\n"


def small_group(calls: list[str]) -> Group:
    def run(name: str) -> Cell:
        def answer(data: Path) -> Row:
            calls.append(name)
            return {"name": name, "value": 1234.5}

        return Cell(name, answer)

    missing = dataclasses.replace(run("b"), needs="not/there.csv")
    return Group("small", (run("a"), missing, run("c")), ("name", "value"))


def test_missing_cells_run_once_and_the_table_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(study, "GROUPS", (small_group(calls),))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    study.run_study([], page, tmp_path)
    study.run_study([], page, tmp_path)
    assert calls == ["a", "c"], "a row that is there is not run again; one without data never"
    study.run_study([], page, tmp_path, again=study.Again(every=True))
    assert calls == ["a", "c", "a", "c"]
    text = page.read_text()
    assert (
        "| a | 1234 |\n| c | 1234 |\n\nLeft out, for want of data or time: b.\n<!-- end -->" in text
    )
    assert text.endswith("After.\n")
    document = json.loads((tmp_path / "page" / "small.json").read_text())
    assert document["command"] == "flare sim study --only small"


def test_a_study_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of other sources stay until their cell has run; those of these are left alone."""
    calls: list[str] = []
    group = small_group(calls)
    monkeypatch.setattr(study, "GROUPS", (group,))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    study.run_study([], page, tmp_path)
    rows = dict(read_rows(tmp_path / "page", group))
    assert (rows["a"]["commit"], rows["a"]["tree"]) == source()
    assert isinstance(rows["a"]["cpu_s"], float)
    old = {key: value for key, value in rows["c"].items() if key != "tree"}
    for made_before, runs in (
        ({**rows["a"], "commit": "rebased"}, []),
        ({**rows["a"], "tree": "older"}, ["a"]),
    ):
        calls.clear()
        write_rows(tmp_path / "page", group, {"a": made_before, "c": old})
        study.run_study([], page, tmp_path, again=study.Again(stale=True))
        assert calls == [*runs, "c"], "a row without a tree is older than trees"

    def stop(data: Path) -> Row:
        raise KeyboardInterrupt

    stopped = dataclasses.replace(group, cells=(*group.cells[:2], Cell("c", stop)))
    monkeypatch.setattr(study, "GROUPS", (stopped,))
    with pytest.raises(KeyboardInterrupt):
        study.run_study([], page, tmp_path, again=study.Again(every=True))
    assert read_rows(tmp_path / "page", group).keys() == {"a", "c"}


def test_plots_are_drawn_again_when_their_groups_were_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(rows: Mapping[str, Row]) -> Figure:
        drawn.append(set(rows))
        return new_figure(1, 1)

    monkeypatch.setattr(study, "GROUPS", (small_group([]),))
    monkeypatch.setattr(
        study, "PLOTS", (StudyPlot("one", ("small",), draw), StudyPlot("two", ("other",), draw))
    )
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    study.run_study([], page, tmp_path)
    assert drawn == [{"a", "c"}]
    assert (tmp_path / "page" / "one.svg").is_file()


def test_verdicts_stand_under_the_table() -> None:
    def judged(rows: Mapping[str, Row]) -> list[Verdict]:
        value = number(rows["a"], "value")
        return [
            Verdict("value", f"{value:g}", "at least 2000", value >= 2000, "38 % short", "Why."),
            Verdict("rows", str(len(rows)), "1", is_met=True),
        ]

    group = dataclasses.replace(small_group([]), verdicts=judged)
    table = group.table({"a": {"name": "a", "value": 1234.5}})
    assert table.endswith(
        "\n\n- value: 1234.5; bar at least 2000: **missed** (38 % short). Why.\n"
        "- rows: 1; bar 1: **met**."
    )
    assert "bar" not in group.table({}), "without rows there is nothing to judge"
    with pytest.raises(TypeError, match="name is 'a', not a number"):
        number({"name": "a"}, "name")


def test_bad_input_is_named(tmp_path: Path) -> None:
    group = small_group([])
    with pytest.raises(ValueError, match="no group 'x'; there are small"):
        ordered((group,), ["x"])
    with pytest.raises(ValueError, match="the page has no '<!-- table: small -->'"):
        with_table("# nothing", group, {})
    write_rows(tmp_path, group, {"a": {"name": "a", "value": 1}})
    path = tmp_path / "small.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(ValueError, match=r"small\.json: version 9, expected 1"):
        read_rows(tmp_path, group)
    with pytest.raises(FlareError, match="no group 'x'"):
        study.run_study(["x"], tmp_path / "page.md", tmp_path)


def test_text_of_values() -> None:
    values = ("a", 3, None, 0.98765, 12.345, 1234.5)
    assert [text_of(value) for value in values] == ["a", "3", "-", "0.988", "12.3", "1234"]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_page_shows_the_committed_rows(group: Group) -> None:
    """Table and data cannot part; every group has a place in the page."""
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    rows = read_rows(ROOT / "docs" / "evaluation", group)
    assert with_table(page, group, rows) == page
    assert rows, f"{group.name} was never run"


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_every_plot_is_drawn_from_the_committed_rows_and_shown(plot: StudyPlot) -> None:
    """The file itself is not compared: another version of the plotting library draws others."""
    known = {group.name: group for group in GROUPS}
    rows = [read_rows(ROOT / "docs" / "evaluation", known[name]) for name in plot.groups]
    assert svg_bytes(plot.draw(*rows)).startswith(b"<?xml")
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert f"](evaluation/{plot.name}.svg)" in page
    assert (ROOT / "docs" / "evaluation" / f"{plot.name}.svg").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name"),
    [
        (long_prompt.GROUP, "mixed chunked"),
        (speculation.GROUP, "strong-draft 1"),
        (tenants.GROUP, "mixed 16 vtc"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cell_has_every_column_and_is_the_same_twice(group: Group, name: str) -> None:
    cell = next(cell for cell in group.cells if cell.name == name)
    row = cell.run(Path("nowhere"))
    assert set(group.columns) <= set(row)
    assert cell.run(Path("nowhere")) == row
