"""The decision core: a pure state machine that picks one prepared graph and its cohort at a time.

It has no clock, no I/O and no randomness; time enters through `advance_to` and the records.
"""

from helios.scheduler.catalog import Catalog, GraphDescriptor, GraphKind
from helios.scheduler.config import PolicyConfig, ResourceConfig
from helios.scheduler.errors import (
    CompletionError,
    FenceError,
    InvalidCatalogError,
    InvalidPolicyError,
    InvalidRequestError,
    PhaseError,
    QueueFullError,
    SchedulerError,
    StalePlanError,
    TimeError,
    UnknownHandleError,
)
from helios.scheduler.plan import (
    CandidateScore,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
)
from helios.scheduler.records import (
    CompletionRecord,
    ExecutionCount,
    ExecutionTiming,
    GeneratedToken,
    Phase,
    RequestHandle,
    RequestSpec,
    Usage,
)
from helios.scheduler.scheduler import Scheduler
from helios.scheduler.trace import PlanTrace, TraceLane, format_trace, parse_trace
from helios.scheduler.units import Fence

if not __debug__:
    # The core states what it believes as assertions; without them it would go on from a bad state.
    raise RuntimeError("helios.scheduler does not run under python -O")

__all__ = [
    "CandidateScore",
    "Catalog",
    "CompletionError",
    "CompletionRecord",
    "ExecutionCount",
    "ExecutionTiming",
    "Fence",
    "FenceError",
    "GeneratedToken",
    "GraphDescriptor",
    "GraphKind",
    "InvalidCatalogError",
    "InvalidPolicyError",
    "InvalidRequestError",
    "Phase",
    "PhaseError",
    "PlanTrace",
    "PolicyConfig",
    "QueueFullError",
    "RequestHandle",
    "RequestSpec",
    "ResourceConfig",
    "ScheduledPlan",
    "ScheduledStep",
    "Scheduler",
    "SchedulerError",
    "SelectionReason",
    "StalePlanError",
    "TimeError",
    "TraceLane",
    "UnknownHandleError",
    "Usage",
    "format_trace",
    "parse_trace",
]
