"""Break the choice modules one small way at a time and see whether a test notices.

    python tools/mutation.py                      every module of the table, a seeded sample each
    python tools/mutation.py cohort lookahead     these modules
    python tools/mutation.py cohort --sample 0    every mutant of a module
    python tools/mutation.py --list               modules, their tests, how many mutants

A mutant changes one operator, comparison, constant, call of min or max, or boolean of the module's
own code. It runs in a forked child that imports the changed source instead of the file, so nothing
on disk changes and start-up is paid once. A mutant that no test kills is printed as a survivor with
its line, to be explained or answered by a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

PAID_ONCE = (np, pytest)
"""Imported before forking, so that no child pays for them."""

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "helios" / "scheduler"
PATIENCE_S = 60
"""A mutant that makes a test run this long is stuck, which counts as noticed."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmin": "argmax",
    "argmax": "argmin",
    "floor": "ceil",
    "any": "all",
    "all": "any",
}


def tests_of(module: str) -> list[str]:
    """Return the test files that name a module of the core, its own one first."""
    folder = ROOT / "tests" / "scheduler"
    own = folder / f"test_{module}.py"
    others = [
        path
        for path in sorted(folder.glob("test_*.py"))
        if path != own and f"scheduler.{module} import" in path.read_text(encoding="utf-8")
    ]
    extra = [folder / name for name in EXTRA.get(module, ())]
    shared = [folder / name for name in SHARED]
    return [str(path) for path in dict.fromkeys([own, *extra, *others, *shared]) if path.exists()]


SHARED = (
    "test_spec_selection.py",
    "test_spec_prerequisites.py",
    "test_traces.py",
)
"""Whole-decision tests, run after a module's own."""
EXTRA = {
    "streams": ("test_generation.py", "test_rounds.py"),
    "rounds": ("test_rounds.py", "test_generation.py"),
    "generation": ("test_generation.py", "test_rounds.py"),
    "selection": (
        "test_policy.py",
        "test_exploration.py",
        "test_generation.py",
        "test_rounds.py",
    ),
    "screening": ("test_generation.py", "test_widths.py"),
    "bounds": ("test_screening.py", "test_generation.py", "test_rounds.py"),
    "pricing": ("test_screening.py", "test_generation.py"),
    "roster": ("test_rounds.py", "test_generation.py", "test_spec_rounds.py"),
    "geometry": (
        "test_screening.py",
        "test_rounds.py",
        "test_generation.py",
        "test_pairs.py",
        "test_standing.py",
    ),
    "scene": ("test_screening.py", "test_rounds.py", "test_generation.py"),
    "lanes": ("test_screening.py", "test_rounds.py", "test_generation.py"),
    "prefills": (
        "test_candidates.py",
        "test_spec_costs.py",
        "test_oracle_selection.py",
        "test_generation.py",
    ),
    "paging": ("test_growth.py", "test_growth_requests.py", "test_hold_and_wait.py"),
    "stages": ("test_image_requests.py",),
    "checkpoints": ("test_checkpoint_requests.py",),
    "exploration": ("test_acceptance_learning.py",),
    "dominance": ("test_rounds.py", "test_generation.py", "test_pairs.py"),
    "prompts": ("test_generation.py", "test_spec_costs.py"),
    "pairs": ("test_oracle_preparing.py",),
    "roles": ("test_pairs.py", "test_oracle_preparing.py"),
    "packing": ("test_pairs.py", "test_oracle_preparing.py"),
    "chains": ("test_pairs.py", "test_oracle_preparing.py"),
    "learning": ("test_acceptance_learning.py",),
    "refresh": ("test_exploration.py",),
    "standing": ("test_tenant_histories.py",),
}
"""Tests of a module that do not carry its name."""
MODULES = (
    "knapsack",
    "sequence",
    "allocation",
    "continuation",
    "dominance",
    "selection",
    "ledger",
    "learning",
    "refresh",
    "prompts",
    "streams",
    "rounds",
    "generation",
    "roles",
    "packing",
    "pairs",
    "chains",
    "candidates",
    "policy",
    "utility",
    "service",
    "cost",
    "standing",
    "window",
    "tenants",
    "retention",
    "preemption",
    "cohort",
    "widths",
    "screening",
    "bounds",
    "pricing",
    "roster",
    "scene",
    "blocks",
    "geometry",
    "lanes",
    "prefills",
    "lookahead",
    "reference",
    "prompt_class",
    "waiting",
    "shapes",
    "images",
    "stages",
    "exploration",
    "checkpoints",
    "growth",
    "paging",
)
"""The choice modules: those that decide what runs, who is in it, or what is given up, and those
that the decision reads its values and bounds from."""


class _Mutator(ast.NodeTransformer):
    """Applies the mutation number `target` of a tree, counting in one fixed order."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.count = 0
        self.line = 0
        self.what = ""

    def _hit(self, node: ast.AST, what: str) -> bool:
        self.count += 1
        if self.count - 1 != self.target:
            return False
        self.line, self.what = getattr(node, "lineno", 0), what
        return True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Annotations and docstrings are no behaviour.
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._swap_operator(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._swap_operator(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self._swap_operator(node)

    def _swap_operator(self, node: ast.BinOp | ast.AugAssign | ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        swap = SWAPS.get(type(node.op))
        if swap and self._hit(node, f"{type(node.op).__name__} -> {swap.__name__}"):
            node.op = swap()  # type: ignore[assignment]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for index, operator in enumerate(node.ops):
            swap = SWAPS.get(type(operator))
            if swap and self._hit(node, f"{type(operator).__name__} -> {swap.__name__}"):
                node.ops[index] = swap()  # type: ignore[call-overload]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, (ast.USub, ast.Not)) and self._hit(
            node, f"{type(node.op).__name__} dropped"
        ):
            return node.operand
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            if self._hit(node, f"{value} -> {not value}"):
                return ast.copy_location(ast.Constant(not value), node)
        elif isinstance(value, (int, float)) and self._hit(node, f"{value} -> {value + 1}"):
            return ast.copy_location(ast.Constant(value + 1), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        other = NAMES.get(node.id)
        if other and self._hit(node, f"{node.id} -> {other}"):
            node.id = other
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        other = NAMES.get(node.attr)
        if other and self._hit(node, f"{node.attr} -> {other}"):
            node.attr = other
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if self._hit(node, "branches of a conditional swapped"):
            node.body, node.orelse = node.orelse, node.body
        return node


def mutants_of(module: str) -> Iterator[tuple[int, str, ast.Module]]:
    """Yield (line, what was changed, changed tree) for every mutant of a module."""
    original = ast.parse((CORE / f"{module}.py").read_text(encoding="utf-8"))
    number = 0
    while True:
        mutator = _Mutator(number)
        tree = ast.fix_missing_locations(mutator.visit(copy.deepcopy(original)))
        if not mutator.what:
            return
        yield mutator.line, mutator.what, tree
        number += 1


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Supplies one module from a tree instead of its file."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.name = f"helios.scheduler.{module}"
        self.path = str(CORE / f"{module}.py")
        self.tree = tree

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self.path)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


def is_noticed(module: str, tree: ast.Module, tests: list[str]) -> bool:
    """Run the tests on the mutant in a child; True when they fail, hang or cannot start."""
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        signal.alarm(PATIENCE_S)
        code = 1
        try:
            sys.meta_path.insert(0, _Changed(module, tree))
            code = pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests])
        finally:
            os._exit(0 if code == 0 else 1)
    _, status = os.waitpid(child, 0)
    return status != 0


def run(module: str, sample: int, seed: int) -> tuple[int, int]:
    """Print the survivors of one module; return (mutants run, survivors)."""
    tests = tests_of(module)
    mutants = list(mutants_of(module))
    chosen = sorted(range(len(mutants)))
    if sample and sample < len(mutants):
        chosen = sorted(random.Random(f"{seed} {module}").sample(chosen, sample))
    print(f"{module}: {len(chosen)} of {len(mutants)} mutants, {len(tests)} test files", flush=True)
    survivors = 0
    started = time.monotonic()
    for index in chosen:
        line, what, tree = mutants[index]
        if not is_noticed(module, tree, tests):
            survivors += 1
            print(f"  SURVIVED {module}.py:{line}: {what}", flush=True)
    spent = time.monotonic() - started
    print(f"  {len(chosen) - survivors} noticed, {survivors} survived, {spent:.0f} s", flush=True)
    return len(chosen), survivors


def main() -> int:
    """Run the command line; the exit status is 1 when a mutant survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="modules of helios.scheduler (default: all)")
    parser.add_argument("--sample", type=int, default=30, help="mutants per module, 0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the table and stop")
    options = parser.parse_args()
    modules = options.modules or list(MODULES)
    for module in modules:
        if not (CORE / f"{module}.py").exists():
            parser.error(f"helios.scheduler has no module {module}")
    if options.list:
        for module in modules:
            names = [Path(path).name for path in tests_of(module)]
            print(f"{module}: {len(list(mutants_of(module)))} mutants; {', '.join(names)}")
        return 0
    totals = [run(module, options.sample, options.seed) for module in modules]
    total, survivors = (sum(column) for column in zip(*totals, strict=True))
    print(f"{total} mutants, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
