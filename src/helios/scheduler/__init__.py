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
from helios.scheduler.plan import ScheduledPlan, ScheduledStep, SelectionReason
from helios.scheduler.records import (
    CompletionRecord,
    ExecutionTiming,
    GeneratedToken,
    Phase,
    RequestHandle,
    RequestSpec,
)
from helios.scheduler.units import Fence

__all__ = [
    "Catalog",
    "CompletionError",
    "CompletionRecord",
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
    "PolicyConfig",
    "QueueFullError",
    "RequestHandle",
    "RequestSpec",
    "ResourceConfig",
    "ScheduledPlan",
    "ScheduledStep",
    "SchedulerError",
    "SelectionReason",
    "StalePlanError",
    "TimeError",
    "UnknownHandleError",
]
