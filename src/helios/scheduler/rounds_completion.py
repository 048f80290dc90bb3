"""What a completed round must bring besides its records, and what is learned from it.

The sidecars are indexed by physical row, [ranks, row_count, draft capacity]; draft capacity is the
catalog's largest proposal depth. Only entries that the round produced are looked at: those of lanes
that ran, up to the program's depth. See docs/design/scheduling-runtime.md section 8.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.acceptance import Flags, Floats, Integers, Lanes
from helios.scheduler.catalog import GraphKind, RowAllocation
from helios.scheduler.checks import check_type, shown
from helios.scheduler.columns import columns_of, is_a, is_handle, is_like, is_record
from helios.scheduler.errors import CompletionError
from helios.scheduler.plan import ScheduledStep
from helios.scheduler.records import CompletionRecord
from helios.scheduler.requests import Request
from helios.scheduler.speculation import SpeculationHistory
from helios.scheduler.window import Frame

_ROW = operator.attrgetter("row")
_CEILING = operator.attrgetter("output_ceiling")
_TERMINATED = operator.attrgetter("terminated")

Sidecar = npt.NDArray[np.float32]


class Sidecars(NamedTuple):
    """What a caller passed besides the records; None for what its call does not take."""

    confidence: Sidecar | None = None
    survival: Sidecar | None = None
    is_packed: bool = False
    """The call was one of the two that take confidence."""
    has_survival: bool = False


NO_SIDECARS = Sidecars()


def check_variant(frame: Frame, sidecars: Sidecars) -> None:
    """Raise CompletionError when the frame's program may not complete through this call."""
    graph, fault = frame.plan.graph, ""
    if sidecars.is_packed and not graph.confidence_width:
        fault = "reports no confidence; complete it without"
    elif (
        not sidecars.is_packed
        and graph.proposal_depth > 0
        and graph.allocation is RowAllocation.DEVICE
    ):
        fault = "allocates its rows on the device; complete it through complete_packed_round"
    elif sidecars.has_survival and not graph.reports_survival:
        fault = "reports no survival; complete it without"
    if fault:
        raise CompletionError(f"fence {frame.fence}: {graph.name} {fault}")


def offered_rows(record: CompletionRecord, ceiling: int) -> int:
    """Return the target rows that a lane was given; a record may leave its whole ceiling unsaid."""
    return record.offered or ceiling


class Ran(NamedTuple):
    """The generating lanes of a round that committed tokens; columns [n].

    A lane that an earlier end token or the host silenced ran nowhere and is not among them.
    """

    requests: Sequence[Request]
    rows: Integers
    offered: Integers
    ceilings: Integers
    produced: Integers
    terminated: Flags | None
    """None where no lane was ended by an end token."""


def lanes_that_ran(frame: Frame, records: Sequence[CompletionRecord]) -> Ran | None:
    """Return the lanes of checked records that generated; None for a program without proposals."""
    graph = frame.plan.graph
    if graph.proposal_depth == 0:
        return None
    steps: Sequence[ScheduledStep] = frame.plan.steps
    requests: Sequence[Request] = frame.requests
    produced = [len(record.tokens) for record in records]
    if graph.kind is GraphKind.MIXED or 0 in produced:
        ran = [i for i, count in enumerate(produced) if count and not steps[i].prompt_tokens]
        steps, requests = [steps[i] for i in ran], [requests[i] for i in ran]
        records, produced = [records[i] for i in ran], [produced[i] for i in ran]
    count = len(steps)
    ceilings = np.fromiter(map(_CEILING, steps), np.int64, count)
    offered = ceilings
    if graph.allocation is RowAllocation.DEVICE:
        told = [
            record.offered or step.output_ceiling
            for step, record in zip(steps, records, strict=True)
        ]
        offered = np.array(told, dtype=np.int64)
    return Ran(
        requests,
        np.fromiter(map(_ROW, steps), np.int64, count),
        offered,
        ceilings,
        np.array(produced, dtype=np.int64),
        np.fromiter(map(_TERMINATED, records), np.bool_, count),
    )


def streams_that_ran(frame: Frame, offered: Sequence[int], produced: Sequence[int]) -> Ran | None:
    """Return `lanes_that_ran` of a frame whose streams all go on, from columns of its records."""
    if frame.plan.graph.proposal_depth == 0:
        return None
    count = len(produced)
    ceilings = np.fromiter(frame.ceilings, np.int64, count)
    return Ran(
        frame.requests,
        np.fromiter(map(_ROW, frame.plan.steps), np.int64, count),
        ceilings if offered is frame.ceilings else np.fromiter(offered, np.int64, count),
        ceilings,
        np.fromiter(produced, np.int64, count),
        None,
    )


def check_packed_rows(frame: Frame, ran: Ran) -> None:
    """Raise CompletionError when a device gave its lanes more rows than the program has."""
    graph = frame.plan.graph
    if graph.allocation is not RowAllocation.DEVICE:
        return
    total = int(ran.offered.sum())
    if total > graph.rows:
        raise CompletionError(
            f"fence {frame.fence}: {total} target rows were offered, {graph.name} has {graph.rows}"
        )


def check_sidecars(
    frame: Frame, ran: Ran, sidecars: Sidecars, shape: tuple[int | None, int, int]
) -> None:
    """Raise CompletionError for a sidecar that no round of this frame could have written.

    `shape` is [ranks, rows, draft capacity]; the ranks are None when the caller did not say.
    """
    depth = frame.plan.graph.proposal_depth
    if sidecars is NO_SIDECARS:
        return
    for name, is_taken, sidecar, reach in (
        ("confidence", sidecars.is_packed, sidecars.confidence, None),
        ("survival", sidecars.has_survival, sidecars.survival, ran.offered - 1),
    ):
        if is_taken:
            where = f"fence {frame.fence}: {name}"
            _check_shape(where, sidecar, shape)
            assert sidecar is not None, "a missing sidecar has no shape"
            _check_values(where, sidecar[:, ran.rows, :depth], ran.rows, reach)


def _check_shape(where: str, sidecar: object, expected: tuple[int | None, int, int]) -> None:
    # A masked array is an array too, and its comparisons pass over what the mask hides.
    if type(sidecar) is not np.ndarray or sidecar.dtype != np.float32:
        kind = sidecar.dtype if type(sidecar) is np.ndarray else type(sidecar).__name__
        raise CompletionError(f"{where} must be a plain float32 array, not {kind}")
    ranks, row_count, depth = expected
    shape = sidecar.shape
    if len(shape) != 3 or shape[1:] != (row_count, depth) or shape[0] != (ranks or shape[0] or 1):
        named = "ranks" if ranks is None else str(ranks)
        raise CompletionError(
            f"{where} must have shape [{named}, {row_count}, {depth}], not {list(shape)}"
        )


def _check_values(where: str, values: Sidecar, rows: Integers, reach: Integers | None) -> None:
    """Every value is a probability no larger than the one of the next shorter prefix.

    Depths beyond a lane's `reach` were not written and are not looked at; None reaches everywhere.
    """
    above = np.ones_like(values)
    above[:, :, 1:] = values[:, :, :-1]
    # A comparison with NaN is false, so this one test finds every kind of bad value.
    good = (values >= 0) & (values <= above)
    if reach is not None:
        good |= np.arange(values.shape[2]) >= reach[:, None]
    if good.all():
        return
    rank, lane, index = (int(place[0]) for place in np.nonzero(~good))
    raise CompletionError(
        f"{where} of rank {rank}, row {int(rows[lane])}, depth {index + 1} is "
        f"{float(values[rank, lane, index])!r}; prefix probabilities fall from 1 to 0"
    )


def check_peers(
    frame: Frame,
    records: Sequence[CompletionRecord],
    peers: Sequence[Sequence[CompletionRecord]],
) -> None:
    """Raise CompletionError when a peer's rank disagrees with rank zero about any lane."""
    check_type(CompletionError, "peers", peers, Sequence, "a sequence of the ranks' records")
    for rank, others in enumerate(peers, 1):
        where = f"fence {frame.fence}, rank {rank}"
        check_type(CompletionError, where, others, Sequence, "a sequence of CompletionRecord")
        if len(others) != len(records):
            raise CompletionError(f"{where}: {len(others)} lanes, rank 0 has {len(records)}")
        are_typed = columns_of(others, frame.handles) is not None
        for lane, (step, mine, other) in enumerate(
            zip(frame.plan.steps, records, others, strict=True)
        ):
            if not (are_typed and mine == other):
                _check_lane(f"{where}, lane {lane}", step.output_ceiling, mine, other)


def _check_lane(where: str, ceiling: int, mine: CompletionRecord, other: CompletionRecord) -> None:
    """Raise CompletionError unless a peer's record says what rank zero's says, field by field.

    Each is compared only once its type is that of rank zero's: whatever stands in its place may
    raise anything when it is compared.
    """
    if not is_record(other):
        raise CompletionError(f"{where} must be a CompletionRecord, not {shown(other)}")
    mine = mine._replace(offered=offered_rows(mine, ceiling))
    if is_a(int, other.offered):
        other = other._replace(offered=offered_rows(other, ceiling))
    for name, left, right in zip(CompletionRecord._fields, mine, other, strict=True):
        fits = is_handle(right) if name == "handle" else is_like(left, right)
        if not fits or left != right:
            raise CompletionError(f"{where}: {name} is {shown(right)}, rank 0 has {shown(left)}")


def learn_round(
    history: SpeculationHistory,
    frame: Frame,
    ran: Ran,
    served: Mapping[Request, int],
    sidecars: Sidecars,
) -> None:
    """Teach the estimates what the live generating lanes of a completed round showed.

    Call it after the lanes advanced and before any row changes hands: `served` are the lanes that
    committed, so a cancelled or finished request teaches nothing.
    """
    counts = [request.output_count for request in ran.requests]
    generated = np.fromiter(counts, np.int64, len(counts))
    _, rows, offered, ceilings, produced, terminated = ran
    if len(served) < len(frame.requests):
        live = np.array([request in served for request in ran.requests], dtype=bool)
        rows, offered, ceilings = rows[live], offered[live], ceilings[live]
        produced, generated = produced[live], generated[live]
        terminated = None if terminated is None else terminated[live]
    if not len(rows):
        return
    lanes = Lanes(rows, offered, ceilings, produced, terminated, generated)
    plan = frame.plan
    history.observe(
        plan.graph_index,
        plan.graph.source,
        lanes,
        _driving(sidecars.confidence, lanes.rows),
        _driving(sidecars.survival, lanes.rows),
    )


def _driving(sidecar: Sidecar | None, rows: Integers) -> Floats | None:
    """Return rank zero's values of the lanes, [n, draft capacity]: it alone drives decisions."""
    return None if sidecar is None else sidecar[0, rows].astype(np.float64)
