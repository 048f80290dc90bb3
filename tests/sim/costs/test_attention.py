"""Attention lookups against a grid whose every time is known by formula."""

from __future__ import annotations

import itertools
import math

import pytest

from scheduling_sim.costs.attention import AttentionGrid, Skew
from scheduling_sim.costs.interpolation import cell, line

CHUNK, CACHED = (16, 64, 256), (0, 64, 256)
LANES, CONTEXT = (1, 4, 16), (16, 64, 256)


def us(chunk: float, cached: float, lanes: float, context: float) -> float:
    """A multilinear law, which interpolation on any grid must reproduce exactly."""
    return 5 + chunk * (1 + cached / 10) + lanes * (2 + context / 3) + chunk * lanes / 7


def grid(skew: Skew = Skew()) -> AttentionGrid:  # noqa: B008
    """A complete small grid of that law."""
    return AttentionGrid(
        chunk=CHUNK,
        kv_prefill=CACHED,
        lanes=LANES,
        kv_pure=CONTEXT,
        pure=tuple(us(0, 0, n, kv) for n, kv in itertools.product(LANES, CONTEXT)),
        prompt=tuple(us(c, kp, 0, 0) for c, kp in itertools.product(CHUNK, CACHED)),
        mixed_lanes=LANES,
        kv_decode=CONTEXT,
        mixed=tuple(us(*key) for key in itertools.product(CHUNK, CACHED, LANES, CONTEXT)),
        skew=skew,
    )


def test_knots_and_points_between_and_beyond_follow_the_law() -> None:
    table = grid()
    assert table.decode_us(4, 64, 64) == pytest.approx(us(0, 0, 4, 64))
    assert table.decode_us(7, 100, 100) == pytest.approx(us(0, 0, 7, 100))
    assert table.decode_us(40, 9_000, 9_000) == pytest.approx(us(0, 0, 40, 9_000))
    assert table.chunk_us(100, 30) == pytest.approx(us(100, 30, 0, 0))
    assert table.chunk_us(100, 5_000) == pytest.approx(us(100, 5_000, 0, 0))
    for key in itertools.product((16, 70, 256), (0, 33, 900), (1, 9, 50), (16, 99, 4_000)):
        chunk, cached, lanes, context = key
        assert table.mixed_us(chunk, cached, lanes, context, context) == pytest.approx(us(*key))


def test_below_an_axis_the_floor_holds() -> None:
    table = grid()
    assert table.decode_us(1, 1, 1) == table.decode_us(1, 16, 16)
    assert table.chunk_us(1, 0) == table.chunk_us(16, 0)


def test_a_chunk_above_the_axis_costs_its_rows_at_their_mean_context() -> None:
    table = grid()
    # 1024 rows behind 100 see 100 + 512 keys on average, as 256 rows behind 484 do.
    assert table.chunk_us(1024, 100) == pytest.approx(4 * table.chunk_us(256, 484))
    beside = table.mixed_us(1024, 100, 4, 64, 64)
    lanes = table.mixed_us(256, 484, 4, 64, 64) - table.chunk_us(256, 484)
    assert beside == pytest.approx(4 * table.chunk_us(256, 484) + lanes)


def test_uneven_contexts_lie_between_mean_and_longest() -> None:
    table = grid(Skew((1, 16), (0.25, 0.25), (0.5, 1.5)))
    assert table.decode_us(4, 64, 64) == pytest.approx(us(0, 0, 4, 64))
    assert table.decode_us(4, 64, 104) == pytest.approx(us(0, 0, 4, 74))
    assert table.mixed_us(64, 64, 1, 64, 104) == pytest.approx(us(64, 64, 1, 84))
    # A fitted share above one would exceed the longest context itself.
    assert table.mixed_us(64, 64, 16, 64, 104) == pytest.approx(us(64, 64, 16, 104))


def test_several_chunks_keep_their_attended_area() -> None:
    table = grid()
    one = table.chunks_us([(64, 32)], 4, 64, 64)
    assert one == table.mixed_us(64, 32, 4, 64, 64)
    # 2 x (64 behind 128): 128 rows see 160 keys each, as 128 rows behind 96 do.
    assert table.chunks_us([(64, 128)] * 2, 4, 64, 64) == table.mixed_us(128, 96, 4, 64, 64)
    # 4 x (64 behind nothing) attend 4 * 64^2 / 2 pairs, as one chunk of 128 does.
    assert table.chunks_us([(64, 0)] * 4, 0, 0, 0) == pytest.approx(table.chunk_us(128, 0))


def test_a_step_waits_for_its_longest_chunk() -> None:
    times = [float(c) for c in CHUNK for _ in CACHED]
    times[2] = 900.0  # 16 rows behind 256 tokens: few rows, long walk
    table = grid()
    slow = AttentionGrid(
        CHUNK, CACHED, LANES, CONTEXT, table.pure, tuple(times), LANES, CONTEXT, table.mixed
    )
    assert slow.chunks_us([(256, 0), (16, 256)], 0, 0, 0) == 900.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("chunk", (16, 16, 256), r"attention\.chunk: knots must ascend"),
        ("lanes", (1,), r"attention\.lanes: an axis needs at least two"),
        ("pure", (1.0,), r"attention\.pure: 1 values, the axes need 9"),
        ("prompt", (0.0,) * 9, r"attention\.prompt: times must be positive"),
        ("mixed", (math.inf,) * 81, r"attention\.mixed: times must be positive"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(field: str, value: object, message: str) -> None:
    table = grid()
    fields = {name: getattr(table, name) for name in AttentionGrid.__slots__}
    with pytest.raises(ValueError, match=message):
        AttentionGrid(**{**fields, field: value})  # type: ignore[arg-type]


def test_skew_columns_have_one_length() -> None:
    with pytest.raises(ValueError, match="same length"):
        Skew((1, 2), (0.1,), (0.1, 0.2))


def test_cells_at_the_ends_of_an_axis() -> None:
    assert cell((10, 20, 40), 5) == (0, 0.0)
    assert cell((10, 20, 40), 20) == (1, 0.0)
    assert cell((10, 20, 40), 40) == (1, 1.0)
    assert cell((10, 20, 40), 80) == (1, 3.0)
    assert line((10, 20, 40), (1.0, 2.0, 4.0), 80) == pytest.approx(8.0)
