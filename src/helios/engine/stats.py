"""EngineStats: every counter and histogram of the engine, and the snapshot that /metrics exports.

Names are metric names; helios.runtime.metrics says what each means. A delivery gap is the time
between two pieces of text that a client saw; the time per token divides it by the tokens
delivered, so that a burst of several tokens is neither one slow token nor several instant ones.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from helios.engine.flight import Flight
from helios.engine.histogram import HOST_BOUNDS_S, LATENCY_BOUNDS_S, Histogram
from helios.engine.messages import Stats
from helios.engine.ports import FrameResult
from helios.engine.requests import LiveRequest
from helios.scheduler import (
    CalibrationReport,
    CheckpointStats,
    ExplorationAccount,
    GraphKind,
    ResourceConfig,
    ScheduledPlan,
    SelectionReason,
)
from helios.scheduler import Usage as SchedulerUsage

_S_PER_NS = 1e-9

EXECUTIONS = "flare_scheduler_executions_total"
EXECUTION_NS = "flare_scheduler_execution_nanoseconds_total"
ROUNDS = "flare_speculative_program_rounds_total"
PROPOSED = "flare_speculative_depth_proposed_total"
OFFERED = "flare_speculative_depth_offered_total"
ACCEPTED = "flare_speculative_depth_accepted_total"
PADDING = "flare_speculative_program_padding_rows_total"
OBSERVED = "flare_speculative_calibration_observations_total"
ERROR = "flare_speculative_calibration_error"
SQUARED_ERROR = "flare_speculative_calibration_squared_error"
UNCALIBRATED = CalibrationReport((), (), ())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is in use at the moment of a snapshot."""

    scheduler: SchedulerUsage
    resources: ResourceConfig
    checkpoints: CheckpointStats
    exploration: Mapping[SelectionReason, ExplorationAccount]
    frames_in_flight: int
    calibration: CalibrationReport = UNCALIBRATED

    def gauges(self) -> dict[str, float]:
        """Return what is in use now, and what exploration may spend, by metric name."""
        owned, resources, kept = self.scheduler, self.resources, self.checkpoints
        values: dict[str, float] = {
            "flare_requests_waiting": owned.waiting,
            "flare_requests_resident": owned.resident,
            "flare_frames_in_flight": self.frames_in_flight,
            "flare_pages_used": owned.pages_in_use,
            "flare_pages_kept": owned.pages_kept,
            "flare_pages_total": resources.page_count,
            "flare_rows_used": owned.rows_in_use,
            "flare_rows_total": resources.row_count,
            "flare_snapshot_rows_used": owned.snapshot_rows_in_use,
            "flare_snapshot_rows_total": resources.snapshot_rows,
            "flare_checkpoints": kept.published,
        }
        for reason, account in self.exploration.items():
            name = reason.value.replace("-", "_")
            values[f"flare_exploration_{name}_credit_milliseconds"] = account.credit_ms
        learning = self.exploration.get(SelectionReason.ACCEPTANCE_LEARNING)
        values["flare_speculative_credit_milliseconds"] = learning.credit_ms if learning else 0.0
        return {name: float(value) for name, value in values.items()}

    def counters(self) -> dict[str, float]:
        """Return what the scheduler itself has counted since its start, by metric name."""
        kept = self.checkpoints
        values = {
            "flare_preemptions_total": self.scheduler.preemptions,
            "flare_checkpoint_hits_total": kept.hits,
            "flare_checkpoint_misses_total": kept.misses,
            "flare_checkpoint_captures_total": kept.captures,
            "flare_checkpoint_skipped_total": kept.skipped,
            "flare_checkpoint_evictions_total": kept.evictions,
            "flare_checkpoint_restored_tokens_total": kept.restored_tokens,
        }
        return {name: float(value) for name, value in values.items()}

    def calibrations(self) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """Return observations, errors and squared errors of estimated acceptance, by label."""
        observed: dict[str, float] = {}
        errors: dict[str, float] = {}
        squares: dict[str, float] = {}
        report = self.calibration
        kinds = (
            ("learned", report.learned),
            ("copy", report.copied),
            ("forecast", report.forecast),
        )
        for source, entries in kinds:
            for entry in entries:
                label = f'source="{source}",depth="{entry.depth}"'
                observed[label] = float(entry.observations)
                errors[label], squares[label] = entry.error, entry.squared_error
        return observed, errors, squares


class EngineStats:
    """Counts of one engine since it started; `snapshot` is the only way out."""

    __slots__ = ("_active_since_ns", "_counters", "_histograms", "_labelled")

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        self._labelled: dict[str, Counter[str]] = {name: Counter() for name in _LABELLED}
        self._histograms = {name: Histogram(LATENCY_BOUNDS_S) for name in _LATENCIES}
        self._histograms |= {name: Histogram(HOST_BOUNDS_S) for name in _HOST_TIMES}
        self._active_since_ns: int | None = None

    def on_activity(self, *, is_active: bool, now_ns: int) -> None:
        """Add the time since the last call while requests were live.

        It is the denominator of the share of wall time spent inside prepared programs.
        """
        if self._active_since_ns is not None:
            self._counters["flare_active_nanoseconds_total"] += now_ns - self._active_since_ns
        self._active_since_ns = now_ns if is_active else None

    def on_submitted(self) -> None:
        """Count an accepted request."""
        self._counters["flare_requests_submitted_total"] += 1

    def on_rejected(self, code: str) -> None:
        """Count a refused request."""
        self._labelled["flare_requests_rejected_total"][f'code="{code}"'] += 1

    def on_finished(self, request: LiveRequest, reason: str, now_ns: int) -> None:
        """Count the end of an accepted request."""
        self._labelled["flare_requests_finished_total"][f'reason="{reason}"'] += 1
        duration_s = (now_ns - request.arrival_ns) * _S_PER_NS
        self._histograms["flare_request_duration_seconds"].observe(duration_s)

    def on_first_dispatch(self, request: LiveRequest, now_ns: int) -> None:
        """Observe how long a request waited for its first frame."""
        waited_s = (now_ns - request.arrival_ns) * _S_PER_NS
        self._histograms["flare_queue_wait_seconds"].observe(waited_s)

    def on_planned(self, *, plan_ns: int, commit_ns: int | None) -> None:
        """Count a decision; `commit_ns` is None when nothing was committed."""
        self._counters["flare_scheduler_plan_nanoseconds_total"] += plan_ns
        self._counters["flare_scheduler_plans_total"] += 1
        self._histograms["flare_scheduler_plan_seconds"].observe(plan_ns * _S_PER_NS)
        if commit_ns is not None:
            self._counters["flare_scheduler_commit_nanoseconds_total"] += commit_ns
            self._counters["flare_scheduler_commits_total"] += 1

    def on_completed(self, flight: Flight, result: FrameResult, *, complete_ns: int) -> None:
        """Count a frame that ran: its time, its rows, and the host gap before it."""
        counters, plan = self._counters, flight.plan
        counters["flare_scheduler_complete_nanoseconds_total"] += complete_ns
        counters["flare_scheduler_completes_total"] += 1
        counters["flare_replay_nanoseconds_total"] += result.device_ns
        counters["flare_replay_delay_nanoseconds_total"] += result.readiness_ns
        label = f'class="{plan.reason.value}"'
        self._labelled[EXECUTIONS][label] += 1
        self._labelled[EXECUTION_NS][label] += result.device_ns
        graph = f'graph="{plan.graph.name}"'
        self._labelled["flare_frames_total"][graph] += 1
        self._labelled["flare_frame_nanoseconds_total"][graph] += result.device_ns
        if not flight.follows_idle:
            # A gap that nobody waited in says nothing about the host.
            counters["flare_host_gap_nanoseconds_total"] += result.host_gap_ns
            gap_s = result.host_gap_ns * _S_PER_NS
            self._histograms["flare_host_gap_seconds"].observe(gap_s)
        prompt_tokens = sum(step.prompt_tokens for step in plan.steps)
        counters["flare_prompt_tokens_total"] += prompt_tokens
        target_rows = 0
        if plan.graph.proposal_depth:
            target_rows = self._count_round(plan, result)
        kind = f'kind="{plan.graph.kind.name.lower()}"'
        executed = plan.graph.rows + plan.graph.prefill_capacity
        useful = _useful_rows(flight, prompt_tokens, target_rows)
        self._labelled["flare_executed_rows_total"][kind] += executed
        self._labelled["flare_useful_rows_total"][kind] += useful

    def _count_round(self, plan: ScheduledPlan, result: FrameResult) -> int:
        """Count a speculative round's proposals; return the target rows of its lanes that ran.

        For each lane a round proposes up to the ceiling that the host gave it, and offers to the
        target model what the lane's rows but the pending token's are; they are fewer where the
        program deals rows itself. What is accepted came out but for one token.
        """
        graph, depth = plan.graph, plan.graph.proposal_depth
        proposed, offered, accepted = [0] * depth, [0] * depth, [0] * depth
        lanes = rows = 0
        for step, lane in zip(plan.steps, result.lanes, strict=True):
            if lane.tokens and not step.prompt_tokens:
                lanes += 1
                length = lane.offered or step.output_ceiling
                rows += length
                for place in range(step.output_ceiling - 1):
                    proposed[place] += 1
                for place in range(length - 1):
                    offered[place] += 1
                    accepted[place] += place + 1 < len(lane.tokens)
        counters = self._counters
        counters["flare_speculative_rounds_total"] += 1
        counters["flare_speculative_lanes_total"] += lanes
        counters["flare_speculative_proposed_tokens_total"] += sum(proposed)
        counters["flare_speculative_offered_tokens_total"] += sum(offered)
        counters["flare_speculative_accepted_tokens_total"] += sum(accepted)
        name = f'graph="{graph.name}"'
        self._labelled[ROUNDS][name] += 1
        self._labelled[PADDING][name] += graph.rows - rows
        if plan.reason is SelectionReason.ACCEPTANCE_LEARNING:
            counters["flare_speculative_probes_total"] += 1
        source = graph.source.name.lower()
        for place in range(depth):
            label = f'source="{source}",depth="{place + 1}"'
            self._labelled[PROPOSED][label] += proposed[place]
            self._labelled[OFFERED][label] += offered[place]
            self._labelled[ACCEPTED][label] += accepted[place]
        return rows

    def on_failed_frame(self, plan: ScheduledPlan) -> None:
        """Count a frame whose outputs are void."""
        self._labelled["flare_failed_frames_total"][f'graph="{plan.graph.name}"'] += 1

    def on_output_tokens(self, count: int) -> None:
        """Count committed output tokens."""
        self._counters["flare_output_tokens_total"] += count

    def on_deliveries(self, delivered: Sequence[tuple[LiveRequest, int]], *, now_ns: int) -> None:
        """Observe the deliveries of one frame and move their requests' delivery times.

        Each is a request and how many tokens its delivery made visible.
        """
        self._counters["flare_deliveries_total"] += len(delivered)
        gaps = self._histograms["flare_delivery_gap_seconds"]
        per_token = self._histograms["flare_time_per_output_token_seconds"]
        waits: dict[tuple[int, int], int] = {}
        for request, tokens in delivered:
            assert tokens > 0, "a delivery carries the tokens that it makes visible"
            before_ns = request.last_delivery_ns
            if before_ns is None:
                waited_s = (now_ns - request.arrival_ns) * _S_PER_NS
                self._histograms["flare_time_to_first_token_seconds"].observe(waited_s)
            else:
                wait = (before_ns, tokens)
                waits[wait] = waits.get(wait, 0) + 1
            request.last_delivery_ns = now_ns
        # Streams of one frame mostly waited since the same frame before it.
        for (before_ns, tokens), times in waits.items():
            gap_s = (now_ns - before_ns) * _S_PER_NS
            gaps.observe(gap_s, times=times)
            per_token.observe(gap_s / tokens, times=times * tokens)

    def on_stall(self) -> None:
        """Count an intervention of the progress watchdog."""
        self._counters["flare_engine_stalls_total"] += 1

    def snapshot(self, usage: Usage) -> Stats:
        """Return everything, with the gauges of `usage`."""
        active_ns = self._counters["flare_active_nanoseconds_total"]
        replay_ns = self._counters["flare_replay_nanoseconds_total"]
        observed, errors, squares = usage.calibrations()
        return Stats(
            gauges=usage.gauges()
            | {"flare_program_time_share": replay_ns / active_ns if active_ns else 0.0},
            counters={name: float(value) for name, value in self._counters.items()}
            | usage.counters(),
            labelled_counters={
                name: {label: float(value) for label, value in sorted(counter.items())}
                for name, counter in self._labelled.items()
            }
            | {OBSERVED: observed},
            histograms={name: value.state() for name, value in self._histograms.items()},
            labelled_gauges={ERROR: errors, SQUARED_ERROR: squares},
        )


def _useful_rows(flight: Flight, prompt_tokens: int, target_rows: int) -> int:
    """Return the physical rows of a frame that held work: prompt tokens, target rows, features."""
    plan = flight.plan
    if plan.graph.kind is GraphKind.VISION:
        pairs = zip(plan.steps, flight.requests, strict=True)
        return sum(live.accepted.spec.images[step.image_index].features for step, live in pairs)
    if plan.graph.proposal_depth:
        return prompt_tokens + target_rows
    if not prompt_tokens:
        return len(plan.steps)
    # Beside a prompt every other lane has one row.
    return prompt_tokens + sum(not step.prompt_tokens for step in plan.steps)


_COUNTERS = (
    "flare_requests_submitted_total",
    "flare_prompt_tokens_total",
    "flare_output_tokens_total",
    "flare_deliveries_total",
    "flare_active_nanoseconds_total",
    "flare_replay_nanoseconds_total",
    "flare_replay_delay_nanoseconds_total",
    "flare_host_gap_nanoseconds_total",
    "flare_scheduler_plan_nanoseconds_total",
    "flare_scheduler_plans_total",
    "flare_scheduler_commit_nanoseconds_total",
    "flare_scheduler_commits_total",
    "flare_scheduler_complete_nanoseconds_total",
    "flare_scheduler_completes_total",
    "flare_engine_stalls_total",
    "flare_speculative_rounds_total",
    "flare_speculative_lanes_total",
    "flare_speculative_proposed_tokens_total",
    "flare_speculative_offered_tokens_total",
    "flare_speculative_accepted_tokens_total",
    "flare_speculative_probes_total",
)
_LABELLED = (
    "flare_requests_rejected_total",
    "flare_requests_finished_total",
    "flare_frames_total",
    "flare_frame_nanoseconds_total",
    "flare_failed_frames_total",
    "flare_executed_rows_total",
    "flare_useful_rows_total",
    EXECUTIONS,
    EXECUTION_NS,
    ROUNDS,
    PROPOSED,
    OFFERED,
    ACCEPTED,
    PADDING,
)
_LATENCIES = (
    "flare_time_to_first_token_seconds",
    "flare_delivery_gap_seconds",
    "flare_time_per_output_token_seconds",
    "flare_queue_wait_seconds",
    "flare_request_duration_seconds",
)
_HOST_TIMES = ("flare_host_gap_seconds", "flare_scheduler_plan_seconds")
