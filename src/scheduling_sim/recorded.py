"""A recorded run of our own engine as a platform and a workload: what replays are made of."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from scheduling_sim.costs.recorded import RecordedCosts, Spread, fit_programs, speed_ratios
from scheduling_sim.costs.trace_file import RecordedFrame, RecordedRun
from scheduling_sim.platform import HostCosts, Platform
from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest


def recorded_host(frames: Sequence[RecordedFrame]) -> HostCosts:
    """Return the host's share: turns, the way to an idle device, and the way back.

    `launch_ns` is the median from submission to start of frames that found the device idle,
    `delivery_ns` that from a frame's end to its processing. `turn_ns` is what else the device waits
    for a frame that was planned after its predecessor's end, in the mean: total time counts.
    """
    if not frames:
        return HostCosts()
    alone = [frame for frame in frames if not frame.was_queued]
    launch = _median(frame.started_ns - frame.submitted_ns for frame in alone)
    delivery = _median(f.observed_ns - f.started_ns - f.device_ns for f in frames)
    gaps = [frame.host_gap_ns for frame in alone if frame.host_gap_ns is not None]
    turn = round(statistics.fmean(gaps)) - launch - delivery if gaps else 0
    return HostCosts(turn_ns=max(0, turn), launch_ns=launch, delivery_ns=delivery)


def _median(values: Iterable[int]) -> int:
    known = list(values)
    return max(0, round(statistics.median(known))) if known else 0


def recorded_platform(
    run: RecordedRun, *, name: str, spread: Spread = Spread.NONE, seed: int = 0
) -> Platform:
    """Return the machine of a recorded run: its catalog, resources, costs and host."""
    programs = fit_programs(run)
    return Platform(
        name=name,
        catalog=run.catalog,
        resources=run.resources,
        costs=RecordedCosts(
            programs,
            run.catalog.graphs,
            ratios=speed_ratios(run, programs) or (1.0,),
            spread=spread,
            seed=seed,
        ),
        host=recorded_host(run.frames),
        source=f"recorded run of {run.model}: {run.where}",
    )


def recorded_workload(run: RecordedRun) -> Workload:
    """Return the requests of a recorded run, arriving as they did, with answers as long as theirs.

    Every prompt has its own content; a recorded run whose requests found kept states is refused,
    since a trace does not say which prompts share what. Requests that were cancelled leave when
    they left.
    """
    if not run.requests:
        raise ValueError(f"{run.where}: no request ended in this run")
    shared = [r.request_id for r in run.requests if r.cached_prompt_tokens]
    if shared:
        raise ValueError(
            f"{run.where}: {shared[0]} found a kept state; record prompts of their own"
        )
    start = run.requests[0].arrival_ns
    requests = []
    for index, request in enumerate(run.requests):
        cancelled = request.reason == "cancelled"
        requests.append(
            WorkloadRequest(
                request_id=request.request_id,
                arrival_ns=request.arrival_ns - start,
                prompt=(Segment(content_identity("recorded", index), request.prompt_tokens),),
                output=Segment(
                    content_identity("recorded-answer", index),
                    request.max_output_tokens if cancelled else max(1, request.output_tokens),
                ),
                max_output_tokens=request.max_output_tokens,
                tenant=request.tenant,
                weight=request.weight,
                cancel_after_ns=request.finished_ns - request.arrival_ns if cancelled else None,
            )
        )
    return Workload(name="recorded", requests=tuple(requests), source=run.where)
