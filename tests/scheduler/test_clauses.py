"""The table of clauses names modules and tests that exist, and leaves no rule without a test."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "docs" / "clauses.md"
TESTS = pathlib.Path(__file__).parent
CORE = ROOT / "src" / "helios" / "scheduler"
OPEN = "open"


class Clause(NamedTuple):
    """One row of the table."""

    name: str
    rule: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


def clauses() -> list[Clause]:
    """The rows of the table, in its order."""
    found = []
    for line in TABLE.read_text().splitlines():
        if re.match(r"\| [A-Z]\d+ \|", line):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            name, rule, modules, tests = cells
            found.append(Clause(name, rule, _split(modules), _split(tests)))
    return found


def _split(cell: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in cell.split(",") if word.strip())


@functools.cache
def functions_of(path: pathlib.Path) -> frozenset[str]:
    """Every function that a test file defines, methods of test classes included."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing_test(reference: str) -> str | None:
    """Say what a reference lacks; None when it names a test or a golden trace."""
    if reference.startswith("benchmarks/"):
        return None if (ROOT / reference).is_file() else f"no benchmark {reference}"
    if reference.startswith("traces/"):
        return None if (TESTS / reference).is_file() else f"no golden trace {reference}"
    file, _, function = reference.partition("::")
    path = TESTS / f"{file}.py"
    if not path.is_file():
        return f"no test file {file}"
    if not function.startswith("test_") or function not in functions_of(path):
        return f"no test {function!r} in {file}"
    return None


SETTLED = [clause for clause in clauses() if clause.tests != (OPEN,)]


def test_ids_are_unique_and_the_table_is_whole() -> None:
    """A truncated page, or a row that lost a cell, does not pass as a smaller table."""
    names = [clause.name for clause in clauses()]
    assert len(names) == len(set(names))
    assert len(names) >= 343
    for letter in {name[0] for name in names}:
        numbers = sorted(int(name[1:]) for name in names if name[0] == letter)
        assert numbers == list(range(1, len(numbers) + 1)), f"a gap in the {letter} rows"


@pytest.mark.parametrize("clause", SETTLED, ids=lambda clause: clause.name)
def test_modules_and_tests_of_a_clause_exist(clause: Clause) -> None:
    """A renamed module or test is renamed here too."""
    assert clause.rule
    assert clause.modules
    missing = [
        f"no module {module}" for module in clause.modules if not (CORE / f"{module}.py").is_file()
    ]
    missing += [text for text in map(missing_test, clause.tests) if text]
    assert not missing, f"{clause.name}: {'; '.join(missing)}"


def test_every_clause_has_a_test() -> None:
    """A rule without a test is a hope."""
    unproven = [c.name for c in clauses() if c.tests == (OPEN,) or not c.tests]
    assert not unproven


def test_wrong_references_are_found() -> None:
    """The check itself can fail."""
    assert missing_test("test_clauses::test_every_clause_has_a_test") is None
    assert missing_test("test_clauses::test_of_a_dream") == (
        "no test 'test_of_a_dream' in test_clauses"
    )
    assert missing_test("test_dreams::test_x") == "no test file test_dreams"
    assert missing_test("traces/dream.txt") == "no golden trace traces/dream.txt"
