"""What others may rely on: the names of the core, and that it needs nothing but NumPy."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

import helios.scheduler
from helios.scheduler import ScheduledPlan, Scheduler

CORE = pathlib.Path(helios.scheduler.__file__).parent
NAMES = (
    *("Scheduler", "PolicyConfig", "GraphDescriptor", "GraphKind", "RowAllocation", "RequestSpec"),
    *("RequestHandle", "Fence", "ScheduledPlan", "ScheduledStep", "CompletionRecord"),
    *("ExecutionTiming", "GeneratedToken", "SelectionReason"),
)
CALLS = (
    *("configure_policy", "admit", "cancel", "advance_to", "plan", "commit", "complete"),
    *("complete_with_survival", "complete_packed_round", "complete_packed_round_with_survival"),
    *("published_output", "explain"),
)


def test_the_names_of_the_surface_exist() -> None:
    """They are fixed (decisions, section 9)."""
    for name in NAMES:
        assert name in helios.scheduler.__all__
        assert hasattr(helios.scheduler, name)
    for name in CALLS:
        assert callable(getattr(Scheduler, name))
    for name in ("selection_value_rate", "selection_log_scale"):
        assert callable(getattr(ScheduledPlan, name))


@pytest.mark.parametrize("path", sorted(CORE.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_imports_the_standard_library_and_numpy_alone(path: pathlib.Path) -> None:
    """Nor anything else of the project (decisions, section 9)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module is not None
            found.append(node.module)
    for module in found:
        root = module.partition(".")[0]
        is_own = module == "helios.scheduler" or module.startswith("helios.scheduler.")
        assert is_own or root == "numpy" or root in sys.stdlib_module_names, module
