"""Workloads by name: all of them build, alike for one seed, and wrong options are named."""

from __future__ import annotations

import pytest

from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.named import (
    workload,
    workload_names,
    workload_options,
    workload_summary,
)
from scheduling_sim.workload.summary import summary
from tests.sim.workload.sources import AZURE_EXCERPT, MOONCAKE_EXCERPT

NAMES = [name for name in workload_names() if "<" not in name]
TRACES = [f"azure-conv:{AZURE_EXCERPT}", f"mooncake-conv:{MOONCAKE_EXCERPT}"]


@pytest.mark.parametrize("name", [*NAMES, *TRACES])
def test_a_name_gives_a_sound_workload(name: str) -> None:
    found = workload(name)
    ids = [request.request_id for request in found.requests]
    assert len(set(ids)) == len(ids) > 0
    seen: set[str] = set()
    last_ns = 0
    for request in found.requests:
        assert request.prompt_tokens >= 1
        assert 1 <= request.output.tokens <= request.max_output_tokens
        assert list(request.endpoints) == sorted(set(request.endpoints))
        assert all(0 < end <= request.prompt_tokens for end in request.endpoints)
        assert request.follows is None or request.follows in seen
        if request.follows is None:
            assert request.arrival_ns >= last_ns
            last_ns = request.arrival_ns
        seen.add(request.request_id)
    assert workload_summary(name)


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_workload(name: str) -> None:
    assert workload(name, seed=5) == workload(name, seed=5)
    assert workload(name, seed=5).requests != workload(name, seed=6).requests


def test_options_may_be_text() -> None:
    given = workload("poisson", rate_per_s="2", duration_s="30", seed="4", prompt="100")
    assert given == workload("poisson", rate_per_s=2.0, duration_s=30.0, seed=4, prompt="fixed:100")


def test_defaults_can_be_seen() -> None:
    options = workload_options("bursty")
    assert options["cv"] == 4.0
    assert options["on_s"] is None
    assert "rate" in workload_options("azure-conv:x")


def test_a_trace_has_its_knobs() -> None:
    found = workload(
        TRACES[0],
        rate_per_s=20.0,
        start_s=1.0,
        length_s=20.0,
        head=10,
        length_scale=0.5,
        limit="fixed:700",
        context_tokens=4096,
        tenants="a=1,b=1",
    )
    assert len(found.requests) == 10
    assert summary(found).rate_per_s == pytest.approx(20.0)
    assert {request.tenant for request in found.requests} == {"a", "b"}
    for knob in ("from 1 s", "lengths x 0.5", "first 10", "tenants a, b", "rate x"):
        assert knob in found.source


def test_lengths_can_come_from_a_trace() -> None:
    pairs = {(r.prompt_tokens, r.output.tokens) for r in workload(TRACES[0]).requests}
    drawn = workload("poisson", lengths_from=str(AZURE_EXCERPT)).requests
    assert {(r.prompt_tokens, r.output.tokens) for r in drawn} <= pairs


def test_bursts_can_be_periods() -> None:
    found = workload("bursty", on_s=1.0, off_s=20.0, rate_per_s=5.0, duration_s=600.0)
    assert summary(found).gap_cv > 5.0
    assert "on/off" in found.source


def test_tenants_can_have_rates() -> None:
    counts = [r.tenant for r in workload("tenants", rates_per_s="1,8", duration_s=200).requests]
    assert counts.count("tenant1") > 5 * counts.count("tenant0") > 0


def test_the_long_prompt_meets_running_decodes() -> None:
    found = workload("long-meets-decodes")
    *decodes, long = found.requests
    assert len(decodes) == 8
    assert {request.arrival_ns for request in decodes} == {0}
    assert (long.request_id, long.prompt_tokens, long.arrival_ns) == (
        "long-prompt",
        65_000,
        2 * 10**9,
    )


def test_fifteen_minutes_of_long_prompts() -> None:
    found = summary(workload("prompt-heavy"))
    assert found.span_s == pytest.approx(900.0, abs=10.0)
    assert found.prompt_tokens > 20 * found.output_tokens


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("fractal", {}, "no workload is named 'fractal'"),
        ("azure-conv", {}, "azure-conv:<path> is right"),
        ("azure-conv:", {}, "azure-conv:<path> is right"),
        ("azure-conv:/nowhere/x.csv", {}, "cannot be read"),
        ("poisson", {"rate": 3}, "no option 'rate'; it has seed, rate_per_s"),
        ("poisson", {"rate_per_s": "fast"}, "rate_per_s is 'fast'; a number is right"),
        ("poisson", {"seed": 1.5}, "seed is 1.5; a whole number is right"),
        ("poisson", {"seed": True}, "seed is True"),
        ("poisson", {"seed": float("nan")}, "seed is nan"),
        ("poisson", {"seed": float("inf")}, "seed is inf"),
        ("poisson", {"seed": None}, "seed needs a value"),
        ("poisson", {"duration_s": 0}, "no request"),
        ("poisson", {"prompt": "many"}, "length rule 'many'"),
        ("bursty", {"on_s": 3}, "both or neither"),
        ("tenants", {"sizes": "1,x"}, "numbers with commas"),
        ("long-meets-decodes", {"prompt_tokens": 0}, "0 prompt"),
        ("long-meets-decodes", {"decodes": -1}, "decodes is -1"),
        ("long-meets-decodes", {"at_s": -1}, "at_s is -1"),
        (TRACES[0], {"tenants": "a"}, "name=share"),
        (TRACES[0], {"out_of_context_rule": "cut"}, "needs context_tokens"),
        (TRACES[0], {"start_s": 1e6}, "no request"),
    ],
)
def test_wrong_names_and_options_say_what_is_right(
    name: str, options: dict[str, object], why: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        workload(name, **options)  # type: ignore[arg-type]
    assert why in str(error.value)
