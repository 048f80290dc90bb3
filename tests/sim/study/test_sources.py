"""Every row of the study was made by sources that this repository's history holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scheduling_sim.study.cells import Group
from scheduling_sim.study.groups import GROUPS
from scheduling_sim.study.page import read_rows

ROOT = Path(__file__).parents[3]


def git(*arguments: str, given: str = "") -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, input=given, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def trees() -> set[str]:
    """Return the tree of `src`, as rows name it, of every commit up to this one."""
    try:
        top = Path(git("rev-parse", "--show-toplevel").strip())
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git repository, so there is no history to look in")
    if top.resolve() != ROOT.resolve():
        pytest.skip(f"these files lie inside the repository of {top.name}, which is not theirs")
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("the clone is shallow: it lacks the commits whose trees rows name")
    commits = git("rev-list", "HEAD").split()
    names = "".join(f"{commit}:src\n" for commit in commits)
    found = git("cat-file", "--batch-check=%(objectname) %(objecttype)", given=names)
    return {line.split()[0][:12] for line in found.splitlines() if line.endswith(" tree")}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_row_names_a_tree_of_this_history(group: Group, trees: set[str]) -> None:
    """A commit that was rebased before it landed is in no clone; a tree made of it may be."""
    rows = read_rows(ROOT / "docs" / "evaluation", group)
    lost = {name: row.get("tree") for name, row in rows.items() if row.get("tree") not in trees}
    assert lost == {}, f"flare sim study --only {group.name} --stale on a landed commit makes them"


def test_the_tree_of_this_commit_is_among_them(trees: set[str]) -> None:
    """The test above cannot pass because nothing was found, nor because everything is."""
    assert git("rev-parse", "--short=12", "HEAD:src").strip() in trees
    assert not trees & {"unknown", "0" * 12}
