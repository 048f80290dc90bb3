"""What a run was like for its users, its tenants and its machine, computed from its log."""

from scheduling_sim.metrics.distribution import Distribution, distribution_of
from scheduling_sim.metrics.fairness import ServiceTerms
from scheduling_sim.metrics.objectives import Objectives
from scheduling_sim.metrics.qoe import Expectation
from scheduling_sim.metrics.summary import MetricOptions, RunMetrics, measure

__all__ = [
    "Distribution",
    "Expectation",
    "MetricOptions",
    "Objectives",
    "RunMetrics",
    "ServiceTerms",
    "distribution_of",
    "measure",
]
