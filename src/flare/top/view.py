"""What one frame of `flare top` says, as plain numbers and words; drawing it is `screen`'s."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from flare.top.reading import Change, Reading, Window

LATENCIES: Final = (
    ("first token", "flare_time_to_first_token_seconds"),
    ("gap per delivery", "flare_delivery_gap_seconds"),
    ("gap per token", "flare_time_per_output_token_seconds"),
    ("queue wait", "flare_queue_wait_seconds"),
    ("whole request", "flare_request_duration_seconds"),
)
_MOST_PROGRAMS: Final = 10


class Latency(NamedTuple):
    """Percentiles of a latency, in ms, interpolated in the server's buckets."""

    title: str
    observations: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


class Program(NamedTuple):
    """What one prepared program did."""

    name: str
    frames: int
    share: float
    """Of the time inside programs."""
    mean_ms: float


class Padding(NamedTuple):
    """Rows of one kind that were computed for nothing."""

    kind: str
    share: float


class Depth(NamedTuple):
    """Proposals of one source at one place behind the pending token."""

    source: str
    depth: int
    offered: int
    acceptance: float
    """Share of the offered ones that were accepted."""
    error: float | None
    """Estimate less accepted share since the server's start; None where nothing was estimated."""


class Speculation(NamedTuple):
    """Rounds that verified proposals."""

    rounds_per_s: float
    proposed: int
    offered: int
    accepted: int
    tokens_per_lane: float | None
    """Tokens that a lane got from a round, its own one included."""
    acceptance: float | None
    depths: tuple[Depth, ...] = ()
    padding: float | None = None
    """Target rows of a round, on average, that held nothing."""
    probes: int = 0
    """Rounds that ran to learn of a deeper one."""
    credit_ms: float | None = None
    """What those may spend now; negative while an episode is earned back."""


class Kept(NamedTuple):
    """Prefixes that are kept, and what they saved."""

    states: int
    hits: int
    misses: int
    saved_tokens: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One frame."""

    is_up: bool
    restarts: int
    streams: int
    rows: int
    waiting: int
    frames_in_flight: int
    pages_used: int
    pages_kept: int
    pages: int
    rate_s: float
    """Span of the rates; 0: there was one reading, and no rate."""
    window_s: float
    """Span of latencies, programs and shares; 0: since the server's start."""
    output_per_s: float
    prompt_per_s: float
    history: tuple[float, ...]
    """Output tokens per second, one value per reading."""
    latencies: tuple[Latency, ...]
    programs: tuple[Program, ...]
    other_programs: int
    """Programs that ran and are not shown."""
    inside_share: float | None
    """Of the time in which requests were live, inside programs."""
    live_share: float | None
    """Of all time, with live requests; None since the server's start, whose time is not known."""
    padding: tuple[Padding, ...]
    finished: dict[str, int]
    rejected: dict[str, int]
    reasons: dict[str, int]
    """Executions by why they were chosen."""
    preemptions: int
    stalls: int
    failed_frames: int
    kept: Kept | None
    speculation: Speculation | None


_ZERO: Final = Reading(0.0, {})


def view_of(window: Window) -> View:
    """Return the frame of a window with at least one reading."""
    last, whole = window.last, window.whole
    # One reading alone has no change, so its totals since the server's start are shown instead.
    is_first = whole.seconds <= 0
    past = Change(_ZERO, whole.now) if is_first else whole
    now = whole.now
    programs, others = _programs(past)
    active_ns = past.of("flare_active_nanoseconds_total")
    return View(
        is_up=bool(now.total("flare_engine_up")),
        restarts=int(now.total("flare_engine_restarts_total")),
        streams=int(now.total("flare_requests_resident")),
        rows=int(now.total("flare_rows_total")),
        waiting=int(now.total("flare_requests_waiting")),
        frames_in_flight=int(now.total("flare_frames_in_flight")),
        pages_used=int(now.total("flare_pages_used")),
        pages_kept=int(now.total("flare_pages_kept")),
        pages=int(now.total("flare_pages_total")),
        rate_s=last.seconds,
        window_s=0.0 if is_first else past.seconds,
        output_per_s=last.rate("flare_output_tokens_total"),
        prompt_per_s=last.rate("flare_prompt_tokens_total"),
        history=tuple(window.rates("flare_output_tokens_total")),
        latencies=tuple(_latency(past, *names) for names in LATENCIES),
        programs=programs,
        other_programs=others,
        inside_share=past.of("flare_replay_nanoseconds_total") / active_ns if active_ns else None,
        live_share=None if is_first else min(1.0, active_ns / 1e9 / past.seconds),
        padding=_padding(past),
        finished=_counts(past, "flare_requests_finished_total", "reason"),
        rejected=_counts(past, "flare_requests_rejected_total", "code"),
        reasons=_counts(past, "flare_scheduler_executions_total", "class"),
        preemptions=int(past.of("flare_preemptions_total")),
        stalls=int(past.of("flare_engine_stalls_total")),
        failed_frames=int(past.of("flare_failed_frames_total")),
        kept=_kept(past),
        speculation=_speculation(past, last),
    )


def _latency(change: Change, title: str, name: str) -> Latency:
    histogram = change.histogram(name)
    p50, p90, p99 = (histogram.quantile(share) for share in (0.5, 0.9, 0.99))
    return Latency(title, int(histogram.total), *(_ms(value) for value in (p50, p90, p99)))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _programs(change: Change) -> tuple[tuple[Program, ...], int]:
    times = change.by_label("flare_frame_nanoseconds_total", "graph")
    frames = change.by_label("flare_frames_total", "graph")
    whole_ns = sum(times.values())
    ranked = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    shown = tuple(
        Program(
            name, int(frames.get(name, 0)), ns / whole_ns, ns / 1e6 / max(1, frames.get(name, 1))
        )
        for name, ns in ranked[:_MOST_PROGRAMS]
    )
    return shown, len(ranked) - len(shown)


def _padding(change: Change) -> tuple[Padding, ...]:
    useful = change.by_label("flare_useful_rows_total", "kind")
    executed = change.by_label("flare_executed_rows_total", "kind")
    return tuple(
        Padding(kind, 1 - useful.get(kind, 0.0) / rows) for kind, rows in sorted(executed.items())
    )


def _counts(change: Change, name: str, label: str) -> dict[str, int]:
    return {key: int(value) for key, value in sorted(change.by_label(name, label).items())}


def _kept(change: Change) -> Kept | None:
    hits, misses = (change.of(f"flare_checkpoint_{what}_total") for what in ("hits", "misses"))
    states = change.now.total("flare_checkpoints")
    if not (hits or misses or states):
        return None
    saved = change.of("flare_checkpoint_restored_tokens_total")
    return Kept(int(states), int(hits), int(misses), int(saved))


def _speculation(past: Change, last: Change) -> Speculation | None:
    rounds = past.of("flare_speculative_rounds_total")
    if not rounds:
        return None
    lanes, proposed, offered, accepted = (
        past.of(f"flare_speculative_{what}_total")
        for what in ("lanes", "proposed_tokens", "offered_tokens", "accepted_tokens")
    )
    return Speculation(
        rounds_per_s=last.rate("flare_speculative_rounds_total"),
        proposed=int(proposed),
        offered=int(offered),
        accepted=int(accepted),
        tokens_per_lane=1 + accepted / lanes if lanes else None,
        acceptance=accepted / offered if offered else None,
        depths=_depths(past),
        padding=past.of("flare_speculative_program_padding_rows_total") / rounds,
        probes=int(past.of("flare_speculative_probes_total")),
        credit_ms=past.now.gauge("flare_speculative_credit_milliseconds"),
    )


def _depths(past: Change) -> tuple[Depth, ...]:
    offered = past.by_labels("flare_speculative_depth_offered_total", "source", "depth")
    accepted = past.by_labels("flare_speculative_depth_accepted_total", "source", "depth")
    errors = past.now.by_labels("flare_speculative_calibration_error", "source", "depth")
    return tuple(
        Depth(
            source=key[0],
            depth=int(key[1]),
            offered=int(count),
            acceptance=accepted.get(key, 0.0) / count,
            error=errors.get(key),
        )
        for key, count in sorted(offered.items(), key=lambda item: (item[0][0], int(item[0][1])))
        if count > 0
    )
