"""Speculative frames that a test composes itself: which lanes, which ceilings, which outcome.

The scheduler's own choice is not asked, so that a completion can be tested in every situation that
some choice could lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from helios.scheduler import (
    CompletionRecord,
    DecodeMode,
    GeneratedToken,
    MixedLane,
    MixedRole,
    Phase,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
    SpeculationConfig,
)
from helios.scheduler.plan import seal
from helios.scheduler.speculation import SpeculationHistory
from tests.support.catalogs import ModelledCatalog, modelled
from tests.support.solo import timed
from tests.support.world import Flight, World, measure_directly

Sidecar = npt.NDArray[np.float32]

HOST = "speculative-b4-d3-w4"
HOST_RAGGED = "speculative-b4-d3-w4-p8"
DEVICE = "speculative-b4-d3-w4-p8-device"
NARROW = "speculative-b4-d0-w1"
COPY = "speculative-b4-d5-w6-copy"
MIXED = "mixed-b4-d3-w4-c64"
ROWS = 4
DEPTH = 5
"""Draft capacity of the catalog: the largest proposal depth, that of the copy program."""

ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)


def catalog(**fields: object) -> ModelledCatalog:
    """Return one program of every kind that a round can be; `fields` go to those that propose."""
    names = ("initialize-b4", "prefill-c64", "terminal-b4", NARROW, HOST, HOST_RAGGED, DEVICE)
    return modelled(dict.fromkeys((*names, COPY, MIXED), 4.0), **fields)


def decoding(
    names: str = "abcd", *, output: int | Mapping[str, int] = 100, reports_survival: bool = True
) -> World:
    """Return a world whose requests all decode and have one output token each."""
    world = World(catalog(reports_survival=reports_survival), rows=ROWS, speculation=ADAPTIVE)
    measure_directly(world)
    for name in names:
        limit = output if isinstance(output, int) else output[name]
        world.admit(name, 20, limit, needs_feedback=True)
    begin(world, names)
    for name in names:
        world.commit(compose(world, "prefill-c64", {}, prompt=(name, 20, 1)))
        world.finish_frame()
    return world


def begin(world: World, names: str) -> None:
    """Initialise fresh requests in one frame."""
    world.commit(compose(world, "initialize-b4", dict.fromkeys(names, 0)))
    world.finish_frame()


def phase_of(world: World, name: str) -> Phase:
    """Return where a stream stands."""
    return world.scheduler.phase_of(world.streams[name].handle)


def history(world: World) -> SpeculationHistory:
    """Return what the scheduler remembers of rounds."""
    return world.scheduler._state.history


def row_of(world: World, name: str) -> int:
    """Return a stream's physical row."""
    return world.scheduler._state.table.find(world.streams[name].handle).row


def compose(
    world: World,
    graph_name: str,
    ceilings: Mapping[str, int],
    *,
    prompt: tuple[str, int, int] | None = None,
) -> ScheduledPlan:
    """Return a plan for `graph_name` with a lane per stream, in the order given.

    `prompt` adds a prompt lane at the end: (stream, prompt tokens, output ceiling).
    """
    state = world.scheduler._state
    graphs = state.catalog.graphs
    index = next(i for i, graph in enumerate(graphs) if graph.name == graph_name)
    lanes = [(name, 0, ceiling) for name, ceiling in ceilings.items()]
    roles = [MixedRole.GENERATE] * len(lanes)
    if prompt is not None:
        lanes.append(prompt)
        roles.append(MixedRole.PROMPT)
    steps = []
    for (name, prompt_tokens, ceiling), role in zip(lanes, roles, strict=True):
        request = state.table.find(world.streams[name].handle)
        steps.append(
            ScheduledStep(
                handle=request.handle,
                row=request.row,
                position=request.position_after(request.queued_tokens),
                prompt_tokens=prompt_tokens,
                output_ceiling=ceiling,
                pages=request.pages,
                mixed=MixedLane(role, DecodeMode.ADAPTIVE) if graph_name == MIXED else None,
            )
        )
    plan = ScheduledPlan(
        graph_index=index,
        graph=graphs[index],
        steps=tuple(steps),
        estimated_duration_ns=world.model.duration_ns[graph_name],
        reason=SelectionReason.ORDINARY,
        needs_empty_queue=False,
        epoch=state.version,
        value_rate=1.0,
        log_scale=0.0,
        prefill_row=-1 if prompt is None else len(ceilings),
        cost_index=index,
    )
    # A scheduler commits nothing that it has not made itself.
    seal(plan, state.table)
    return plan


def fly(world: World, graph_name: str, ceilings: Mapping[str, int], **more: object) -> Flight:
    """Commit a composed plan; complete it with `land`, not with the world's device."""
    flight = world.commit(compose(world, graph_name, ceilings, **more))  # type: ignore[arg-type]
    world.queue.clear()
    return flight


def lane(
    flight: Flight, index: int, tokens: int, *, offered: int = 0, terminated: bool = False
) -> CompletionRecord:
    """Return the record of a lane that committed `tokens` tokens."""
    step = flight.plan.steps[index]
    return CompletionRecord(
        step.handle,
        prompt_tokens=step.prompt_tokens,
        tokens=tuple(100 * index + token for token in range(tokens)),
        terminated=terminated,
        offered=offered,
    )


def sidecar(world: World, rows: Mapping[str, Sequence[float]], ranks: int = 1) -> Sidecar:
    """Return a sidecar with the streams' values in their rows; everything else is NaN.

    Entries that no lane produced hold whatever an earlier round left there.
    """
    values = np.full((ranks, ROWS, DEPTH), np.nan, dtype=np.float32)
    for name, falling in rows.items():
        values[:, row_of(world, name), : len(falling)] = falling
    return values


def land(
    world: World,
    flight: Flight,
    records: Sequence[CompletionRecord],
    *,
    confidence: object = None,
    survival: object = None,
    peers: Sequence[Sequence[CompletionRecord]] = (),
) -> list[GeneratedToken]:
    """Complete a flight through the call that takes the sidecars given."""
    world.advance_to(max(world.now_ns, flight.finish_ns))
    call = "complete" if confidence is None else "complete_packed_round"
    call += "" if survival is None else "_with_survival"
    sidecars = [value for value in (confidence, survival) if value is not None]
    complete = getattr(world.scheduler, call)
    tokens: list[GeneratedToken] = complete(
        flight.fence, records, timed(4.0), *sidecars, peers=peers
    )
    return tokens
