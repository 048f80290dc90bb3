"""A run's figures as CSV, JSON, plots and one self-contained page."""

from scheduling_sim.report.runs import Provenance, Report, ReportedRun
from scheduling_sim.report.tables import Table, headline_table, tables
from scheduling_sim.report.written import outputs

__all__ = [
    "Provenance",
    "Report",
    "ReportedRun",
    "Table",
    "headline_table",
    "outputs",
    "tables",
]
