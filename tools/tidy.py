"""House rules that no linter knows; run by `make check`. The limits only ever go down."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_CODE_LINES = 400
MAX_FUNCTION_CODE_LINES = 50
MARKER = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
MACHINE_PATH = re.compile(r"(^|[\s\"'`(=])/(work|farm|root|home)/")


def code_lines(source: str, tree: ast.AST) -> set[int]:
    """Return the numbers of lines that are neither blank, comment-only nor docstring."""
    lines = {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def check_sizes(path: Path, source: str) -> list[str]:
    """Check file and function sizes of one source file; a signature does not count."""
    tree = ast.parse(source)
    lines = code_lines(source, tree)
    found = []
    if len(lines) > MAX_FILE_CODE_LINES:
        found.append(f"{path}: {len(lines)} code lines (limit {MAX_FILE_CODE_LINES})")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
            size = sum(number in lines for number in body)
            if size > MAX_FUNCTION_CODE_LINES:
                found.append(
                    f"{path}:{node.lineno}: {node.name} has {size} code lines "
                    f"(limit {MAX_FUNCTION_CODE_LINES})"
                )
    return found


def check_core(path: Path, source: str) -> list[str]:
    """The scheduler core decides without sets, hashes and identities."""
    found = []
    for node in ast.walk(ast.parse(source)):
        banned = None
        if isinstance(node, (ast.Set, ast.SetComp)):
            banned = "a set"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"set", "hash", "id"}
        ):
            banned = f"{node.func.id}()"
        if banned:
            found.append(f"{path}:{node.lineno}: {banned} in the core (decisions need an order)")
    return found


def check_text(path: Path, source: str) -> list[str]:
    """Markers name an issue; no path of a machine is written down."""
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        if MARKER.search(line) and path.name != "tidy.py":
            found.append(f"{path}:{number}: a marker without an issue number")
        if MACHINE_PATH.search(line) and path.name != "tidy.py":
            found.append(f"{path}:{number}: a path of some machine")
    return found


def main() -> int:
    """Print every finding; return 1 when there is one."""
    found = []
    for path in sorted(ROOT.glob("src/**/*.py")):
        relative, source = path.relative_to(ROOT), path.read_text()
        found += check_sizes(relative, source)
        if "src/helios/scheduler" in relative.as_posix():
            found += check_core(relative, source)
    patterns = ("src/**/*.py", "tests/**/*.py", "benchmarks/*.py", "tools/*.py", "docs/**/*.md")
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            found += check_text(path.relative_to(ROOT), path.read_text())
    print("\n".join(found) if found else "tidy: nothing to say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
