"""What a scheduler remembers of its speculative rounds, by physical row: one object, three tables.

Rows are reset when a request is seated, and taken out and put back around a preemption, so that a
later request of the row knows no more of it than of any other: where the population stands.
See docs/design/scheduling-utility.md section 7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from helios.scheduler.acceptance import (
    COPY,
    LEARNED,
    AcceptanceTable,
    Floats,
    Lanes,
)
from helios.scheduler.calibration import Calibration, CalibrationEntry
from helios.scheduler.catalog import Catalog, ProposalSource
from helios.scheduler.forecast import ForecastTable, SavedForecasts


class CalibrationReport(NamedTuple):
    """How far each estimate was from what was accepted, per depth; nothing decides by it."""

    learned: tuple[CalibrationEntry, ...]
    """Acceptance estimates of drafted proposals."""
    copied: tuple[CalibrationEntry, ...]
    """Acceptance estimates of copied proposals."""
    forecast: tuple[CalibrationEntry, ...]
    """Confidence forecasts of the programs that report confidence."""


class SavedHistory(NamedTuple):
    """A request's estimates while it has no row."""

    acceptance: Floats
    forecast: SavedForecasts


class SpeculationHistory:
    """Acceptance, forecasts and calibration of every row; empty for a catalog without proposals."""

    __slots__ = ("_by_forecast", "_by_source", "acceptance", "extent", "forecasts")

    def __init__(self, catalog: Catalog, rows: int, *, population_weight: float = 0.0) -> None:
        depth = max(graph.proposal_depth for graph in catalog.graphs)
        programs = [i for i, graph in enumerate(catalog.graphs) if graph.confidence_width]
        self.extent = (rows, depth)
        """Rows and the catalog's largest proposal depth: what a sidecar has of every rank."""
        self.acceptance = AcceptanceTable(rows, depth, population_weight=population_weight)
        self.forecasts = ForecastTable(rows, depth, programs)
        self._by_source = (Calibration(depth), Calibration(depth))
        self._by_forecast = Calibration(depth)

    def reset(self, row: int) -> None:
        """Give a row to a request without history."""
        self.acceptance.reset(row)
        self.forecasts.reset(row)

    def take(self, row: int) -> SavedHistory:
        """Return a copy of what a row has learned, for a request that leaves it."""
        return SavedHistory(self.acceptance.take(row), self.forecasts.take(row))

    def put(self, row: int, saved: SavedHistory) -> None:
        """Give a row to a request that brings its history back."""
        self.acceptance.put(row, saved.acceptance)
        self.forecasts.put(row, saved.forecast)

    def observe(
        self,
        graph_index: int,
        source: ProposalSource,
        lanes: Lanes,
        confidence: Floats | None,
        survival: Floats | None,
    ) -> None:
        """Learn one completed round from rank zero's sidecars [n, depth] and from its outcomes.

        Values beyond what a lane produced are not looked at.
        """
        index = source_index(source)
        outcome = self.acceptance.outcome(lanes)
        if np.count_nonzero(outcome.seen):
            predicted = self.acceptance.observe(index, lanes, outcome, survival)
            self._by_source[index].observe(predicted, outcome)
        if confidence is not None:
            promised = self.forecasts.observe(graph_index, lanes, confidence)
            self._by_forecast.observe(promised, outcome)

    def report(self) -> CalibrationReport:
        """Return the calibration of every estimate so far."""
        learned, copied = (calibration.entries() for calibration in self._by_source)
        return CalibrationReport(learned, copied, self._by_forecast.entries())


def source_index(source: ProposalSource) -> int:
    """Return the acceptance table's index of a source of proposals."""
    assert source is not ProposalSource.NONE, "a program without proposals observes nothing"
    return LEARNED if source is ProposalSource.LEARNED else COPY
