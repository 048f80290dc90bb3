"""H200 tables: composed from matrix products and attention of whole prompts."""

from __future__ import annotations

import gzip
import importlib.resources
import sys
from pathlib import Path

import pytest
from tools.derive_costs import derive_h200

from scheduling_sim.costs.composed import ComposedCosts
from scheduling_sim.costs.h200 import BASE, Products, moved_us, parquet_rows
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.costs.models import H200_SHAPES
from scheduling_sim.costs.shipped import load_shipped, shipped_names

BANDWIDTH = 4.8e12


def test_every_shape_is_shipped() -> None:
    assert all(name in shipped_names() for name in H200_SHAPES)


@pytest.mark.parametrize("name", sorted(H200_SHAPES))
def test_one_decode_lane_reads_the_active_weights(name: str) -> None:
    """No step is faster than memory allows, and a single lane is not twice as slow."""
    table = load_shipped(name)
    facts = table.facts
    costs = ComposedCosts(table)
    time = costs.step_ns(None, [LaneWork(1, 100, is_prompt=False)])
    if not facts.experts:
        weights = facts.weight_bytes / BANDWIDTH * 1e9
        assert weights < time < 1.6 * weights
    else:
        # 3.3 of 30.5 billion parameters are active for one token.
        weights = 3.3e9 * 2 / BANDWIDTH * 1e9
        assert weights < time < 4 * weights


def test_chunks_of_a_prompt_cost_at_least_the_whole_prompt() -> None:
    grid = load_shipped("h200/llama-3.1-8b").attention
    whole = grid.chunk_us(8192, 0)
    pieces = sum(grid.chunk_us(1024, 1024 * index) for index in range(8))
    assert whole <= pieces < 1.25 * whole


def test_a_mixed_step_pays_chunk_and_lanes_less_one_launch() -> None:
    grid = load_shipped("h200/llama-3.1-8b").attention
    assert not grid.mixed
    both = grid.mixed_us(512, 1000, 16, 700, 700)
    apart = grid.chunk_us(512, 1000) + grid.decode_us(16, 700, 700)
    assert both == pytest.approx(apart - grid.pure[0])


def test_an_operator_that_moves_bytes_has_a_floor_and_a_bandwidth() -> None:
    assert moved_us(0, 10) == 3.0
    assert moved_us(1000, 3840) == pytest.approx(4.0)


def test_missing_pyarrow_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'flare-helios\[sim\]'"):
        parquet_rows(Path("any.parquet"), {})


def test_a_missing_table_is_named() -> None:
    pytest.importorskip("pyarrow", reason="reading Parquet needs the extra `sim`")
    with pytest.raises(FileNotFoundError, match=r"absent\.parquet: no such table"):
        parquet_rows(Path("absent.parquet"), {})


def test_products_interpolate_between_measured_sizes(originals: Path) -> None:
    pytest.importorskip("pyarrow", reason="reading Parquet needs the extra `sim`")
    path = originals / BASE / "gemm" / "vllm" / "0.24.0" / "gemm_perf.parquet"
    products = Products(path)
    at = products.rows.index(512)
    known = {n: products.column(n, 4096)[at] for n in (16_384, 28_672, 51_200)}
    share = (28_672 - 16_384) / (51_200 - 16_384)
    between = known[16_384] + share * (known[51_200] - known[16_384])
    assert known[28_672] == pytest.approx(between)
    with pytest.raises(ValueError, match="no rows with"):
        parquet_rows(path, {"gemm_dtype": "int3"})


def test_the_shipped_tables_are_those_of_the_originals(originals: Path) -> None:
    pytest.importorskip("pyarrow", reason="reading Parquet needs the extra `sim`")
    folder = importlib.resources.files("scheduling_sim.costs") / "data"
    for name, data in derive_h200(originals):
        assert gzip.decompress((folder / name).read_bytes()) == gzip.decompress(data), name
