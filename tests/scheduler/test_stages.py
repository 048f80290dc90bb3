"""Prerequisite chains as state: windows, boundaries, what lanes carry (runtime section 7)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphKind,
    ImageSpan,
    InvalidRequestError,
    Phase,
    RequestHandle,
    RequestSpec,
    ResourceConfig,
    SpeculationConfig,
)
from helios.scheduler.requests import ImageWindow, Request
from helios.scheduler.stages import (
    STAGE_KINDS,
    StageWork,
    begin_boundary,
    begin_stages,
    check_images,
    extent_of,
    feature_offset_of,
    finish_stage,
    is_at_boundary,
    needs_private_row,
    work_of,
)
from tests.support.catalogs import descriptor

INITIALIZE, RESTORE = GraphKind.INITIALIZE, GraphKind.RESTORE
VISION, SNAPSHOT, PREFILL = GraphKind.VISION, GraphKind.SNAPSHOT, GraphKind.PREFILL
THREE = (ImageSpan(10, 8, 40), ImageSpan(30, 8, 24), ImageSpan(50, 8, 64))
"""Two images fill a window of 64 feature rows, the third one another."""


def request_of(images: tuple[ImageSpan, ...] = THREE, prompt: int = 70, **fields: Any) -> Request:
    spec = RequestSpec(prompt_tokens=prompt, max_output_tokens=4, images=images, **fields)
    request = Request(RequestHandle(0, 0), spec, 0, 0)
    request.phase = Phase.PREFILL
    request.snapshot_row = 5
    return request


def run_stages(request: Request) -> None:
    while request.stages:
        finish_stage(request, request.stages[0])


# ---- the chain ------------------------------------------------------------------------------


def test_a_text_request_has_one_stage() -> None:
    """INITIALIZE, or RESTORE in its place where a kept state is bound (runtime 7.4)."""
    request = request_of(())
    begin_stages(request, 64)
    assert request.stages == (INITIALIZE,)
    assert request.window is None
    begin_stages(request, 64, is_restored=True)
    assert request.stages == (RESTORE,)


def test_vision_of_the_first_window_follows_initialisation() -> None:
    """One execution for each image of the active window, and none of a later one (7.4)."""
    request = request_of()
    begin_stages(request, 64)
    assert request.stages == (INITIALIZE, VISION, VISION)
    assert request.window == ImageWindow(0, 2, 0)


def test_stages_complete_in_order() -> None:
    """A chain advances by its first stage alone (7.4)."""
    request = request_of()
    begin_stages(request, 64)
    with pytest.raises(AssertionError, match="in order"):
        finish_stage(request, VISION)
    seen = []
    while request.stages:
        assert request.window is not None
        seen.append((request.stages[0].name, request.incarnation, request.window.image))
        finish_stage(request, request.stages[0])
    assert seen == [("INITIALIZE", 0, 0), ("VISION", 1, 0), ("VISION", 1, 1)]
    with pytest.raises(AssertionError, match="no prerequisite is left"):
        finish_stage(request, VISION)


def test_prefill_stops_before_the_following_windows_first_image() -> None:
    """Text behind the window's last image is consumed; the next window's image is not (7.5)."""
    request = request_of()
    begin_stages(request, 64)
    run_stages(request)
    assert extent_of(request, 1000) == 50
    request.prompt_done = 38
    assert extent_of(request, 1000) == 12
    assert not is_at_boundary(request)
    request.prompt_done = 50
    assert is_at_boundary(request)


def test_a_boundary_snapshots_restores_and_encodes_the_next_window() -> None:
    """Snapshot, restore into a fresh generation, offsets from zero (7.6, 7.7)."""
    request = request_of()
    begin_stages(request, 64)
    run_stages(request)
    request.prompt_done = 50
    begin_boundary(request, 64)
    assert request.stages == (SNAPSHOT, RESTORE, VISION)
    assert request.window == ImageWindow(2, 3, 2)
    assert work_of(request, SNAPSHOT) == StageWork(5, -1, 0, 1)
    finish_stage(request, SNAPSHOT)
    assert request.incarnation == 1
    assert work_of(request, RESTORE) == StageWork(5, -1, 0, 2)
    finish_stage(request, RESTORE)
    assert request.incarnation == 2
    assert work_of(request, VISION) == StageWork(-1, 2, 0, 2)
    finish_stage(request, VISION)
    assert request.stages == ()
    assert extent_of(request, 1000) == 20
    assert request.prompt_done == 50, "the exact consumed state, no page is rounded"


def test_a_boundary_needs_its_place_and_its_row() -> None:
    """A window ends exactly where the next one's images begin, in a row of its own (7.6)."""
    request = request_of()
    begin_stages(request, 64)
    run_stages(request)
    request.prompt_done = 49
    with pytest.raises(AssertionError, match="where the next one's images begin"):
        begin_boundary(request, 64)
    request.prompt_done, request.snapshot_row = 50, -1
    with pytest.raises(AssertionError, match="private row"):
        begin_boundary(request, 64)


def test_a_boundary_waits_for_what_else_happens_there() -> None:
    """A checkpoint taken at the boundary's position comes first, and an ended request has none."""
    request = request_of()
    begin_stages(request, 64)
    run_stages(request)
    request.prompt_done = 50
    assert is_at_boundary(request)
    request.stages = (SNAPSHOT,)
    assert not is_at_boundary(request)
    request.stages = ()
    for phase in Phase:
        request.phase = phase
        assert is_at_boundary(request) == (phase is Phase.PREFILL)


def test_images_before_a_restored_position_are_not_encoded_again() -> None:
    """A kept prefix contains its images; windows start with the first image behind it (7.4)."""
    for position, stages, window in (
        (18, (RESTORE, VISION), ImageWindow(1, 2, 1)),
        (30, (RESTORE, VISION), ImageWindow(1, 2, 1)),
        (38, (RESTORE, VISION), ImageWindow(2, 3, 2)),
        (58, (RESTORE,), ImageWindow(3, 3, 3)),
    ):
        request = request_of()
        request.prompt_done = position
        begin_stages(request, 64, is_restored=True)
        assert (request.stages, request.window) == (stages, window)


def test_what_prompt_lanes_carry() -> None:
    """A chunk with images names the first one and where its features lie (7.8)."""
    request = request_of()
    begin_stages(request, 64)
    run_stages(request)
    assert work_of(request, PREFILL, 10) == StageWork(-1, -1, 0, 1), "text alone"
    assert work_of(request, PREFILL, 18) == StageWork(-1, 0, 0, 1)
    request.prompt_done = 18
    assert work_of(request, PREFILL, 12) == StageWork(-1, -1, 0, 1)
    assert work_of(request, PREFILL, 32) == StageWork(-1, 1, 40, 1)
    assert work_of(request, GraphKind.DECODE) == StageWork(-1, -1, 0, 1)


def test_every_image_request_reaches_its_prompt_end() -> None:
    """Progress (7.3) over all lists of up to 4 images of 1 to 3 rows, all storages, and the
    smallest and the largest chunk at each step: every image is encoded once, in order, at compact
    offsets, before the chunk that consumes it; every window but the first costs one restore."""
    for count in range(5):
        for features in itertools.product((1, 2, 3), repeat=count):
            for rows, capacity in itertools.product(range(3, 6), (2, 3, 50)):
                images = tuple(ImageSpan(1 + 3 * i, 2, f) for i, f in enumerate(features))
                walk(request_of(images, prompt=3 * count + 2), rows, capacity)


def walk(request: Request, rows: int, capacity: int) -> None:
    """Drive one request to its prompt's end and check everything on the way."""
    images = request.spec.images
    encoded: dict[int, tuple[int, int]] = {}
    begin_stages(request, rows)
    restores = 0
    while request.prompt_done < request.prompt_tokens:
        if request.stages:
            kind = request.stages[0]
            work = work_of(request, kind)
            if kind is VISION:
                assert work.image_index == len(encoded), "in order, once"
                assert work.feature_offset + images[work.image_index].features <= rows
                encoded[work.image_index] = (work.feature_offset, work.incarnation)
            restores += kind is RESTORE
            finish_stage(request, kind)
            continue
        extent = extent_of(request, capacity)
        assert extent > 0
        end = request.prompt_done + extent
        work = work_of(request, PREFILL, extent)
        inside = [i for i, im in enumerate(images) if request.prompt_done <= im.start < end]
        for index in inside:
            assert images[index].end <= end
            assert encoded[index] == (feature_offset_of(request, index), request.incarnation)
        assert work.image_index == (inside[0] if inside else -1)
        request.prompt_done = end
        if is_at_boundary(request):
            begin_boundary(request, rows)
    assert len(encoded) == len(images)
    assert request.stages == ()
    assert needs_private_row(request.spec, resources(feature_rows=rows)) == (restores > 0)


# ---- admission ------------------------------------------------------------------------------

BASE = ("initialize-b1", "prefill-c16", "prefill-c64", "decode-b1", "terminal-b1")


def resources(*, feature_rows: int = 64, snapshot_rows: int = 1) -> ResourceConfig:
    return ResourceConfig(
        row_count=2,
        page_count=64,
        page_size_tokens=16,
        context_length_tokens=1024,
        feature_rows=feature_rows,
        snapshot_rows=snapshot_rows,
    )


@pytest.mark.parametrize(
    ("extra", "fields", "image", "message"),
    [
        ((), {}, ImageSpan(0, 4, 4), "needs 4 feature rows, the largest vision graph has 0"),
        (("vision-c32",), {}, ImageSpan(0, 4, 33), "33 feature rows, the largest vision.* 32"),
        (
            ("vision-c128",),
            {},
            ImageSpan(0, 4, 65),
            "65 feature rows, the prepared storage has 64",
        ),
        (
            ("vision-c128",),
            {"feature_rows": 0},
            ImageSpan(0, 4, 1),
            "1 feature rows, the prepared storage has 0",
        ),
        (("vision-c128",), {}, ImageSpan(0, 65, 4), "65 tokens in one chunk, .* graph has 64"),
    ],
)
def test_images_that_nothing_can_prepare_are_refused(
    extra: tuple[str, ...], fields: dict[str, int], image: ImageSpan, message: str
) -> None:
    """Refused at admission with the numbers (runtime 7.1)."""
    catalog = Catalog.of(descriptor(name) for name in (*BASE, *extra))
    spec = RequestSpec(prompt_tokens=100, max_output_tokens=1, images=(image,))
    with pytest.raises(InvalidRequestError, match=message):
        check_images(spec, catalog, resources(**fields), SpeculationConfig())


@pytest.mark.parametrize(
    ("missing", "fields", "message"),
    [
        ("snapshot-b1", {}, "images fill 2 windows of 64 feature rows: .* no snapshot graph"),
        ("restore-b1", {}, "images fill 2 windows of 64 feature rows: .* no restore graph"),
        ("", {"snapshot_rows": 0}, "one snapshot row is needed and 0 exist"),
    ],
)
def test_several_windows_need_a_private_row_and_its_graphs(
    missing: str, fields: dict[str, int], message: str
) -> None:
    """A request of several windows is refused where its boundary could not be run (7.1, 7.6)."""
    names = (*BASE, "vision-c64", "snapshot-b1", "restore-b1")
    catalog = Catalog.of(descriptor(name) for name in names if name != missing)
    one = RequestSpec(prompt_tokens=100, max_output_tokens=1, images=THREE[:2])
    check_images(one, catalog, resources(**fields), SpeculationConfig())
    assert not needs_private_row(one, resources())
    several = RequestSpec(prompt_tokens=100, max_output_tokens=1, images=THREE)
    assert needs_private_row(several, resources())
    with pytest.raises(InvalidRequestError, match=message):
        check_images(several, catalog, resources(**fields), SpeculationConfig())
    whole = Catalog.of(descriptor(name) for name in names)
    check_images(several, whole, resources(), SpeculationConfig())


def test_the_largest_chunk_depends_on_what_may_consume_the_prompt() -> None:
    """Scored prompts need scored graphs; mixed graphs count in the loaded decode mode (7.1)."""
    names = (*BASE, "vision-c64", "scored-prefill-c32", "speculative-b2-d0-w1")
    mixed = ("mixed-b2-w1-c128", "mixed-b2-d0-w1-c192")
    catalog = Catalog.of(descriptor(name) for name in (*names, *mixed))
    adaptive = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
    for tokens, scored, mode, is_legal in (
        (32, True, SpeculationConfig(), True),
        (33, True, SpeculationConfig(), False),
        (128, False, SpeculationConfig(), True),
        (129, False, SpeculationConfig(), False),
        (192, False, adaptive, True),
        (193, False, adaptive, False),
    ):
        spec = RequestSpec(
            prompt_tokens=200,
            max_output_tokens=1,
            scored=scored,
            images=(ImageSpan(0, tokens, 1),),
        )
        if is_legal:
            check_images(spec, catalog, resources(), mode)
        else:
            with pytest.raises(InvalidRequestError, match="in one chunk"):
                check_images(spec, catalog, resources(), mode)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": (ImageSpan(0, 4, 4), ImageSpan(3, 4, 4))}, r"images\[1\] starts at 3"),
        ({"images": (ImageSpan(68, 4, 4),)}, r"images\[0\] ends at 72, the prompt has 70"),
        ({"boundaries": (12,), "images": THREE}, r"boundaries\[0\] is 12, inside images\[0\]"),
        ({"boundaries": (12, 12)}, r"boundaries\[1\] must be an integer of at least 13"),
        ({"boundaries": (71,)}, r"boundaries\[0\] is 71, the prompt has 70"),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    """Spans and boundaries are checked where the request is described (7.1, 7.2)."""
    with pytest.raises(InvalidRequestError, match=message):
        RequestSpec(prompt_tokens=70, max_output_tokens=1, **fields)


def test_every_stage_kind_produces_nothing_by_itself() -> None:
    """The stage kinds are the prerequisites and no other family (7.9)."""
    assert [kind.name for kind in STAGE_KINDS] == ["INITIALIZE", "RESTORE", "VISION", "SNAPSHOT"]
