"""The Prometheus text is what the official parser reads, and every metric says what it is."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client.parser import text_string_to_metric_families

from helios.engine.stats import EngineStats, Usage
from helios.runtime.metrics import HELP, render_metrics
from helios.scheduler import (
    CalibrationEntry,
    CalibrationReport,
    ExplorationAccount,
    SelectionReason,
)
from tests.engine.world import World, request

IDLE = World()
USAGE = Usage(
    scheduler=dataclasses.replace(
        IDLE.scheduler.usage(), waiting=1, resident=2, pages_in_use=3, rows_in_use=2
    ),
    resources=dataclasses.replace(IDLE.scheduler.resources, page_count=8, row_count=4),
    checkpoints=IDLE.scheduler.checkpoint_stats(),
    exploration=IDLE.scheduler.exploration(),
    frames_in_flight=2,
)


def served() -> World:
    world = World()
    for index in range(3):
        world.core.handle(request(f"r{index}", prompt=[5] * 20, max_output_tokens=4))
    world.run()
    return world


def test_the_official_parser_reads_every_sample_back() -> None:
    stats = served().stats()
    samples = {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render_metrics(stats))
        for sample in family.samples
    }
    for name, value in {**stats.gauges, **stats.counters}.items():
        assert samples[name, ()] == pytest.approx(value)
    executions = "flare_scheduler_executions_total"
    for labels, value in stats.labelled_counters[executions].items():
        key, quoted = labels.split("=")
        assert samples[executions, ((key, quoted.strip('"')),)] == value
    first = stats.histograms["flare_time_to_first_token_seconds"]
    name = "flare_time_to_first_token_seconds"
    assert samples[f"{name}_count", ()] == sum(first.counts) == 3
    assert samples[f"{name}_sum", ()] == pytest.approx(first.total)
    assert samples[f"{name}_bucket", (("le", "+Inf"),)] == 3


def test_buckets_contain_all_below_them() -> None:
    text = render_metrics(served().stats())
    counts = [
        int(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("flare_delivery_gap_seconds_bucket")
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 9


def test_every_metric_is_explained_and_every_explanation_is_used() -> None:
    stats = EngineStats().snapshot(USAGE)
    exported = {*stats.gauges, *stats.counters, *stats.labelled_counters, *stats.histograms}
    exported |= set(stats.labelled_gauges)
    exported |= {"flare_engine_up", "flare_engine_restarts_total"}
    assert exported == set(HELP)


def test_without_an_engine_its_state_is_still_exported() -> None:
    lines = render_metrics(None, engine_up=False, engine_restarts=3).splitlines()
    assert "flare_engine_up 0" in lines
    assert "flare_engine_restarts_total 3" in lines


def test_gauges_of_a_snapshot() -> None:
    gauges = EngineStats().snapshot(USAGE).gauges
    assert gauges["flare_pages_used"] == 3
    assert gauges["flare_requests_waiting"] == 1
    assert gauges["flare_program_time_share"] == 0


def test_what_probes_may_spend_is_exported() -> None:
    account = ExplorationAccount(
        credit_ms=-2.5, ordinary_ns=4_000_000, spent_ns=6_500_000, is_open=False
    )
    accounts = {SelectionReason.ACCEPTANCE_LEARNING: account}
    usage = dataclasses.replace(USAGE, exploration=accounts)
    lines = render_metrics(EngineStats().snapshot(usage)).splitlines()
    assert "flare_speculative_credit_milliseconds -2.5" in lines
    assert "flare_exploration_acceptance_learning_credit_milliseconds -2.5" in lines
    assert "flare_speculative_probes_total 0" in lines


def test_calibration_is_exported_by_source_and_depth() -> None:
    entry = CalibrationEntry(
        depth=2, observations=40, predicted=0.5, accepted=0.75, squared_error=1.0
    )
    usage = dataclasses.replace(USAGE, calibration=CalibrationReport((), (entry,), ()))
    lines = render_metrics(EngineStats().snapshot(usage)).splitlines()
    label = 'source="copy",depth="2"'
    assert f"flare_speculative_calibration_observations_total{{{label}}} 40" in lines
    assert f"flare_speculative_calibration_error{{{label}}} -0.25" in lines
    assert "# TYPE flare_speculative_calibration_error gauge" in lines
    assert f"flare_speculative_calibration_squared_error{{{label}}} 1" in lines
