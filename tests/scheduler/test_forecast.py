"""Confidence forecasts: population priors, ceilings, ageing, and which estimate prices a prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.scheduler.acceptance import LEARNED, MEAN, AcceptanceTable, Lanes, Outcome
from helios.scheduler.calibration import Calibration
from helios.scheduler.forecast import ForecastTable, priced_survivals
from tests.scheduler.oracles.speculation import Cell
from tests.support.snapshot import freeze

DEPTH = 4
PRIOR = [0.5, 0.25, 0.125, 0.0625]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def table_of(rows: int = 2, programs: int = 2) -> ForecastTable:
    return ForecastTable(rows, DEPTH, range(programs))


def teach(
    table: ForecastTable,
    rows: np.ndarray,
    program: int,
    values: np.ndarray,
    ceilings: np.ndarray,
    generated: np.ndarray,
) -> None:
    never = np.zeros(len(rows), dtype=np.bool_)
    # What was offered and accepted does not matter to a forecast.
    table.observe(program, Lanes(rows, ceilings, ceilings, ceilings, never, generated), values)


def read(table: ForecastTable, row: int = 0, program: int = 0) -> list[float]:
    return table.means(ints(row), program)[0].tolist()


def test_a_forecast_starts_from_the_population_prior() -> None:
    """Untrained, the prior is 0.5**d for every program and the weight two (utility 7.9)."""
    table = table_of()
    assert read(table, 1, 1) == PRIOR
    assert table.weights(ints(1), ints(0))[0].tolist() == [2.0] * DEPTH
    assert table.weights(ints(1), ints(128))[0].tolist() == [1.0] * DEPTH, "the start ages too"


def test_the_prior_moves_a_sixty_fourth_toward_each_completed_probability() -> None:
    """Every lane of a completed round moves its program's prior, no other program's (7.9)."""
    table = table_of()
    values = np.array([[1.0, 0.5, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]])
    teach(table, ints(0, 1), 0, values, ints(5, 2), ints(1, 1))
    first = 0.5 + (1.0 - 0.5) / 64
    moved = [p + (y - p) / 64 for p, y in zip(PRIOR[1:], values[0, 1:], strict=True)]
    expected = [first - first / 64, *moved]
    assert table.prior(0).tolist() == pytest.approx(expected, abs=1e-15)
    assert table.prior(1).tolist() == PRIOR


def test_observations_stop_at_the_lanes_frozen_ceiling() -> None:
    """A ceiling of c teaches depths 1 to c - 1; the suffix retains its means (7.9)."""
    table = table_of()
    teach(table, ints(0), 0, np.array([[0.75, 0.75, 0.75, 0.75]]), ints(3), ints(0))
    assert table._cells[0, MEAN, :2].tolist() == [0.5 + 0.25 / 3, 0.25 + 0.5 / 3]
    assert read(table)[2:] == PRIOR[2:]
    assert table.prior(0).tolist()[2:] == PRIOR[2:]
    before = freeze(table)
    teach(table, ints(0), 0, np.array([[0.75, 0.75, 0.75, 0.75]]), ints(1), ints(5))
    assert freeze(table) == before, "a ceiling of one observes nothing"


def test_a_request_starts_from_the_prior_of_its_arrival_and_keeps_what_it_never_observed() -> None:
    """Rounds of others move the prior of newcomers; unobserved suffixes retain means (7.9)."""
    table = table_of()
    for step in range(200):
        teach(table, ints(0), 0, np.full((1, DEPTH), 0.9), ints(5), ints(step))
    assert read(table, 1, 0) == PRIOR
    table.reset(1)
    arrived = read(table, 1, 0)
    assert arrived[3] > 0.85
    assert read(table, 1, 1) == PRIOR, "the other program has its own population"
    teach(table, ints(1), 0, np.full((1, DEPTH), 0.75), ints(2), ints(1))
    own = table._cells[1, MEAN, 0]
    weight = 2 * 2 ** (-1 / 128) + 1
    assert own == pytest.approx(arrived[0] + (0.75 - arrived[0]) / weight)
    teach(table, ints(0), 0, np.zeros((1, DEPTH)), ints(5), ints(300))
    assert table._starts[1, 0].tolist()[1:] == arrived[1:]
    assert read(table, 1, 0) == [min(own, mean) for mean in (own, *arrived[1:])]


def test_an_unobserved_depth_reads_the_start_of_the_program_that_asks() -> None:
    """One program's rounds do not make its prior the other's (7.9)."""
    table = table_of()
    for step in range(50):
        teach(table, ints(0), 1, np.full((1, DEPTH), 0.9), ints(5), ints(step))
    table.reset(1)
    teach(table, ints(1), 0, np.full((1, DEPTH), 0.9), ints(2), ints(1))
    assert read(table, 1, 0)[1] == PRIOR[1]
    assert read(table, 1, 1)[1] == table.prior(1)[1] > PRIOR[1]


def test_forecasts_age_like_acceptance() -> None:
    """Start weight two, half-life 128 generated tokens, cap 128 (7.9)."""
    table = table_of()
    for _ in range(300):
        teach(table, ints(0), 0, np.full((1, DEPTH), 0.5), ints(5), ints(3))
    assert table.weights(ints(0), ints(3))[0].tolist() == [128.0] * DEPTH
    assert table.weights(ints(0), ints(131))[0].tolist() == [64.0] * DEPTH


def test_a_row_keeps_its_forecasts_through_preemption_and_loses_them_at_reset() -> None:
    """Take, put and reset move exactly one row (7.7)."""
    table = table_of()
    teach(table, ints(0), 0, np.full((1, DEPTH), 0.9), ints(5), ints(3))
    learned = read(table)
    saved = table.take(0)
    table.reset(0)
    assert read(table) == table.prior(0).tolist()
    table.put(1, saved)
    assert read(table, 1) == learned
    assert freeze(table.take(1)) == freeze(saved)


@settings(max_examples=150, deadline=None)
@given(
    rounds=st.lists(
        st.lists(
            st.tuples(
                st.integers(1, DEPTH + 1),
                st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4),
                st.integers(0, 200),
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_random_rounds_equal_the_twin(rounds: list[list[tuple[int, list[float], int]]]) -> None:
    """Means and priors equal lane-by-lane updates; everything stays a probability (7.9)."""
    table = table_of(3, 1)
    cells: dict[tuple[int, int], Cell] = {}
    prior = list(PRIOR)
    starts = [list(PRIOR) for _ in range(3)]
    counts = [0, 0, 0]
    for turn, lanes in enumerate(rounds):
        if turn % 3 == 2:
            # The last row changes hands.
            table.reset(2)
            starts[2] = table.prior(0).tolist()
            cells = {place: cell for place, cell in cells.items() if place[0] != 2}
        values = np.array([sorted(lane[1], reverse=True) for lane in lanes])
        for row, lane in enumerate(lanes):
            counts[row] += lane[2]
        rows = np.arange(len(lanes))
        ceilings = ints(*(lane[0] for lane in lanes))
        teach(table, rows, 0, values, ceilings, ints(*counts[: len(lanes)]))
        for row, lane in enumerate(lanes):
            for index in range(lane[0] - 1):
                cell = cells.get((row, index))
                if cell is None:
                    cell = cells[row, index] = Cell(starts[row][index], 2.0, 0)
                cell.observe(values[row, index], counts[row])
                prior[index] += (values[row, index] - prior[index]) / 64
        assert table.prior(0).tolist() == pytest.approx(prior, abs=1e-12)
        for row in range(3):
            means = [
                cells[row, index].mean if (row, index) in cells else starts[row][index]
                for index in range(DEPTH)
            ]
            expected = np.minimum.accumulate(means).tolist()
            assert read(table, row) == pytest.approx(expected, abs=1e-12)
        assert ((table._cells[:, MEAN] >= 0) & (table._cells[:, MEAN] <= 1)).all()
        assert ((table._priors >= 0) & (table._priors <= 1)).all()


def test_acceptance_prices_a_prefix_once_it_has_observations() -> None:
    """Aged acceptance weight above two decides between acceptance and forecast (7.10)."""
    acceptance, forecast = AcceptanceTable(1, 2), np.array([[0.75, 0.625]])

    def priced(generated: int) -> list[float]:
        return priced_survivals(acceptance, forecast, ints(0), ints(generated))[0].tolist()

    def observe(offered: int, produced: int) -> None:
        lanes = Lanes(
            ints(0), ints(offered), ints(offered), ints(produced), np.array([False]), ints(0)
        )
        acceptance.observe(LEARNED, lanes, acceptance.outcome(lanes))

    assert priced(0) == [0.75, 0.625]
    observe(2, 2)
    assert priced(0) == [0.5 + 0.5 / 3, 0.625], "depth two has no observation yet"
    assert priced(74) == [0.5 + 0.5 / 3, 0.625], "a weight of 3 * 2**(-74/128) is still above two"
    assert priced(75) == [0.75, 0.625], "and an aged observation gives way to the forecast"
    observe(2, 1)
    assert priced(0)[1] < 0.625, "a forecast never promises more than the shorter prefix"


def test_calibration_says_predicted_against_accepted_per_depth() -> None:
    """Censored and unoffered depths do not count; the error is signed (7.11)."""
    calibration = Calibration(3)
    predicted = np.array([[0.75, 0.5, 0.25], [0.25, 0.25, 0.25]])
    accepted = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    seen = np.array([[True, True, False], [True, False, False]])
    calibration.observe(predicted, Outcome(seen, accepted))
    first, second = calibration.entries()
    assert (first.depth, first.observations, first.predicted, first.accepted) == (1, 2, 0.5, 0.5)
    assert first.error == 0.0
    assert first.squared_error == (0.25**2 + 0.25**2) / 2
    assert (second.depth, second.observations, second.error) == (2, 1, 0.5)


def test_calibration_may_be_read_at_any_time() -> None:
    """A report counts every round so far and changes nothing, however often it is asked for."""
    watched, unwatched = Calibration(2), Calibration(2)
    predicted = np.array([[0.5, 0.25]])
    for number in range(1, 21):
        outcome = Outcome(np.array([[True, number % 3 == 0]]), np.array([[number % 2, 0.0]]))
        watched.observe(predicted, outcome)
        unwatched.observe(predicted, outcome)
        before = freeze(watched)
        assert watched.entries()[0].observations == number
        assert freeze(watched) == before
    assert watched.entries() == unwatched.entries()
    first, second = watched.entries()
    assert (first.accepted, first.squared_error, second.observations) == (0.5, 0.25, 6)
