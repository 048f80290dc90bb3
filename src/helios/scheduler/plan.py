"""ScheduledPlan and ScheduledStep: one immutable decision and its lanes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple, NoReturn

from helios.scheduler.catalog import GraphDescriptor
from helios.scheduler.checks import shown
from helios.scheduler.config import DecodeMode
from helios.scheduler.errors import StalePlanError
from helios.scheduler.records import RequestHandle


class SelectionReason(enum.Enum):
    """Why a plan was selected."""

    ORDINARY = "ordinary"
    """The best measured value rate."""
    DISCOVERY = "discovery"
    """The graph's duration is indeterminate; optimistic work score."""
    TIMING_REFRESH = "timing-refresh"
    """A stale alternative, funded by ordinary work."""
    ACCEPTANCE_LEARNING = "acceptance-learning"
    """A deeper round than the ordinary choice, funded by ordinary work."""


class MixedRole(enum.IntEnum):
    """What a lane of a mixed graph does."""

    PROMPT = 0
    GENERATE = 1


class MixedLane(NamedTuple):
    """A mixed lane's role and the decode mode that its graph was selected in."""

    role: MixedRole
    mode: DecodeMode


class CandidateScore(NamedTuple):
    """One candidate of a decision with every term of its score, in the decision's common scale.

    A tuple, because a trace makes a dozen of them at every frame and a frozen dataclass takes four
    times as long.

    A determinate candidate has `value_rate = (service_value + delivery_value + age_credit +
    terminal_value + saved_waiting + continuation_value) / (duration_ms + following_ms) -
    waiting_cost`; an indeterminate one has the sum of the values, its optimistic work score.
    """

    graph: str
    graph_index: int
    handles: tuple[RequestHandle, ...]
    reason: SelectionReason
    needs_empty_queue: bool
    value_rate: float
    log_scale: float
    """Logarithm of the factor that all values of the decision were multiplied with."""
    service_value: float
    """Priced prompt and output tokens."""
    delivery_value: float
    """Priced deliveries."""
    age_credit: float
    """Saved waiting of the served decoders and terminal rows."""
    terminal_value: float
    """Terminal retirements at their own value."""
    waiting_cost: float
    """Value per ms that the duration costs every waiting stream; zero while indeterminate."""
    duration_ms: float
    """Estimated duration T of the submitted graph; zero while indeterminate."""
    following: str | None
    """The inference graph that this prerequisite was priced together with."""
    following_ms: float
    """Estimated duration F of the following graph."""
    cost_age_ns: int | None
    """Time since the last valid observation of the submitted graph; None without one."""
    padding: int
    """Physical rows or prompt positions without work, both stages together."""
    saved_waiting: float = 0.0
    """Waiting until the end of both stages that rows retired by the first one no longer cost."""
    continuation_value: float = 0.0
    """V*T/(T + F) of the served requests that need several stages more."""
    exploration_credit_ms: float = 0.0
    """Credit of the ledger that a probe spends from; zero for ordinary work and discovery."""


class ScheduledStep(NamedTuple):
    """One lane of a plan: which request, on which row, doing what.

    A tuple, because a plan has up to 64 of them and a frozen dataclass takes four times as long.
    """

    handle: RequestHandle
    row: int
    """Physical request row, 0 to row_count - 1."""
    position: int
    """Tokens of this request that are in the cache when the frame starts (projected if queued)."""
    prompt_tokens: int
    """Prompt tokens this lane consumes (zero for other kinds)."""
    output_ceiling: int
    """Most output tokens this lane can commit: 1 for decode and for a finishing prefill, its target
    rows for a round, else 0. It is the exact query length where the host allocates."""
    pages: tuple[int, ...]
    """All pages of the request, in order of token position."""
    expected_tokens: float = 0.0
    """Output tokens that the choice expected of this lane."""
    mixed: MixedLane | None = None
    """Role and mode in a mixed graph."""
    snapshot_row: int = -1
    """The snapshot row that a RESTORE reads or a SNAPSHOT writes; -1 for none."""
    image_index: int = -1
    """The image of the request that a VISION lane encodes, or the first that a prompt lane
    consumes; -1 for none."""
    feature_offset: int = 0
    """Where the features of that image lie, in feature rows of the window's storage."""
    is_retired: bool = False
    """A SNAPSHOT lane of an ended or preempted request: its row is free once the copy is done."""
    incarnation: int = 0
    """Generation of the execution state that the lane runs on; INITIALIZE and RESTORE bind it."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


class Seal(NamedTuple):
    """What tells a plan that a scheduler returned from one that somebody else made of it."""

    owner: object
    """Something that this scheduler alone has."""
    fields: tuple[object, ...]
    """The plan's fields as it was returned, in the order of `_SEALED`."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledPlan:
    """A frozen decision: physical shape, cohort, logical work, epoch, cost and score."""

    graph_index: int
    graph: GraphDescriptor
    steps: tuple[ScheduledStep, ...]
    estimated_duration_ns: int
    """Zero when the graph's duration is indeterminate."""
    reason: SelectionReason
    needs_empty_queue: bool
    """This plan may only be submitted while no frame is in flight."""
    epoch: int
    """The scheduler's state version; commit refuses a plan of a version that conflicts."""
    value_rate: float
    log_scale: float
    explanation: Callable[[], CandidateScore] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )
    """Computes `terms`; most plans are never asked."""
    prefill_row: int = -1
    """Index of the prompt row in `steps` of a mixed graph; -1 for none."""
    cost_index: int = -1
    """The cost entry that priced the graph, which its sample will teach."""
    seal: Seal | None = dataclasses.field(default=None, compare=False, repr=False)
    """None for a plan that no scheduler made, which none commits."""

    @property
    def terms(self) -> CandidateScore | None:
        """Every term of the score; None only for a plan that no scheduler made."""
        return None if self.explanation is None else self.explanation()

    def selection_value_rate(self) -> float:
        """Return the scaled selection score (value per ms times exp of the log scale)."""
        return self.value_rate

    def selection_log_scale(self) -> float:
        """Return the logarithm of the positive factor that scales every score of the decision."""
        return self.log_scale


_SEALED = tuple(field.name for field in dataclasses.fields(ScheduledPlan) if field.name != "seal")
_fields_of = attrgetter(*_SEALED)


def seal(plan: ScheduledPlan, owner: object) -> ScheduledPlan:
    """Mark a new plan as one that the scheduler of `owner` returns as it is now, and return it."""
    object.__setattr__(plan, "seal", Seal(owner, _fields_of(plan)))
    return plan


def check_seal(plan: ScheduledPlan, owner: object) -> None:
    """Raise StalePlanError unless the scheduler of `owner` returned the plan with these fields."""
    if not isinstance(plan.seal, Seal) or plan.seal.owner is not owner:
        raise StalePlanError("the plan was made by another scheduler, or by none")
    for name, now, then in zip(_SEALED, _fields_of(plan), plan.seal.fields, strict=True):
        if now is not then and not _is_same_number(now, then):
            raise StalePlanError(f"plan.{name} is {shown(now)}, it was made with {shown(then)}")


def _is_same_number(now: object, then: object) -> bool:
    return isinstance(now, int | float) and type(now) is type(then) and now == then
