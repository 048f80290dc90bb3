"""The prerequisite stages of a request: what must run, in order, before its next inference.

A text request has one stage, INITIALIZE, or RESTORE where a kept state holds the start of its
prompt. A request with images adds one VISION execution for each image of its active window. Where a
window ends, the exact consumed state is copied into the request's private snapshot row and restored
into a fresh generation of execution state, whose feature storage the next window fills from zero:

    INITIALIZE VISION VISION | prefill ... | SNAPSHOT RESTORE VISION | prefill ...
    `------ window 0 ------'                `------ window 1 -------'

What the logical request is (prompt, seed, sampling settings, counters, prices, handle) stays.
"""

from __future__ import annotations

from typing import NamedTuple

from helios.scheduler.catalog import Catalog, GraphKind
from helios.scheduler.config import ResourceConfig, SpeculationConfig
from helios.scheduler.errors import InvalidRequestError
from helios.scheduler.images import (
    check_capacities,
    first_image_from,
    prompt_extent,
    window_count,
    window_end,
)
from helios.scheduler.records import Phase, RequestSpec
from helios.scheduler.requests import ImageWindow, Request

STAGE_KINDS = (GraphKind.INITIALIZE, GraphKind.RESTORE, GraphKind.VISION, GraphKind.SNAPSHOT)
"""Kinds that prepare a request and produce no token."""

BINDING_KINDS = (GraphKind.INITIALIZE, GraphKind.RESTORE)
"""Kinds that bind a fresh generation of execution state to a request's row."""


class StageWork(NamedTuple):
    """What one prerequisite lane does, in the terms that an executor needs."""

    snapshot_row: int
    """Row that a RESTORE reads or a SNAPSHOT writes; -1 for other kinds."""
    image_index: int
    """Image that a VISION execution encodes, or the first that a prefill consumes; -1: none."""
    feature_offset: int
    """Where the features of that image lie in the window's storage."""
    incarnation: int
    """Generation of execution state that the lane runs on; a binding kind creates it."""


# Admission ------------------------------------------------------------------------------------


def check_images(
    spec: RequestSpec, catalog: Catalog, resources: ResourceConfig, speculation: SpeculationConfig
) -> None:
    """Raise InvalidRequestError, with the numbers, for images that could never be prepared.

    The whole prompt is judged, because a kept prefix may be gone when the request is seated.
    """
    if not spec.images:
        return
    check_capacities(
        spec.images,
        feature_rows=resources.feature_rows,
        vision_capacity=_largest(catalog, GraphKind.VISION),
        prompt_capacity=largest_prompt_capacity(spec, catalog, speculation),
    )
    windows = window_count(spec.images, resources.feature_rows)
    if windows == 1:
        return
    what = f"images fill {windows} windows of {resources.feature_rows} feature rows"
    for kind in (GraphKind.SNAPSHOT, GraphKind.RESTORE):
        if not catalog.indices_of(kind):
            raise InvalidRequestError(f"{what}: the catalog has no {kind.name.lower()} graph")
    if resources.snapshot_rows == 0:
        raise InvalidRequestError(f"{what}: one snapshot row is needed and 0 exist")


def largest_prompt_capacity(
    spec: RequestSpec, catalog: Catalog, speculation: SpeculationConfig
) -> int:
    """Return the most prompt tokens that one graph may consume of this request."""
    if spec.scored:
        return _largest(catalog, GraphKind.SCORED_PREFILL)
    mixed = (
        graph.prefill_capacity
        for graph in catalog.graphs
        if graph.prefill_capacity and catalog.generates(graph, speculation)
    )
    return max(_largest(catalog, GraphKind.PREFILL), max(mixed, default=0))


def _largest(catalog: Catalog, kind: GraphKind) -> int:
    indices = catalog.indices_of(kind)
    return max((catalog.graphs[index].token_capacity for index in indices), default=0)


def needs_private_row(spec: RequestSpec, resources: ResourceConfig) -> bool:
    """Tell whether the request owns a private snapshot row for as long as it is resident."""
    return bool(spec.images) and window_count(spec.images, resources.feature_rows) > 1


# The chain ------------------------------------------------------------------------------------


def begin_stages(request: Request, feature_rows: int, *, is_restored: bool = False) -> None:
    """Set what a newly seated request must run first, from its consumed position on.

    Images before that position are part of the restored state; nothing reads their features again.
    """
    head = GraphKind.RESTORE if is_restored else GraphKind.INITIALIZE
    _open_window(request, feature_rows, (head,))


def is_at_boundary(request: Request) -> bool:
    """Tell whether a ready prompt has come to where the following window's first image begins.

    While another stage is left (a checkpoint is taken at this very position) the boundary waits.
    """
    window = request.window
    return (
        window is not None
        and request.phase is Phase.PREFILL
        and not request.stages
        and window.end < len(request.spec.images)
        and request.prompt_done == request.spec.images[window.end].start
    )


def begin_boundary(request: Request, feature_rows: int) -> None:
    """Set what runs between two windows: snapshot, restore, then the next window's images."""
    assert is_at_boundary(request), "a window ends where the next one's images begin"
    assert request.snapshot_row >= 0, "a request of several windows owns a private row"
    _open_window(request, feature_rows, (GraphKind.SNAPSHOT, GraphKind.RESTORE))


def _open_window(request: Request, feature_rows: int, head: tuple[GraphKind, ...]) -> None:
    images = request.spec.images
    if not images:
        request.stages = head
        return
    first = first_image_from(images, request.prompt_done)
    end = window_end(images, first, feature_rows)
    request.window = ImageWindow(first, end, first)
    request.stages = (*head, *(GraphKind.VISION,) * (end - first))


def finish_stage(request: Request, kind: GraphKind) -> None:
    """Take the completed first stage, which is of `kind`, off the chain."""
    assert request.stages, "no prerequisite is left"
    assert request.stages[0] is kind, "prerequisites complete in order"
    request.stages = request.stages[1:]
    if kind in BINDING_KINDS:
        request.incarnation += 1
    elif kind is GraphKind.VISION:
        assert request.window is not None
        request.window = request.window._replace(image=request.window.image + 1)


# What a lane may do ---------------------------------------------------------------------------


def prefill_kind(request: Request) -> GraphKind:
    """Return the only kind of graph that may consume the request's prompt."""
    return GraphKind.SCORED_PREFILL if request.spec.scored else GraphKind.PREFILL


def extent_of(request: Request, capacity: int) -> int:
    """Return the prompt tokens that a graph of `capacity` prompt tokens consumes of the request.

    Zero only where the next thing is an image longer than the capacity.
    """
    window = request.window
    reach = request.reach
    capacity = reach if reach < capacity else capacity
    if window is None and not request.stops:
        # Every prompt is asked for every capacity, so this path has no calls.
        left = request.prompt_tokens - request.prompt_done
        return left if left < capacity else capacity
    images, end = request.spec.images, request.prompt_tokens
    if window is not None and window.end < len(images):
        end = images[window.end].start
    return prompt_extent(request.prompt_done, capacity, end, images, request.stops)


def work_of(request: Request, kind: GraphKind, prompt_tokens: int = 0) -> StageWork:
    """Return what a lane of the request, which consumes `prompt_tokens`, does in a graph of `kind`.

    A lane that consumes images is told the first of them and where its features lie; the features
    of the images behind it follow without a gap.
    """
    row, image, offset, incarnation = -1, -1, 0, request.incarnation
    if kind in BINDING_KINDS:
        incarnation += 1
    if kind in (GraphKind.RESTORE, GraphKind.SNAPSHOT):
        row = request.transfer_row
        if row < 0 and request.phase is not Phase.TERMINAL:
            # An ended request has no further window, and its device may be ahead of what is known.
            row = request.snapshot_row
    elif request.window is not None:
        if kind is GraphKind.VISION:
            image = request.window.image
        elif prompt_tokens:
            image = _first_consumed(request, prompt_tokens)
        if image >= 0:
            offset = feature_offset_of(request, image)
    return StageWork(row, image, offset, incarnation)


def _first_consumed(request: Request, prompt_tokens: int) -> int:
    images = request.spec.images
    first = first_image_from(images, request.prompt_done)
    if first < len(images) and images[first].start < request.prompt_done + prompt_tokens:
        return first
    return -1


def feature_offset_of(request: Request, index: int) -> int:
    """Return where the features of image `index` of the active window lie in the storage.

    Offsets are compact and start from zero in every window, whatever the windows before held.
    """
    window = request.window
    assert window is not None, "a request without images has no features"
    assert window.first <= index < window.end, "the image is not in the active window"
    return sum(image.features for image in request.spec.images[window.first : index])
