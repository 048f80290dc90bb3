"""Reference rates and intervals: what the measured programs of a catalog could do for everybody.

They set the speed at which prices move and the scale of an age, and no decision is compared by them
(docs/design/scheduling-utility.md sections 2 to 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from helios.scheduler.acceptance import COPY, LEARNED, AcceptanceTable, Floats, mean_tokens
from helios.scheduler.catalog import GraphKind
from helios.scheduler.geometry import Integers
from helios.scheduler.requests import Request
from helios.scheduler.service import machine_rate, reference_interval_ms
from helios.scheduler.shapes import Shapes
from helios.scheduler.stages import extent_of, prefill_kind


def decode_interval_ms(shapes: Shapes, durations_ms: Floats, streams: int) -> float | None:
    """Return sigma = min K*T/min(B, K) over the measured programs that serve decoders."""
    programs = shapes.geometry.generating
    durations = durations_ms.take(programs.graph)
    # The place of an extreme is found in a quarter of the time that a reduction takes.
    least = float(durations[durations.argmin()])
    if not streams or (least <= 0.0 and not durations.any()):
        return None
    spacing = durations / shapes.geometry.even_lanes(streams).lanes
    if least <= 0.0:
        spacing = spacing[durations > 0.0]
    return streams * float(spacing[spacing.argmin()])


def decode_token_interval_ms(
    shapes: Shapes,
    durations_ms: Floats | Sequence[float],
    decoders: Sequence[Request],
    streams: int,
    acceptance: AcceptanceTable,
    *,
    learned: Floats | None = None,
) -> float | None:
    """Return the inverse of a decoder's reference token rate, ms; None while nothing is measured.

    It is min T*K/(Y*min(B, K)) over the measured programs that serve decoders, Y the tokens that a
    lane is expected to commit: the mean of the decoders, at equal lengths that fit P. `learned` are
    their drafted survivals [n, depth] where the caller has read them.
    """
    durations = np.asarray(durations_ms).take(shapes.geometry.generating.graph)
    # The place of an extreme is found in a quarter of the time that a reduction takes.
    least = float(durations[durations.argmin()])
    if not streams or (least <= 0.0 and not (durations > 0.0).any()):
        return None
    lanes, depths, copies = shapes.geometry.even_lanes(streams)
    limits = [request.max_output - request.output_count for request in decoders]
    if learned is None or copies is not None:
        rows = np.array([request.row for request in decoders], dtype=np.int64)
        learned = acceptance.survivals(rows, LEARNED)
    tokens = mean_tokens(learned, limits).take(depths, mode="clip")
    if copies is not None:
        copied = mean_tokens(acceptance.survivals(rows, COPY), limits).take(depths, mode="clip")
        tokens = np.where(copies, copied, tokens)
    tokens *= lanes
    spacing = durations / tokens
    if least <= 0.0:
        spacing = spacing[durations > 0.0]
    return streams * float(spacing[spacing.argmin()])


def family_interval_ms(
    shapes: Shapes, durations_ms: Sequence[float], kind: GraphKind, rows: int
) -> float | None:
    """Return the reference interval of `rows` streams that the graphs of one kind serve alone."""
    if not rows:
        return None
    measured = [(capacity, durations_ms[index]) for index, capacity in shapes.by_kind[kind]]
    return reference_interval_ms(rows, rows, measured)


def fastest_mixed(shapes: Shapes, durations: Floats) -> list[tuple[int, float]]:
    """Return (prompt capacity, shortest measured duration) of the mixed programs."""
    geometry = shapes.geometry
    if not len(geometry.mixed.graph):
        return []
    measured = durations.take(geometry.mixed_by_capacity)
    measured = np.where(measured > 0.0, measured, np.inf)
    least = np.minimum.reduceat(measured, geometry.mixed_starts).tolist()
    pairs = zip(geometry.mixed_capacities.tolist(), least, strict=True)
    return [(capacity, ms) for capacity, ms in pairs if ms < math.inf]


def prompt_machine_rates(
    shapes: Shapes,
    durations_ms: Floats,
    requests: Sequence[Request],
    mixed: Sequence[tuple[int, float]] = (),
) -> dict[Request, float | None]:
    """Return the rates at which the machine could consume the rest of each prompt; None unmeasured.

    `mixed` are capacities and durations of mixed programs, which consume plain prompts only.
    """
    found: dict[Request, float | None] = dict.fromkeys(requests)
    for kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL):
        group = [request for request in requests if prefill_kind(request) is kind]
        if not group:
            continue
        graphs, capacities = shapes.prompt_shapes[kind]
        measured_ms = durations_ms.take(graphs)
        if mixed and kind is GraphKind.PREFILL:
            beside = np.array(mixed)
            capacities = np.concatenate([capacities, beside[:, 0].astype(np.int64)])
            measured_ms = np.concatenate([measured_ms, beside[:, 1]])
        is_measured = measured_ms > 0.0
        capacities, measured_ms = capacities[is_measured], measured_ms[is_measured]
        if len(capacities):
            found |= _rates_of(group, capacities, measured_ms)
    return found


def _rates_of(
    requests: Sequence[Request], capacities: Integers, measured_ms: Floats
) -> dict[Request, float | None]:
    """Return the rate of every request over measured shapes that may take its prompt."""
    found: dict[Request, float | None] = {}
    plain = [request for request in requests if request.window is None and not request.stops]
    if plain:
        # All of them at once; what an image or a boundary shortens is asked capacity by capacity.
        reach = [min(request.remaining_prompt, request.reach) for request in plain]
        extents = np.minimum(np.array(reach, dtype=np.int64)[:, None], capacities)
        rates = (extents / measured_ms).max(axis=1).tolist()
        found = dict(zip(plain, [rate or None for rate in rates], strict=True))
    for request in requests:
        if request not in found:
            shapes = zip(capacities.tolist(), measured_ms.tolist(), strict=True)
            extended = [(extent_of(request, capacity), ms) for capacity, ms in shapes]
            found[request] = machine_rate(request.remaining_prompt, extended)
    return found
