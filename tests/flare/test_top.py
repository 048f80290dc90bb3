"""`flare top`: what two readings say, what is shown, and what happens when the server is away."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest
from rich.console import Console

from flare.command_line import run_command
from flare.top.errors import TopError
from flare.top.reading import Change, Histogram, Reading, Window, read_metrics
from flare.top.screen import bar, screen, spark
from flare.top.view import View, view_of
from flare.top.watching import Frame, Server, frames
from helios.engine.messages import HistogramState, Stats
from helios.runtime.metrics import render_metrics
from tests.server.live import Live, live

QUIET: dict[str, float] = {
    "flare_requests_waiting": 2,
    "flare_requests_resident": 3,
    "flare_rows_total": 16,
    "flare_frames_in_flight": 1,
    "flare_pages_used": 40,
    "flare_pages_kept": 8,
    "flare_pages_total": 50,
}


def reading(
    at_s: float,
    *,
    counters: Mapping[str, float] | None = None,
    gauges: Mapping[str, float] | None = None,
    labelled: Mapping[str, Mapping[str, float]] | None = None,
    gaps: tuple[int, ...] = (0, 0, 0),
) -> Reading:
    """Read what the server itself would print."""
    name = "flare_delivery_gap_seconds"
    grown = {"flare_scheduler_commits_total": 10 * at_s, **(counters or {})}
    shown = {
        key: {label: float(value) for label, value in values.items()}
        for key, values in (labelled or {}).items()
    }
    stats = Stats(
        gauges={key: float(value) for key, value in {**QUIET, **(gauges or {})}.items()},
        counters={key: float(value) for key, value in grown.items()},
        labelled_counters={key: value for key, value in shown.items() if key.endswith("_total")},
        labelled_gauges={key: value for key, value in shown.items() if not key.endswith("_total")},
        histograms={name: HistogramState(bounds=(0.01, 0.02), counts=gaps, total=1.0)},
    )
    return read_metrics(render_metrics(stats, engine_restarts=1), at_s)


def view(*readings: Reading, span_s: float = 30) -> View:
    window = Window(span_s)
    for one in readings:
        window.add(one)
    return view_of(window)


def drawn(one: View, **more: str) -> str:
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(screen(one, url="http://x", **more), highlight=False)
    return console.export_text()


def test_rates_are_of_the_last_interval_and_percentiles_of_the_window() -> None:
    got = view(
        reading(10, counters={"flare_output_tokens_total": 100}, gaps=(5, 0, 0)),
        reading(12, counters={"flare_output_tokens_total": 400}, gaps=(5, 50, 0)),
        reading(14, counters={"flare_output_tokens_total": 500}, gaps=(5, 100, 0)),
    )
    assert got.output_per_s == 50
    assert got.history == (150, 50)
    assert (got.rate_s, got.window_s) == (2, 4)
    gap = got.latencies[1]
    assert gap.observations == 100
    # All hundred lie between 10 and 20 ms; what came before the window is not among them.
    assert gap.p50_ms == pytest.approx(15)
    assert gap.p99_ms == pytest.approx(19.9)
    assert (got.streams, got.rows, got.waiting, got.pages_used, got.pages) == (3, 16, 2, 40, 50)
    assert got.restarts == 1


def test_one_reading_shows_what_happened_since_the_servers_start_and_no_rate() -> None:
    got = view(reading(10, counters={"flare_output_tokens_total": 100}, gaps=(4, 0, 0)))
    assert (got.output_per_s, got.rate_s, got.window_s, got.live_share) == (0, 0, 0, None)
    assert got.latencies[1].observations == 4
    assert "since the server's start" in drawn(got)
    assert "tokens/s" not in drawn(got)


def test_the_window_slides_and_covers_its_span() -> None:
    window = Window(3)
    for at_s in range(10):
        window.add(reading(at_s))
    assert window.whole.seconds == 3


def test_a_server_that_was_started_again_begins_a_new_window() -> None:
    window = Window(30)
    for at_s in (5, 6):
        window.add(reading(at_s, counters={"flare_output_tokens_total": 900}))
    window.add(reading(7, counters={"flare_scheduler_commits_total": 1}))
    assert window.whole.seconds == 0
    assert view_of(window).output_per_s == 0


def test_quantiles_are_interpolated_in_their_bucket() -> None:
    inf = float("inf")
    assert Histogram((1.0, 2.0, inf), (0, 4, 0)).quantile(0.5) == pytest.approx(1.5)
    assert Histogram((1.0, 2.0, inf), (2, 2, 0)).quantile(0.25) == pytest.approx(0.5)
    # Beyond the last bound nothing is known but that it is longer.
    assert Histogram((1.0, 2.0, inf), (0, 0, 9)).quantile(0.5) == 2.0
    assert Histogram((1.0, inf), (0, 0)).quantile(0.5) is None
    assert Histogram((), ()).quantile(0.5) is None


def test_programs_are_ranked_by_their_time_and_the_rest_is_counted() -> None:
    names = [f"decode-b{n}" for n in range(1, 13)]
    before = {f'graph="{name}"': 0.0 for name in names}
    times = {f'graph="{name}"': 1e6 * (n + 1) for n, name in enumerate(names)}
    ran = {f'graph="{name}"': 2.0 for name in names}
    got = view(
        reading(1, labelled={"flare_frame_nanoseconds_total": before}),
        reading(2, labelled={"flare_frame_nanoseconds_total": times, "flare_frames_total": ran}),
    )
    assert [one.name for one in got.programs][:2] == ["decode-b12", "decode-b11"]
    assert got.programs[0].mean_ms == pytest.approx(6)
    assert got.programs[0].share == pytest.approx(12 / 78)
    assert (len(got.programs), got.other_programs) == (10, 2)
    assert "and 2 more" in drawn(got)


def test_shares_padding_ends_and_troubles() -> None:
    got = view(
        reading(1),
        reading(
            3,
            counters={
                "flare_active_nanoseconds_total": 1e9,
                "flare_replay_nanoseconds_total": 9e8,
                "flare_preemptions_total": 3,
            },
            labelled={
                "flare_executed_rows_total": {'kind="decode"': 16},
                "flare_useful_rows_total": {'kind="decode"': 12},
                "flare_requests_finished_total": {'reason="stop"': 4, 'reason="length"': 0},
                "flare_requests_rejected_total": {'code="queue_full"': 1},
                "flare_scheduler_executions_total": {'class="ordinary"': 7},
            },
        ),
    )
    assert got.inside_share == pytest.approx(0.9)
    assert got.live_share == pytest.approx(0.5)
    text = drawn(got)
    for words in (
        "90.0% of the time with requests, requests live 50% of it",
        "decode 25%",
        "stop 4; rejected: queue_full 1",
        "ordinary 7",
        "preemptions 3",
        "40 of 50, 8 of them kept prefixes",
        "3 of 16, 2 waiting",
        "engine restarted 1 x",
    ):
        assert words in text
    assert "speculation" not in text
    assert "length" not in text


def test_speculation_and_prefixes_are_shown_where_they_are() -> None:
    got = view(
        reading(1),
        reading(
            2,
            gauges={"flare_speculative_credit_milliseconds": -2.5},
            counters={
                "flare_speculative_rounds_total": 10,
                "flare_speculative_lanes_total": 20,
                "flare_speculative_proposed_tokens_total": 80,
                "flare_speculative_offered_tokens_total": 60,
                "flare_speculative_accepted_tokens_total": 30,
                "flare_speculative_probes_total": 3,
                "flare_checkpoint_hits_total": 4,
                "flare_checkpoint_restored_tokens_total": 4096,
            },
            labelled={
                "flare_speculative_depth_offered_total": {
                    'source="copy",depth="1"': 20,
                    'source="copy",depth="10"': 10,
                    'source="learned",depth="1"': 30,
                },
                "flare_speculative_depth_accepted_total": {
                    'source="copy",depth="1"': 15,
                    'source="learned",depth="1"': 15,
                },
                "flare_speculative_calibration_error": {
                    'source="copy",depth="1"': -0.08,
                    'source="copy",depth="10"': 0.03,
                },
                "flare_speculative_program_padding_rows_total": {
                    'graph="speculative-b4-d3-w4-copy"': 13
                },
            },
        ),
    )
    assert got.speculation is not None
    assert got.speculation.acceptance == 0.5
    assert got.speculation.tokens_per_lane == 2.5
    text = drawn(got)
    assert (
        "10.0 rounds/s, 80 proposed, 60 offered, 30 accepted (50% of offered), 2.50 tokens" in text
    )
    assert "copy by depth 1: 75%, 10: 0%; estimates off by at most 8%" in text
    assert "learned by depth 1: 50%" in text
    assert "1.3 rows of padding each" in text
    assert "3 of deeper rounds, -2.5 ms of credit" in text
    assert "4 hits, 0 misses, 4,096 tokens saved" in text


def test_bars_and_sparks_have_one_width() -> None:
    widths = {bar(value, 10).cell_len for value in (0, 3, 10, 99)} | {bar(1, 0).cell_len}
    assert widths == {24}
    assert {spark(values).cell_len for values in ([], [0, 0], [1.0] * 90)} == {24}
    assert spark([0, 5, 10]).plain.endswith(" ▄█")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# TYPE up gauge\nup 1\n", "is it a flare server"),
        ("<html><body>hello</body></html>", "not the text of Prometheus"),
        ("flare_engine_up one\n", "not the text of Prometheus"),
        ("", "is it a flare server"),
    ],
)
def test_what_is_no_metrics_of_ours_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopError, match=message):
        read_metrics(text, 0)


def test_a_server_that_is_away_keeps_its_last_view_until_it_is_back() -> None:
    answers: list[Callable[[], Reading]] = []
    now = 0.0

    def away() -> Reading:
        raise TopError("no server answers")

    def tick(seconds: float) -> None:
        nonlocal now
        now += seconds

    def read() -> Reading:
        return answers.pop(0)()

    answers = [away, lambda: reading(1), away, away, lambda: reading(4)]
    source = frames(read, interval_s=2, window_s=30, sleep=tick, clock=lambda: now)
    got = list(itertools.islice(source, 5))
    assert got[0] == Frame(None, "no server answers")
    assert got[1].view is not None
    assert got[1].trouble == ""
    assert [frame.trouble for frame in got[2:4]] == [
        "no server answers; 0 s so far",
        "no server answers; 2 s so far",
    ]
    assert got[3].view == got[1].view
    assert "2 s so far" in drawn(got[1].view, trouble=got[3].trouble)
    assert got[4].trouble == ""


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def test_one_frame_of_a_running_server(server: Live, capsys: pytest.CaptureFixture[str]) -> None:
    server.post("/v1/completions", prompt="hello", max_tokens=5)
    assert run_command(["top", f"{server.url}/v1", "--once", "--interval", "0.1"]) == 0
    text = capsys.readouterr().out
    assert server.url in text
    assert "up" in text
    assert "gap per delivery" in text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9"),
        ("ftp://x", "a server's URL is like http://127.0.0.1:8000"),
        ("http://x:y", "is not a URL"),
    ],
)
def test_one_frame_of_no_server_is_an_error(
    url: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["top", url, "--once"]) == 2
    assert message in capsys.readouterr().err


def test_an_address_that_is_no_metrics_is_named(server: Live) -> None:
    with pytest.raises(TopError, match="answers 404"):
        Server(f"{server.url}/nowhere", None).read()


def test_metrics_of_a_whole_scrape_can_be_read(server: Live) -> None:
    """The server prints the engine's and the front's metrics one after the other."""
    got = read_metrics(server.http.get("/metrics").text, 1.0)
    assert got.by_label("flare_scheduler_executions_total", "class") == {"ordinary": 3}
    assert got.histogram("flare_inter_token_gap_seconds").total == 3
    assert Change(got, got).rate("flare_requests_total") == 0
