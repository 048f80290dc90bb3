"""Noise, drift and outliers: of the stated size, and the same for the same seed."""

from __future__ import annotations

import itertools
import statistics

import pytest

from helios.scheduler import GraphDescriptor, GraphKind
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.costs.table import Growth, TableCosts
from scheduling_sim.costs.variation import Variation, VariedCosts, varied

GRAPH = GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=4)
PREFILL = GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=64)
LANES = (LaneWork(1, 100, is_prompt=False),)
TABLE = TableCosts({"decode-b4": 2.0, "prefill-c64": 3.0})


def times(variation: Variation, count: int = 4000, seed: int = 7) -> list[int]:
    model = VariedCosts(TABLE, variation, seed=seed)
    return [model.step_ns(GRAPH, LANES) for _ in range(count)]


def test_noise_has_its_spread_and_leaves_the_mean() -> None:
    drawn = times(Variation(sigma=0.1))
    assert statistics.fmean(drawn) == pytest.approx(2_000_000, rel=0.01)
    assert statistics.stdev(drawn) == pytest.approx(200_000, rel=0.05)
    assert drawn == times(Variation(sigma=0.1))
    assert drawn != times(Variation(sigma=0.1), seed=8)


def test_drift_swings_by_its_amplitude_over_its_period() -> None:
    drawn = times(Variation(drift=0.2, drift_period_ns=1_000_000_000), count=500)
    assert max(drawn) == pytest.approx(2_400_000, rel=0.001)
    assert min(drawn) == pytest.approx(1_600_000, rel=0.001)
    assert all(abs(a - b) < 7_000 for a, b in itertools.pairwise(drawn))


def test_outliers_are_as_frequent_and_as_long_as_stated() -> None:
    drawn = times(Variation(outlier_probability=0.05, outlier_factor=8))
    assert {2_000_000, 16_000_000} == set(drawn)
    assert drawn.count(16_000_000) / len(drawn) == pytest.approx(0.05, abs=0.015)


def test_nothing_to_vary_leaves_the_model_itself() -> None:
    assert varied(TABLE, Variation(), seed=1) is TABLE
    assert varied(TABLE, Variation(drift=0.1), seed=1) is not TABLE


@pytest.mark.parametrize(
    "fields",
    [
        {"sigma": -0.1},
        {"drift": 1.0},
        {"drift_period_ns": 0},
        {"outlier_probability": 1.5},
        {"outlier_factor": 0.5},
    ],
)
def test_variations_that_cannot_be_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))} must be"):
        Variation(**fields)  # type: ignore[arg-type]


def test_a_table_grows_by_cached_tokens_and_prompt_pairs() -> None:
    growth = {"decode-b4": Growth(ns_per_cached_token=10), "prefill-c64": Growth(0, 2)}
    table = TableCosts({"decode-b4": 2.0, "prefill-c64": 3.0}, growth=growth)
    assert table.step_ns(GRAPH, LANES * 3) == 2_000_000 + 3 * 100 * 10
    prompt = (LaneWork(40, 1000, is_prompt=True),)
    assert table.step_ns(PREFILL, prompt) == 3_000_000 + 2 * 40 * 1020


def test_free_shapes_interpolate_on_rows() -> None:
    table = TableCosts({"decode-b4": 2.0}, free_rows={1: 2.0, 101: 4.0})
    assert table.step_ns(None, (LaneWork(50, 0, True), LaneWork(1, 9, False))) == 3_000_000
    with pytest.raises(ValueError, match="has no free shapes"):
        TABLE.step_ns(None, LANES)


def test_tables_that_cannot_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0 ms"):
        TableCosts({"decode-b4": 0.0})
    with pytest.raises(ValueError, match="growth of decode-b8"):
        TableCosts({"decode-b4": 1.0}, growth={"decode-b8": Growth()})
    with pytest.raises(ValueError, match="at least two points"):
        TableCosts({"decode-b4": 1.0}, free_rows={1: 2.0})
    with pytest.raises(ValueError, match="no cost for decode-b1"):
        TABLE.step_ns(GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=1), LANES)
    with pytest.raises(ValueError, match="5 lanes, it holds 4"):
        TABLE.step_ns(GRAPH, LANES * 5)
    with pytest.raises(ValueError, match="must not be negative"):
        Growth(-1)
