"""The decision core: a pure state machine that picks one prepared graph and its cohort at a time.

It has no clock, no I/O and no randomness; time enters through `advance_to` and the records.
"""

from helios.scheduler.calibration import CalibrationEntry
from helios.scheduler.catalog import (
    COMPLETION_TOKENS,
    PROMPT_ALIGNMENT_TOKENS,
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    RowAllocation,
)
from helios.scheduler.checkpoints import CheckpointStats
from helios.scheduler.config import DecodeMode, PolicyConfig, ResourceConfig, SpeculationConfig
from helios.scheduler.cost import entry_names as cost_entry_names
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
from helios.scheduler.images import ImageSpan
from helios.scheduler.plan import (
    CandidateScore,
    MixedLane,
    MixedRole,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
)
from helios.scheduler.records import (
    CompletionRecord,
    Endpoint,
    ExecutionCount,
    ExecutionTiming,
    ExplorationAccount,
    GeneratedToken,
    Phase,
    RequestHandle,
    RequestSpec,
    Usage,
)
from helios.scheduler.scheduler import Scheduler
from helios.scheduler.speculation import CalibrationReport
from helios.scheduler.trace import PlanTrace, TraceLane, format_trace, parse_trace
from helios.scheduler.units import Fence

if not __debug__:
    # The core states what it believes as assertions; without them it would go on from a bad state.
    raise RuntimeError("helios.scheduler does not run under python -O")

__all__ = [
    "COMPLETION_TOKENS",
    "PROMPT_ALIGNMENT_TOKENS",
    "CalibrationEntry",
    "CalibrationReport",
    "CandidateScore",
    "Catalog",
    "CheckpointStats",
    "CompletionError",
    "CompletionRecord",
    "DecodeMode",
    "Endpoint",
    "ExecutionCount",
    "ExecutionTiming",
    "ExplorationAccount",
    "Fence",
    "FenceError",
    "GeneratedToken",
    "GraphDescriptor",
    "GraphKind",
    "ImageSpan",
    "InvalidCatalogError",
    "InvalidPolicyError",
    "InvalidRequestError",
    "MixedLane",
    "MixedRole",
    "Phase",
    "PhaseError",
    "PlanTrace",
    "PolicyConfig",
    "ProposalSource",
    "QueueFullError",
    "RequestHandle",
    "RequestSpec",
    "ResourceConfig",
    "RowAllocation",
    "ScheduledPlan",
    "ScheduledStep",
    "Scheduler",
    "SchedulerError",
    "SelectionReason",
    "SpeculationConfig",
    "StalePlanError",
    "TimeError",
    "TraceLane",
    "UnknownHandleError",
    "Usage",
    "cost_entry_names",
    "format_trace",
    "parse_trace",
]
