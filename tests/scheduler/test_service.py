"""Reference rates and the edges of the flow (docs/design/scheduling-utility.md 2.2, 2.4, 3.1)."""

from __future__ import annotations

import math

import pytest

from helios.scheduler.service import (
    PRICE_CEILING,
    PRICE_FLOOR,
    clamped,
    flow_over,
    machine_rate,
    reference_interval_ms,
)


def test_reference_interval_takes_the_fastest_batch_feasible_shape() -> None:
    """K*T/min(B, k): a large batch that few streams fill is not its nominal rate."""
    shapes = [(1, 3.0), (2, 4.0), (4, 7.0)]
    assert reference_interval_ms(4, 4, shapes) == 4 * 7.0 / 4
    assert reference_interval_ms(2, 2, shapes) == 2 * 4.0 / 2
    assert reference_interval_ms(6, 2, shapes) == 6 * 4.0 / 2
    assert reference_interval_ms(1, 1, shapes) == 3.0


def test_unmeasured_shapes_give_no_reference() -> None:
    """Zero is indeterminate; no duration is invented."""
    assert reference_interval_ms(3, 3, [(1, 0.0), (4, 0.0)]) is None
    assert reference_interval_ms(3, 3, [(1, 0.0), (4, 6.0)]) == 3 * 6.0 / 3
    assert machine_rate(10, [(16, 0.0)]) is None


def test_prompt_rate_counts_what_the_prompt_really_consumes() -> None:
    """A tail of ten tokens does not run at the rate of a full graph."""
    shapes = [(16, 4.0), (64, 8.0)]
    assert machine_rate(200, shapes) == 8.0
    assert machine_rate(10, shapes) == 2.5


@pytest.mark.parametrize(("price", "served"), [(1e120, 1), (1e-120, 1), (1e120, 0), (1e-120, 0)])
@pytest.mark.parametrize("adaptation_ms", [1e-308, 100.0, 1e308])
def test_no_step_leaves_the_range_of_prices(
    price: float, served: int, adaptation_ms: float
) -> None:
    """Rounding cannot make a price zero, negative, infinite or undefined."""
    for rate in (1e-300, 1.0, 1e300):
        after = flow_over(served, 5.0, rate, adaptation_ms).apply(price)
        assert math.isfinite(after)
        assert PRICE_FLOOR <= after <= PRICE_CEILING


def test_clamping_leaves_sane_prices_alone() -> None:
    """The bounds are for absurd policies only."""
    assert [clamped(p) for p in (0.0, 1e-9, 1e9, math.inf)] == [
        PRICE_FLOOR,
        1e-9,
        1e9,
        PRICE_CEILING,
    ]
