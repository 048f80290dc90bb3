"""What a completed round must bring besides its records, and what is learned from it.

The sidecars are indexed by physical row, [ranks, row_count, draft capacity]; draft capacity is the
catalog's largest proposal depth. Only entries that the round produced are looked at: those of lanes
that ran, up to the program's depth. See docs/design/scheduling-runtime.md section 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from helios.scheduler.acceptance import Floats, Integers, Lanes
from helios.scheduler.catalog import GraphDescriptor, RowAllocation
from helios.scheduler.errors import CompletionError
from helios.scheduler.records import CompletionRecord
from helios.scheduler.requests import Request
from helios.scheduler.speculation import SpeculationHistory
from helios.scheduler.window import Frame

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
    graph = frame.plan.graph
    where = f"fence {frame.fence}: {graph.name}"
    if sidecars.is_packed:
        if not graph.confidence_width:
            raise CompletionError(f"{where} reports no confidence; complete it without")
    elif graph.proposal_depth > 0 and graph.allocation is RowAllocation.DEVICE:
        raise CompletionError(
            f"{where} allocates its rows on the device; complete it through complete_packed_round"
        )
    if sidecars.has_survival and not graph.reports_survival:
        raise CompletionError(f"{where} reports no survival; complete it without")


def offered_rows(record: CompletionRecord, ceiling: int) -> int:
    """Return the target rows that a lane was given; a record may leave its whole ceiling unsaid."""
    return record.offered or ceiling


def check_packed_rows(frame: Frame, records: Sequence[CompletionRecord]) -> None:
    """Raise CompletionError when a device gave its lanes more rows than the program has."""
    graph = frame.plan.graph
    if graph.allocation is not RowAllocation.DEVICE:
        return
    total = sum(
        offered_rows(record, step.output_ceiling)
        for step, record in zip(frame.plan.steps, records, strict=True)
        # A silent lane ran nowhere, so what it leaves unsaid is no row.
        if not step.prompt_tokens and (record.offered or record.tokens)
    )
    if total > graph.rows:
        raise CompletionError(
            f"fence {frame.fence}: {total} target rows were offered, {graph.name} has {graph.rows}"
        )


def check_sidecars(
    frame: Frame,
    records: Sequence[CompletionRecord],
    sidecars: Sidecars,
    *,
    row_count: int,
    draft_capacity: int,
    ranks: int | None,
) -> None:
    """Raise CompletionError for a sidecar that no round of this frame could have written.

    `ranks` is how many ranks reported records, None when the caller did not say.
    """
    if sidecars is NO_SIDECARS:
        return
    lanes = [
        (step.row, offered_rows(record, step.output_ceiling) - 1)
        for step, record in zip(frame.plan.steps, records, strict=True)
        if record.tokens and not step.prompt_tokens
    ]
    columns = np.array(lanes, dtype=np.int64).reshape(-1, 2).T
    depth = frame.plan.graph.proposal_depth
    everywhere = np.full_like(columns[1], depth)
    expected = (ranks, row_count, draft_capacity)
    for name, is_taken, sidecar, reach in (
        ("confidence", sidecars.is_packed, sidecars.confidence, everywhere),
        ("survival", sidecars.has_survival, sidecars.survival, columns[1]),
    ):
        if is_taken:
            where = f"fence {frame.fence}: {name}"
            _check_shape(where, sidecar, expected)
            assert sidecar is not None, "a missing sidecar has no shape"
            _check_values(where, sidecar[:, columns[0], :depth], columns[0], reach)


def _check_shape(where: str, sidecar: object, expected: tuple[int | None, int, int]) -> None:
    if not isinstance(sidecar, np.ndarray) or sidecar.dtype != np.float32:
        kind = sidecar.dtype if isinstance(sidecar, np.ndarray) else type(sidecar).__name__
        raise CompletionError(f"{where} must be a float32 array, not {kind}")
    ranks, row_count, depth = expected
    shape = sidecar.shape
    if len(shape) != 3 or shape[1:] != (row_count, depth) or shape[0] != (ranks or shape[0] or 1):
        named = "ranks" if ranks is None else str(ranks)
        raise CompletionError(
            f"{where} must have shape [{named}, {row_count}, {depth}], not {list(shape)}"
        )


def _check_values(where: str, values: Sidecar, rows: Integers, reach: Integers) -> None:
    """Every value is a probability no larger than the one of the next shorter prefix."""
    above = np.ones_like(values)
    above[:, :, 1:] = values[:, :, :-1]
    # A comparison with NaN is false, so this one test finds every kind of bad value.
    good = (values >= 0) & (values <= above)
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
    for rank, others in enumerate(peers, 1):
        where = f"fence {frame.fence}, rank {rank}"
        if len(others) != len(records):
            raise CompletionError(f"{where}: {len(others)} lanes, rank 0 has {len(records)}")
        for lane, (step, mine, other) in enumerate(
            zip(frame.plan.steps, records, others, strict=True)
        ):
            if mine != other:
                _check_lane(f"{where}, lane {lane}", step.output_ceiling, mine, other)


def _check_lane(where: str, ceiling: int, mine: CompletionRecord, other: CompletionRecord) -> None:
    for name, left, right in (
        ("handle", mine.handle, other.handle),
        ("prompt_tokens", mine.prompt_tokens, other.prompt_tokens),
        ("tokens", mine.tokens, other.tokens),
        ("terminated", mine.terminated, other.terminated),
        ("offered", offered_rows(mine, ceiling), offered_rows(other, ceiling)),
    ):
        if left != right:
            raise CompletionError(f"{where}: {name} is {right!r}, rank 0 has {left!r}")


def learn_round(
    history: SpeculationHistory,
    frame: Frame,
    records: Sequence[CompletionRecord],
    served: Mapping[Request, int],
    sidecars: Sidecars,
) -> None:
    """Teach the estimates what the live generating lanes of a completed round showed.

    Call it after the lanes advanced and before any row changes hands: `served` are the lanes that
    committed, so a cancelled or finished request teaches nothing.
    """
    graph = frame.plan.graph
    if graph.proposal_depth == 0:
        return
    lanes = [
        (
            step.row,
            offered_rows(record, step.output_ceiling),
            step.output_ceiling,
            len(record.tokens),
            record.terminated,
            request.output_count,
        )
        for step, request, record in zip(frame.plan.steps, frame.requests, records, strict=True)
        if record.tokens and not step.prompt_tokens and request in served
    ]
    if not lanes:
        return
    rows, offered, ceilings, produced, terminated, generated = np.array(lanes, dtype=np.int64).T
    history.observe(
        frame.plan.graph_index,
        graph.source,
        Lanes(rows, offered, ceilings, produced, terminated.astype(np.bool_), generated),
        _driving(sidecars.confidence, rows, graph),
        _driving(sidecars.survival, rows, graph),
    )


def _driving(sidecar: Sidecar | None, rows: Integers, graph: GraphDescriptor) -> Floats | None:
    """Return rank zero's values of the lanes, [n, D]: it alone drives the host's decisions."""
    if sidecar is None:
        return None
    return sidecar[0, rows, : graph.proposal_depth].astype(np.float64)
