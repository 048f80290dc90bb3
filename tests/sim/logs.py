"""Run logs written by hand, in ms, for tests of metrics and reports."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from helios.scheduler import SelectionReason
from scheduling_sim.run_log import RequestLog, RunLog, StepLog
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest

MS = 1_000_000
ORDINARY = SelectionReason.ORDINARY


def integers(values: Sequence[float], unit: int = 1) -> array[int]:
    return array("q", [round(value * unit) for value in values])


def request(
    name: str = "a",
    *,
    at: float = 0,
    prompt: int = 10,
    deliveries: Sequence[float] = (),
    tokens: Sequence[int] | None = None,
    chunks: Sequence[tuple[float, int]] = (),
    dispatched: float | None = None,
    finished: float | None = None,
    reason: str = "length",
    tenant: str = "",
    cached: int = 0,
) -> RequestLog:
    """A request in ms; deliveries bring one token each unless told otherwise."""
    tokens = [1] * len(deliveries) if tokens is None else tokens
    asked = WorkloadRequest(
        request_id=name,
        arrival_ns=round(at * MS),
        prompt=(Segment(1, prompt),),
        output=Segment(2, max(1, sum(tokens))),
        max_output_tokens=max(1, sum(tokens)),
        tenant=tenant,
    )
    return RequestLog(
        request=asked,
        arrival_ns=round(at * MS),
        dispatched_ns=None if dispatched is None else round(dispatched * MS),
        delivery_ns=integers(deliveries, MS),
        delivery_tokens=integers(tokens),
        prompt_ns=integers([chunk[0] for chunk in chunks], MS),
        prompt_tokens=integers([chunk[1] for chunk in chunks]),
        cached_prompt_tokens=cached,
        finished_ns=None if finished is None else round(finished * MS),
        reason=reason,
    )


def steps(
    *rows: tuple[float, float, int],
    useful: Sequence[int] | None = None,
    physical: Sequence[int] | None = None,
    **more: Sequence[int],
) -> StepLog:
    """Steps as (start ms, device ms, graph index); the other columns are one or zero each."""
    count = len(rows)
    columns = {"lanes": [1] * count, "useful_rows": [1] * count, "physical_rows": [1] * count}
    zeros = ("predicted_ns", "offered", "accepted", "decision_ns", "pages_used", "waiting")
    columns |= {name: [0] * count for name in zeros}
    columns |= {"useful_rows": list(useful)} if useful else {}
    columns |= {"physical_rows": list(physical)} if physical else {}
    columns |= {name: list(values) for name, values in more.items() if name != "reasons"}
    return StepLog(
        started_ns=integers([row[0] for row in rows], MS),
        device_ns=integers([row[1] for row in rows], MS),
        graph_index=integers([row[2] for row in rows]),
        reasons=list(more.get("reasons", [ORDINARY] * count)),  # type: ignore[arg-type]
        **{name: integers(values) for name, values in columns.items()},
    )


def run_log(
    *requests: RequestLog,
    ended: float = 10_000,
    taken: StepLog | None = None,
    graphs: Sequence[str] = ("decode-b4", "decode-b8", "prefill-c64"),
    policy: str = "helios",
) -> RunLog:
    """A run that ended at so many ms."""
    asked = tuple(one.request for one in requests)
    return RunLog(
        policy=policy,
        platform="hand-made",
        workload=Workload(name="by-hand", requests=asked),
        seed=7,
        graph_names=tuple(graphs),
        requests=list(requests),
        steps=StepLog() if taken is None else taken,
        ended_ns=round(ended * MS),
    )
