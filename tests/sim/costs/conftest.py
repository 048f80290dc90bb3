"""The public originals, where they lie beside the project, and graphs that several files use."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling_sim.costs.composed import ComposedCosts
from scheduling_sim.costs.shipped import load_shipped

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture
def originals() -> Path:
    """The folder of public data; the test skips where it is not."""
    if not (DATA / "llmservingsim").is_dir():
        pytest.skip("the public originals (../shared/data) are not here")
    return DATA


@pytest.fixture(scope="session")
def llama() -> ComposedCosts:
    """Llama-3.1-8B on an RTX PRO 6000, from the shipped table."""
    return ComposedCosts(load_shipped("rtx-pro-6000/llama-3.1-8b"))
