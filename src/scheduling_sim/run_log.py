"""RunLog: everything that metrics and reports need to know of one run, and nothing else."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping

from helios.scheduler import (
    CalibrationReport,
    CheckpointStats,
    ExecutionCount,
    ExplorationAccount,
    SelectionReason,
)
from scheduling_sim.workload.records import Workload, WorkloadRequest


def _integers() -> array[int]:
    return array("q")


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestLog:
    """What happened to one request; times are ns of the virtual clock."""

    request: WorkloadRequest
    arrival_ns: int
    dispatched_ns: int | None = None
    delivery_ns: array[int] = dataclasses.field(default_factory=_integers)
    """One entry per visible delivery."""
    delivery_tokens: array[int] = dataclasses.field(default_factory=_integers)
    """Output tokens of each delivery."""
    prompt_ns: array[int] = dataclasses.field(default_factory=_integers)
    """End of each frame that consumed prompt tokens."""
    prompt_tokens: array[int] = dataclasses.field(default_factory=_integers)
    """Prompt tokens of each such frame, replayed ones after a preemption included."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that a checkpoint saved."""
    finished_ns: int | None = None
    reason: str = "unfinished"
    """stop, length, cancelled, error, rejected or unfinished."""
    error: str | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class StepLog:
    """One entry per executed frame, column by column; times in ns of the virtual clock."""

    started_ns: array[int] = dataclasses.field(default_factory=_integers)
    device_ns: array[int] = dataclasses.field(default_factory=_integers)
    """True device interval, before faults of reporting."""
    predicted_ns: array[int] = dataclasses.field(default_factory=_integers)
    """What the plan expected it to be; zero for a program that was not measured, and for policies
    that predict nothing."""
    graph_index: array[int] = dataclasses.field(default_factory=_integers)
    lanes: array[int] = dataclasses.field(default_factory=_integers)
    useful_rows: array[int] = dataclasses.field(default_factory=_integers)
    """Prompt tokens consumed plus output tokens committed."""
    physical_rows: array[int] = dataclasses.field(default_factory=_integers)
    """Token positions that the device computed, padding and rejected proposals included."""
    offered: array[int] = dataclasses.field(default_factory=_integers)
    """Proposed tokens that were verified."""
    accepted: array[int] = dataclasses.field(default_factory=_integers)
    decision_ns: array[int] = dataclasses.field(default_factory=_integers)
    """Real host time of plan, commit and complete; zero without a stopwatch."""
    pages_used: array[int] = dataclasses.field(default_factory=_integers)
    waiting: array[int] = dataclasses.field(default_factory=_integers)
    """Requests without a row at the submission."""
    reasons: list[SelectionReason] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, kw_only=True)
class RunLog:
    """One run of one policy on one workload and platform."""

    policy: str
    platform: str
    workload: Workload
    seed: int
    graph_names: tuple[str, ...]
    requests: list[RequestLog]
    """In order of arrival."""
    steps: StepLog
    ended_ns: int
    executions: Mapping[SelectionReason, ExecutionCount] = dataclasses.field(default_factory=dict)
    exploration: Mapping[SelectionReason, ExplorationAccount] = dataclasses.field(
        default_factory=dict
    )
    checkpoints: CheckpointStats | None = None
    calibration: CalibrationReport | None = None
    preemptions: int = 0
    failed_frames: int = 0
