"""Acceptance estimates by source: prior, ageing, censoring, survival values, optimistic reads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.scheduler import InvalidRequestError
from helios.scheduler.acceptance import COPY, LEARNED, MEAN, AcceptanceTable, Lanes
from tests.scheduler.oracles.speculation import Population, Row
from tests.support.snapshot import freeze

DEPTH = 5


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def flags(*values: bool) -> np.ndarray:
    return np.array(values, dtype=np.bool_)


def one_round(
    table: AcceptanceTable,
    offered: int,
    produced: int,
    generated: int,
    *,
    row: int = 0,
    source: int = LEARNED,
    terminated: bool = False,
    survival: list[float] | None = None,
) -> None:
    lanes = Lanes(
        rows=ints(row),
        offered=ints(offered),
        ceilings=ints(offered),
        produced=ints(produced),
        terminated=flags(terminated),
        generated=ints(generated),
    )
    values = None if survival is None else np.array([survival])
    table.observe(source, lanes, table.outcome(lanes), values)


def read(table: AcceptanceTable, row: int = 0, source: int = LEARNED) -> list[float]:
    return table.survivals(ints(row), source)[0].tolist()


def test_an_untrained_row_has_the_prior_at_weight_two() -> None:
    """Means start at 0.5**d and weights at two (utility 7.2)."""
    table = AcceptanceTable(3, DEPTH)
    for source in (LEARNED, COPY):
        assert read(table, 2, source) == [0.5, 0.25, 0.125, 0.0625, 0.03125]
        assert table.weights(ints(2), source, ints(0))[0].tolist() == [2.0] * DEPTH


def test_a_rejection_supplies_zero_to_the_longer_offered_prefixes_only() -> None:
    """Accepted prefixes observe one, longer offered ones zero, the rest nothing (7.3)."""
    table = AcceptanceTable(1, DEPTH)
    one_round(table, offered=4, produced=2, generated=2)
    weight = 2 * 2 ** (-2 / 128) + 1
    expected = [0.5 + 0.5 / weight, 0.25 - 0.25 / weight, 0.125 - 0.125 / weight, 0.0625, 0.03125]
    assert read(table) == pytest.approx(expected, abs=1e-15)
    weights = table.weights(ints(0), LEARNED, ints(2))[0]
    assert weights[:3].tolist() == pytest.approx([weight] * 3)
    assert weights[3:].tolist() == pytest.approx([weight - 1] * 2), "unobserved depths only age"


def test_termination_censors_the_remaining_suffix() -> None:
    """An end token hides what would have followed it; the accepted prefix still counts (7.3)."""
    table, prior = AcceptanceTable(1, DEPTH), AcceptanceTable(1, DEPTH)
    one_round(table, offered=6, produced=2, generated=2, terminated=True)
    assert read(table)[0] > 0.5
    assert read(table)[1:] == read(prior)[1:]
    at_two = table.weights(ints(0), LEARNED, ints(2))[0]
    assert at_two[0] > 2.0 > at_two[1]


@pytest.mark.parametrize("terminated", [False, True])
def test_width_one_rounds_observe_nothing(terminated: bool) -> None:
    """A lane of one target row measures cost alone (7.4)."""
    table = AcceptanceTable(1, DEPTH)
    before = freeze(table)
    one_round(table, offered=1, produced=1, generated=9, terminated=terminated)
    assert freeze(table) == before


def test_survival_replaces_the_binary_outcome_where_it_was_evaluated() -> None:
    """Survival values replace binary observations at their depths; censoring remains (7.5)."""
    table, binary = AcceptanceTable(1, DEPTH), AcceptanceTable(1, DEPTH)
    values = [0.875, 0.75, 0.5, 0.25, 0.125]
    one_round(table, offered=3, produced=1, generated=0, survival=values)
    assert read(table) == [0.5 + 0.375 / 3, 0.25 + 0.5 / 3, 0.125, 0.0625, 0.03125]
    one_round(binary, offered=3, produced=1, generated=0)
    assert read(binary)[:2] == [0.5 - 0.5 / 3, 0.25 - 0.25 / 3]
    ended = AcceptanceTable(1, DEPTH)
    garbage = [*values[:2], math.nan, math.inf, math.nan]
    one_round(ended, offered=3, produced=2, generated=0, survival=garbage, terminated=True)
    assert read(ended)[1:] == [0.25, 0.125, 0.0625, 0.03125]


def test_sources_are_separate() -> None:
    """Learned and copied proposals have their own acceptance (7.1)."""
    table = AcceptanceTable(1, DEPTH)
    one_round(table, offered=6, produced=6, generated=6, source=COPY)
    assert read(table, source=LEARNED) == read(AcceptanceTable(1, DEPTH))
    assert read(table, source=COPY)[0] > 0.6


def test_weights_halve_every_128_tokens_and_stop_at_128() -> None:
    """Estimates age with a half-life of 128 generated tokens and cap at weight 128 (7.2)."""
    table = AcceptanceTable(1, 1)
    assert table.weights(ints(0), LEARNED, ints(128))[0, 0] == 1.0
    assert table.weights(ints(0), LEARNED, ints(384))[0, 0] == 0.25
    for _ in range(200):
        one_round(table, offered=2, produced=2, generated=384)
    assert table.weights(ints(0), LEARNED, ints(384))[0, 0] == 128.0
    assert table.weights(ints(0), LEARNED, ints(512))[0, 0] == 64.0


def test_the_running_minimum_is_read_and_never_stored() -> None:
    """Means stay monotone in depth when read, never when stored (7.2)."""
    table = AcceptanceTable(1, 3)
    # A deep survival value that is large, then shallow rejections that do not reach that depth.
    one_round(table, offered=4, produced=4, generated=4)
    for _ in range(6):
        one_round(table, offered=2, produced=1, generated=5)
    shallow = read(table)[0]
    assert read(table) == [shallow] * 3
    assert table._cells[0, LEARNED, MEAN, 1] > shallow, "the deep history is kept as it was"
    for _ in range(20):
        one_round(table, offered=2, produced=2, generated=6)
    assert read(table)[1] == table._cells[0, LEARNED, MEAN, 1], (
        "and shows again once depth one recovers"
    )


def test_the_optimistic_estimate_is_bounded_and_shrinks_with_evidence() -> None:
    """min(1, mean + sqrt(ln 20 / (2 * aged weight))), monotone on read (7.6)."""
    table = AcceptanceTable(1, 2)
    assert table.optimistic(ints(0), LEARNED, ints(0))[0].tolist() == [1.0, 1.0]
    for _ in range(100):
        one_round(table, offered=3, produced=1, generated=1)
    weight = table.weights(ints(0), LEARNED, ints(1))[0, 0]
    expected = read(table)[0] + math.sqrt(math.log(20) / (2 * weight))
    assert table.optimistic(ints(0), LEARNED, ints(1))[0, 0] == pytest.approx(expected, rel=1e-15)
    assert table.optimistic(ints(0), LEARNED, ints(200_000))[0].tolist() == [1.0, 1.0]


def test_a_row_taken_out_and_put_back_is_the_same_bit_for_bit() -> None:
    """A preempted request keeps its estimates, and the copy does not follow the row (7.7)."""
    table = AcceptanceTable(2, DEPTH)
    one_round(table, offered=5, produced=3, generated=3, row=1)
    saved = table.take(1)
    before = freeze(saved)
    learned = read(table, 1)
    table.reset(1)
    assert read(table, 1) == read(AcceptanceTable(2, DEPTH))
    one_round(table, offered=2, produced=1, generated=3, row=1)
    assert freeze(saved) == before
    table.put(0, saved)
    assert read(table, 0) == learned


def test_a_seed_starts_later_rows_and_leaves_the_others_alone() -> None:
    """Preseeded histories apply to rows that are reset afterwards (7.8)."""
    table = AcceptanceTable(2, DEPTH)
    table.seed(LEARNED, [0.875, 0.75], 64.0)
    assert read(table, 0)[0] == 0.5
    table.reset(0)
    assert read(table, 0) == [0.875, 0.75, 0.125, 0.0625, 0.03125]
    assert table.weights(ints(0), LEARNED, ints(0))[0].tolist() == [64.0, 64.0, 2.0, 2.0, 2.0]
    assert read(table, 0, COPY)[0] == 0.5
    one_round(table, offered=2, produced=1, generated=1, row=0)
    table.reset(0)
    assert read(table, 0)[0] == 0.875, "learning never reaches the seed"


def test_later_requests_start_where_the_population_stands() -> None:
    """What others showed replaces the start of 7.2, by source, of nobody who is present (7.12)."""
    table = AcceptanceTable(3, DEPTH, population_weight=8.0)
    for count in range(1, 6):
        one_round(table, offered=4, produced=4, generated=4 * count, row=1)
    assert read(table, 0)[0] == 0.5, "a running request is not taught by another"
    table.reset(0)
    expected = [(2 * 0.5**d + 5) / 7 if d <= 3 else 0.5**d for d in range(1, DEPTH + 1)]
    assert read(table, 0) == pytest.approx(expected, abs=1e-15)
    assert table.weights(ints(0), LEARNED, ints(0))[0].tolist() == [7.0, 7.0, 7.0, 2.0, 2.0]
    assert read(table, 0, COPY)[0] == 0.5
    for count in range(6, 90):
        one_round(table, offered=4, produced=4, generated=4 * count, row=1)
    table.reset(2)
    assert table.weights(ints(2), LEARNED, ints(0))[0, 0] == 8.0, "others count as eight at most"
    _, informed = table.informed(ints(2), LEARNED, ints(0))
    assert not informed.any(), "forecasts price a prefix until the request shows something itself"
    one_round(table, offered=2, produced=2, generated=2, row=2)
    assert table.informed(ints(2), LEARNED, ints(2))[1][0].tolist() == [True] + [False] * 4


def test_a_seed_and_a_small_weight_leave_the_start_alone() -> None:
    """A seeded source is not taught (7.8); at a weight of two the start of 7.2 stays (7.12)."""
    seeded = AcceptanceTable(1, DEPTH, population_weight=8.0)
    seeded.seed(LEARNED, [0.875, 0.75], 64.0)
    seeded.reset(0)
    assert seeded.informed(ints(0), LEARNED, ints(0))[1][0].tolist() == [True, True] + [False] * 3
    for table, start in ((seeded, 0.875), (AcceptanceTable(1, DEPTH, population_weight=2.0), 0.5)):
        one_round(table, offered=4, produced=1, generated=1)
        table.reset(0)
        assert read(table)[0] == start
    one_round(seeded, offered=2, produced=1, generated=1, source=COPY)
    seeded.reset(0)
    assert read(seeded, source=COPY)[0] == pytest.approx(1 / 3), "the other source is taught"


def test_a_seed_may_be_where_the_population_starts() -> None:
    """A taught seed begins at its survivals and weight, which later starts never exceed (7.8)."""
    table = AcceptanceTable(1, DEPTH)
    table.seed(COPY, [0.75, 0.5], 4.0, is_taught=True)
    for count in range(1, 5):
        one_round(table, offered=2, produced=1, generated=count, source=COPY)
    table.reset(0)
    assert read(table, source=COPY)[0] == pytest.approx(4 * 0.75 / 8, rel=1e-15)
    assert table.weights(ints(0), COPY, ints(0))[0].tolist() == [4.0, 4.0, 2.0, 2.0, 2.0]
    assert read(table)[0] == 0.5, "the other source has neither seed nor population"
    for count in range(200):
        one_round(table, offered=4, produced=4, generated=4 * count, source=COPY)
    table.reset(0)
    assert read(table, source=COPY)[2] > 0.9
    assert table.weights(ints(0), COPY, ints(0))[0].tolist() == [4.0, 4.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize("survival", [False, True])
def test_the_population_is_the_mean_of_at_most_64_observations(survival: bool) -> None:
    """m <- m + (y - m)*k/(w + k), w <- min(w + k, 64); the rows of a round do not matter (7.12)."""
    source = np.random.default_rng(7)
    table, mirrored = (AcceptanceTable(4, DEPTH, population_weight=8.0) for _ in range(2))
    twin = Population(DEPTH)
    for step in range(1, 120):
        count = int(source.integers(1, 4))
        offered = source.integers(1, DEPTH + 2, count)
        produced = 1 + source.integers(0, offered)
        values = -np.sort(-source.random((count, DEPTH)), axis=1) if survival else None
        for found, rows in ((table, np.arange(count)), (mirrored, 3 - np.arange(count))):
            lanes = Lanes(rows, offered, offered, produced, None, ints(*[step * 8] * count))
            found.observe(LEARNED, lanes, found.outcome(lanes), values)
        twin.round(
            [
                {
                    d: float(d < produced[lane]) if values is None else float(values[lane, d - 1])
                    for d in range(1, offered[lane])
                }
                for lane in range(count)
            ]
        )
        for found in (table, mirrored):
            found.reset(0)
            means = found._cells[0, LEARNED, MEAN]
            assert means.tolist() == pytest.approx(twin.means, abs=1e-12)
            assert found.weights(ints(0), LEARNED, ints(0))[0].tolist() == twin.weights()
    assert twin.known[0] == 64.0


@pytest.mark.parametrize(
    ("survivals", "weight"),
    [
        ([], 4.0),
        ([0.5] * (DEPTH + 1), 4.0),
        ([0.5, 0.6], 4.0),
        ([1.1], 4.0),
        ([0.5, -0.1], 4.0),
        ([math.nan], 4.0),
        ([0.5, math.nan], 4.0),
        ([0.5], 1.9),
        ([0.5], 129.0),
        ([0.5], math.nan),
    ],
)
def test_a_malformed_seed_changes_nothing(survivals: list[float], weight: float) -> None:
    """Seeds are nonincreasing probabilities at a weight between 2 and 128 (7.8)."""
    table = AcceptanceTable(1, DEPTH)
    before = freeze(table)
    with pytest.raises(InvalidRequestError):
        table.seed(LEARNED, survivals, weight)
    assert freeze(table) == before


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[int, int, int, bool, bool]]]:
    """Rounds of three lanes: (offered, produced, generated, terminated, participates)."""
    counts = [0, 0, 0]
    rounds = []
    for _ in range(draw(st.integers(1, 12))):
        lanes = []
        for lane in range(3):
            offered = draw(st.integers(1, DEPTH + 1))
            produced = draw(st.integers(1, offered))
            counts[lane] += produced + draw(st.sampled_from([0, 0, 1, 128, 700]))
            lanes.append(
                (offered, produced, counts[lane], draw(st.booleans()), draw(st.booleans()))
            )
        rounds.append(lanes)
    return rounds


@settings(max_examples=150, deadline=None)
@given(history=histories(), survival=st.booleans())
def test_random_rounds_equal_the_twin(
    history: list[list[tuple[int, int, int, bool, bool]]], survival: bool
) -> None:
    """Every read equals the one-value-at-a-time twin; bounds hold at every step (7.2 to 7.6)."""
    table, twins = AcceptanceTable(3, DEPTH), [Row(DEPTH) for _ in range(3)]
    values = [0.9, 0.8, 0.4, 0.4, 0.0] if survival else None
    for lanes in history:
        taking = [(row, *lane) for row, lane in enumerate(lanes) if lane[4]]
        if not taking:
            continue
        rows, offered, produced, generated = (
            ints(*(entry[index] for entry in taking)) for index in range(4)
        )
        terminated = flags(*(entry[4] for entry in taking))
        lane = Lanes(rows, offered, offered, produced, terminated, generated)
        before = table._cells.copy()
        told = None if values is None else np.tile(values, (len(rows), 1))
        table.observe(LEARNED, lane, table.outcome(lane), told)
        for row, given_rows, tokens, at, ended, _ in taking:
            twins[row].round(given_rows, tokens, at, terminated=ended, survival=values)
            first_unseen = tokens - 1 if ended else given_rows - 1
            for old, new in zip(before[row, LEARNED], table._cells[row, LEARNED], strict=True):
                assert (old[first_unseen:] == new[first_unseen:]).all()
            assert (before[row, COPY] == table._cells[row, COPY]).all()
        now = ints(*(lane[2] for lane in lanes))
        everyone = ints(0, 1, 2)
        survivals = table.survivals(everyone, LEARNED)
        optimistic = table.optimistic(everyone, LEARNED, now)
        weights = table.weights(everyone, LEARNED, now)
        for row, twin in enumerate(twins):
            at = int(now[row])
            assert survivals[row].tolist() == pytest.approx(twin.survivals(), abs=1e-12)
            assert optimistic[row].tolist() == pytest.approx(twin.optimistic(at), abs=1e-12)
            aged = [cell.aged(at) for cell in twin.cells]
            assert weights[row].tolist() == pytest.approx(aged, rel=1e-12)
            assert all(w >= 2 * 2 ** (-at / 128) * (1 - 1e-12) for w in weights[row])
        means = table._cells[:, :, MEAN]
        assert ((means >= 0) & (means <= 1)).all()
        assert ((weights > 0) & (weights <= 128)).all()
        assert (np.diff(survivals, axis=1) <= 0).all()
        assert (np.diff(optimistic, axis=1) <= 0).all()
        assert (optimistic >= survivals).all()
        assert (optimistic <= 1).all()
