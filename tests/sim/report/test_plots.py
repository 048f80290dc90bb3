"""Plots and the page: drawn without a display, self-contained, the same bytes every time."""

from __future__ import annotations

import base64
import functools
import re

import numpy as np
import pytest

from scheduling_sim.report import outputs
from scheduling_sim.report.plots.cdf import Sample, cdf_figure
from scheduling_sim.report.plots.frontier import Point, frontier_figure
from scheduling_sim.report.plots.of_report import plots
from scheduling_sim.report.plots.style import PALETTE, looks, png_bytes, spread, svg_bytes
from scheduling_sim.report.plots.timeline import Bins, bins_of, timeline_figure
from tests.sim.report.test_files import report


@functools.cache
def files() -> dict[str, bytes]:
    return dict(outputs(report("helios", "fcfs")))


def test_every_file_of_a_report_twice_the_same() -> None:
    first, second = files(), dict(outputs(report("helios", "fcfs")))
    assert list(first) == [
        "report.json",
        "report.csv",
        "requests-1-helios.csv",
        "requests-2-fcfs.csv",
        "frontier.png",
        "ttft.png",
        "gaps.png",
        "timeline.png",
        "report.html",
    ]
    assert first == second


def test_a_sweep_is_drawn_by_its_parameter() -> None:
    names = [plot.name for plot in plots(report("x", "y", "z"))]
    assert names[:4] == [
        "frontier",
        "goodput_share-by-rate",
        "ttft_ms-by-rate",
        "gap_ms-by-rate",
    ]


def test_partial_results_are_named_so() -> None:
    names = [name for name, _ in outputs(report("x", is_partial=True), with_plots=False)]
    assert all(name.startswith("partial-") for name in names)
    page = dict(outputs(report("x", is_partial=True), with_plots=False))["partial-report.html"]
    assert b"Partial results" in page


def test_the_page_loads_nothing_and_escapes_text() -> None:
    page = files()["report.html"].decode()
    assert "a &lt;test&gt; &amp; more" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert "@import" not in page
    assert "url(" not in page
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(images) == 4
    for image in images:
        assert b"<svg" in base64.b64decode(image)
    for text in ("flare sim run --seed 7", "commit abc", "Definitions", "Hyndman"):
        assert text in page


def test_a_run_without_requests_has_a_page_without_plots() -> None:
    import dataclasses

    from scheduling_sim.metrics import measure
    from tests.sim.logs import run_log

    empty = run_log(ended=1)
    full = report("x")
    run = dataclasses.replace(full.runs[0], log=empty, metrics=measure(empty))
    names = [name for name, _ in outputs(dataclasses.replace(full, runs=(run,)))]
    assert names == ["report.json", "report.csv", "requests-1-x.csv", "report.html"]


def test_colours_differ_and_so_do_markers() -> None:
    names = [f"p{i}" for i in range(len(PALETTE))]
    drawn = looks([*names, "p0"])
    assert len(drawn) == len(PALETTE)
    assert len({look.colour for look in drawn.values()}) == len(PALETTE)
    assert len({look.marker for look in drawn.values()}) == len(PALETTE)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.5, 0.4, 0.45], [0.55, 0.35, 0.45]),
        ([0.0, 0.0], [0.0, 0.1]),
        ([], []),
    ],
)
def test_labels_keep_their_distance(places: list[float], expected: list[float]) -> None:
    assert spread(places, 0.1) == pytest.approx(expected)


def test_bins_are_round_and_few() -> None:
    assert bins_of(60_000_000_000, 240) == Bins(0.5, 120)
    assert bins_of(1, 240) == Bins(0.001, 1)
    hour = bins_of(3_600_000_000_000, 60)
    assert (hour.seconds, hour.count) == (60, 60)
    day = bins_of(86_400_000_000_000, 60)
    assert (day.seconds % 60, day.count <= 60) == (0, True)
    assert hour.place(np.array([0, 59_999_999_999, 60_000_000_000])).tolist() == [0, 0, 1]


def test_timelines_bin_tokens_by_time() -> None:
    """Run x delivers 3 tokens in the first bin of 0.05 s ... 0.1 s and 2 at 1.7 s."""
    figure = timeline_figure(report("x").runs)
    values, edges, _ = figure.axes[0].patches[0].get_data()  # type: ignore[attr-defined]
    width = edges[1] - edges[0]
    assert float(np.nansum(values) * width) == pytest.approx(5)
    assert png_bytes(figure).startswith(b"\x89PNG")


def test_latencies_without_values_and_of_zero_are_drawn() -> None:
    samples = [Sample("none", np.zeros(0)), Sample("zero", np.zeros(3)), Sample("one", np.ones(1))]
    assert svg_bytes(cdf_figure(samples, "t", "ms")).startswith(b"<?xml")


def test_frontier_labels_do_not_cover_each_other() -> None:
    points = [Point("s", f"label {i}", 100 + i, 50.0) for i in range(4)]
    figure = frontier_figure(points, "P99", "P99")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 4
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            assert not one.overlaps(other)


def test_a_line_of_the_frontier_is_named_once_where_it_ends() -> None:
    points = [Point("helios", f"rate={rate}", 100.0 * rate, 50.0 * rate) for rate in (1, 2)]
    figure = frontier_figure([*points, Point("fcfs", "fcfs", 400, 20)], "P99", "P99")
    assert [text.get_text() for text in figure.axes[0].texts] == ["rate=1", "helios rate=2", "fcfs"]


def test_timelines_of_a_sweep_are_few_and_their_names_fit() -> None:
    names = [f"helios arrival_shares=0.25 rate_per_s={i}" for i in range(6)]
    (timeline,) = [plot for plot in plots(report(*names)) if plot.name == "timeline"]
    assert timeline.caption.endswith("The first 4 of 6 runs.")
    figure = timeline.figure
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 4
    assert 0 <= box.x0 <= box.x1 <= figure.bbox.width
