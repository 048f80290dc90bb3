"""A Stats snapshot as Prometheus text; what each metric means is written here, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from helios.engine.messages import HistogramState, Stats

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

HELP: Final = {
    "flare_engine_up": "1 while the engine process takes requests.",
    "flare_engine_restarts_total": "Times a failed engine process was started again.",
    "flare_engine_stalls_total": "Interventions of the progress watchdog.",
    "flare_requests_waiting": "Accepted requests that wait for a row.",
    "flare_requests_resident": "Requests that own a row.",
    "flare_requests_submitted_total": "Accepted requests.",
    "flare_requests_rejected_total": "Requests that were never accepted, by code.",
    "flare_requests_finished_total": "Ended requests, by reason.",
    "flare_frames_in_flight": "Submitted frames that have not completed.",
    "flare_frames_total": "Completed frames, by graph.",
    "flare_frame_nanoseconds_total": "Replay time of completed frames, by graph.",
    "flare_failed_frames_total": "Frames whose outputs are void, by graph.",
    "flare_pages_used": "Pages of the KV cache that are owned.",
    "flare_pages_total": "Pages of the KV cache.",
    "flare_pages_kept": "Used pages that kept states alone hold; they are given up when wanted.",
    "flare_rows_used": "Request rows that are owned.",
    "flare_rows_total": "Request rows.",
    "flare_snapshot_rows_used": "Snapshot rows that are owned.",
    "flare_snapshot_rows_total": "Snapshot rows.",
    "flare_checkpoints": "Kept states that can be found.",
    "flare_checkpoint_hits_total": "Requests that resumed from a kept state.",
    "flare_checkpoint_misses_total": "Requests with endpoints that found none.",
    "flare_checkpoint_captures_total": "States kept since the start.",
    "flare_checkpoint_skipped_total": "Chosen captures given up: no room, or their cost expired.",
    "flare_checkpoint_evictions_total": "Kept states given up for something else.",
    "flare_checkpoint_restored_tokens_total": "Prompt tokens not computed again.",
    "flare_preemptions_total": "Requests that lost their row because no page was left.",
    "flare_speculative_rounds_total": "Completed programs with proposals.",
    "flare_speculative_lanes_total": "Lanes of such programs that committed tokens.",
    "flare_speculative_proposed_tokens_total": "Proposals made or taken for those lanes: up to the "
    "ceiling that each had.",
    "flare_speculative_offered_tokens_total": "Proposals that were verified.",
    "flare_speculative_accepted_tokens_total": "Proposals that were accepted.",
    "flare_speculative_program_rounds_total": "Completed programs with proposals, by program.",
    "flare_speculative_depth_proposed_total": "Proposals made or taken, by source and depth.",
    "flare_speculative_depth_offered_total": "Proposals that were verified, by source and depth.",
    "flare_speculative_depth_accepted_total": "Proposals that were accepted, by source and depth.",
    "flare_speculative_program_padding_rows_total": "Target rows of programs with proposals that "
    "held none, by program.",
    "flare_speculative_probes_total": "Such programs that ran to learn of a deeper round.",
    "flare_speculative_credit_milliseconds": "Time that those may spend; negative while an episode "
    "is earned back.",
    "flare_speculative_calibration_observations_total": "Verified prefixes that estimates were "
    "compared with, by source and depth; forecast: of programs that report confidence.",
    "flare_speculative_calibration_error": "Mean estimate less accepted share of those prefixes.",
    "flare_speculative_calibration_squared_error": "Mean squared difference (Brier score).",
    "flare_exploration_timing_refresh_credit_milliseconds": "Time that refreshes may spend.",
    "flare_exploration_acceptance_learning_credit_milliseconds": "Time that deeper rounds may "
    "spend; negative while an episode is earned back.",
    "flare_executed_rows_total": "Physical rows executed (prompt positions for prefill), by kind.",
    "flare_useful_rows_total": "Executed rows that held work, by kind; the rest is padding.",
    "flare_prompt_tokens_total": "Prompt tokens consumed, replayed ones included.",
    "flare_output_tokens_total": "Output tokens committed.",
    "flare_deliveries_total": "Pieces of output that became visible.",
    "flare_program_time_share": "Share of wall time inside programs while requests were live.",
    "flare_active_nanoseconds_total": "Wall time while requests were live.",
    "flare_replay_nanoseconds_total": "Time inside prepared programs.",
    "flare_replay_delay_nanoseconds_total": "Part of the replay time in which programs stood ready "
    "and something else had their processors.",
    "flare_host_gap_nanoseconds_total": "Time between replays while requests were live.",
    "flare_scheduler_plans_total": "Decisions, also those that found nothing to submit.",
    "flare_scheduler_plan_nanoseconds_total": "Host time of plan().",
    "flare_scheduler_commits_total": "Committed plans.",
    "flare_scheduler_commit_nanoseconds_total": "Host time of commit().",
    "flare_scheduler_completes_total": "Completed frames.",
    "flare_scheduler_complete_nanoseconds_total": "Host time of complete().",
    "flare_scheduler_executions_total": "Completed executions, by class of selection.",
    "flare_scheduler_execution_nanoseconds_total": "Replay time, by class of selection.",
    "flare_time_to_first_token_seconds": "From arrival to the first visible output.",
    "flare_delivery_gap_seconds": "Between two deliveries of one request.",
    "flare_time_per_output_token_seconds": "Delivery gap per token delivered.",
    "flare_queue_wait_seconds": "From arrival to the first submitted frame.",
    "flare_request_duration_seconds": "From arrival to the end.",
    "flare_host_gap_seconds": "From the end of one replay to the start of the next.",
    "flare_scheduler_plan_seconds": "Host time of one plan().",
}


def render_metrics(stats: Stats | None, *, engine_up: bool = True, engine_restarts: int = 0) -> str:
    """Return the text exposition; without a snapshot, of the engine's state alone."""
    lines = [
        *_metric("flare_engine_up", "gauge", {"": float(engine_up)}),
        *_metric("flare_engine_restarts_total", "counter", {"": float(engine_restarts)}),
    ]
    if stats is not None:
        for name, value in stats.gauges.items():
            lines += _metric(name, "gauge", {"": value})
        for name, value in stats.counters.items():
            lines += _metric(name, "counter", {"": value})
        for name, values in stats.labelled_gauges.items():
            lines += _metric(name, "gauge", values)
        for name, values in stats.labelled_counters.items():
            lines += _metric(name, "counter", values)
        for name, histogram in stats.histograms.items():
            lines += _histogram(name, histogram)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, values: dict[str, float]) -> Iterator[str]:
    """Yield the lines of a gauge or counter; keys of `values` are rendered label pairs."""
    yield from _head(name, kind)
    for labels, value in values.items():
        yield f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _histogram(name: str, histogram: HistogramState) -> Iterator[str]:
    """Yield the lines of a histogram; Prometheus wants each bucket to contain all below it."""
    yield from _head(name, "histogram")
    below = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        yield f'{name}_bucket{{le="{bound:g}"}} {below}'
    total = sum(histogram.counts)
    yield f'{name}_bucket{{le="+Inf"}} {total}'
    yield f"{name}_sum {_number(histogram.total)}"
    yield f"{name}_count {total}"


def _head(name: str, kind: str) -> Iterator[str]:
    if name in HELP:
        yield f"# HELP {name} {HELP[name]}"
    yield f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    """Return a float as Prometheus reads it, integers without a fraction."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)
