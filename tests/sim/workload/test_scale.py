"""Knobs keep what they do not turn: chains, sharing, endpoints."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest

from scheduling_sim.workload import scale
from scheduling_sim.workload.content import token_ids
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.mooncake import read_mooncake
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Workload
from scheduling_sim.workload.summary import prefix_hits, summary
from tests.sim.workload.sources import MOONCAKE_EXCERPT

TALKS = workload("conversations", rate_per_s=1.0, duration_s=100.0, seed=3)


def openers_s(found: Workload) -> list[float]:
    return [r.arrival_ns / 1e9 for r in found.requests if r.follows is None]


def is_closed(found: Workload) -> bool:
    """Tell whether every follower still has its predecessor before it."""
    seen: set[str] = set()
    for request in found.requests:
        if request.follows is not None and request.follows not in seen:
            return False
        seen.add(request.request_id)
    return True


def test_a_higher_rate_shrinks_gaps_and_leaves_think_times() -> None:
    fast = scale.faster(TALKS, 4.0)
    assert openers_s(fast) == pytest.approx([time / 4.0 for time in openers_s(TALKS)])
    assert summary(fast).gap_cv == pytest.approx(summary(TALKS).gap_cv)
    thinks = [r.arrival_ns for r in TALKS.requests if r.follows is not None]
    assert [r.arrival_ns for r in fast.requests if r.follows is not None] == thinks
    assert fast.source.endswith("; rate x 4")


def test_a_rate_can_be_set() -> None:
    assert summary(scale.at_rate(TALKS, 7.5)).rate_per_s == pytest.approx(7.5)


def test_a_window_keeps_whole_conversations() -> None:
    part = scale.window(TALKS, start_s=20.0, length_s=30.0)
    expected = [time - 20.0 for time in openers_s(TALKS) if 20.0 <= time < 50.0]
    assert openers_s(part) == pytest.approx(expected)
    assert is_closed(part)
    kept = {request.request_id for request in part.requests}
    assert all(r.request_id in kept for r in TALKS.requests if r.follows in kept)


def test_a_head_is_a_head() -> None:
    assert scale.head(TALKS, 17).requests == TALKS.requests[:17]
    assert is_closed(scale.head(TALKS, 17))
    assert scale.head(TALKS, 10**6).requests == TALKS.requests


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    small, large = scale.sample(TALKS, 0.3), scale.sample(TALKS, 0.6)
    assert is_closed(small)
    assert set(small.requests) < set(large.requests)
    assert len(openers_s(large)) / len(openers_s(TALKS)) == pytest.approx(0.6, abs=0.15)
    assert scale.sample(TALKS, 0.3, seed=1).requests != small.requests
    assert scale.sample(TALKS, 1.0).requests == TALKS.requests
    assert scale.sample(TALKS, 0.0).requests == ()


def test_tenants_get_whole_conversations_in_their_shares() -> None:
    many = workload("conversations", rate_per_s=10.0, duration_s=200.0, turns="1")
    counts = collections.Counter(
        r.tenant for r in scale.assigned(many, {"a": 1.0, "b": 0.0, "c": 3.0}).requests
    )
    assert counts["a"] / len(many.requests) == pytest.approx(0.25, abs=0.04)
    assert counts["b"] == 0
    shared = scale.assigned(TALKS, {"a": 1.0, "b": 1.0})
    tenant_of = {request.request_id: request.tenant for request in shared.requests}
    assert all(r.tenant == tenant_of[r.follows] for r in shared.requests if r.follows is not None)


@pytest.mark.parametrize("factor", [0.25, 1.7, 3.0])
@pytest.mark.parametrize("limit", ["exact", "factor:2"])
def test_longer_requests_share_what_they_shared(factor: float, limit: str) -> None:
    talks = workload("conversations", limit=limit, seed=3)
    long = scale.longer(talks, factor)
    for request in long.requests:
        assert list(request.endpoints) == sorted(set(request.endpoints))
        assert request.endpoints[-1] == request.prompt_tokens
    missing = [a - b for a, b in zip(*prefix_hits(long.requests), strict=True)]
    # The last token of an answer that its limit cut is not consumed before the next turn.
    assert max(missing) <= (limit == "exact")
    before, after = summary(talks), summary(long)
    assert after.prompt.mean == pytest.approx(factor * before.prompt.mean, rel=0.01)
    assert after.hit_share == pytest.approx(before.hit_share, abs=0.01)


def test_longer_blocks_still_share_their_tokens() -> None:
    long = scale.longer(read_mooncake(MOONCAKE_EXCERPT), 0.5)
    first, second = (token_ids(request.prompt) for request in long.requests[:2])
    assert (first[:256] == second[:256]).all()
    assert long.requests[0].endpoints[:3] == (256, 512, 768)


def test_longer_images_stay_at_their_places() -> None:
    pictures = scale.longer(workload("images", share=1.0), 2.0)
    for request in pictures.requests:
        place, places = 0, {}
        for segment in request.prompt:
            places[segment.content] = (place, segment.tokens)
            place += segment.tokens
        for image in request.images:
            assert places[image.content] == (image.position, image.tokens)


def test_several_workloads_are_one_by_arrival() -> None:
    plain = workload("poisson", duration_s=100.0)
    both = scale.merged("both", [TALKS, plain])
    assert len(both.requests) == len(TALKS.requests) + len(plain.requests)
    assert openers_s(both) == sorted(openers_s(both))
    assert is_closed(both)
    with pytest.raises(WorkloadError, match="share a name"):
        scale.merged("twice", [plain, plain])


@pytest.mark.parametrize(
    "call",
    [
        lambda: scale.faster(TALKS, 0.0),
        lambda: scale.faster(TALKS, float("inf")),
        lambda: scale.at_rate(TALKS, -1.0),
        lambda: scale.at_rate(scale.head(TALKS, 1), 1.0),
        lambda: scale.at_rate(scale.head(TALKS, 0), 1.0),
        lambda: scale.window(TALKS, start_s=-1.0),
        lambda: scale.window(TALKS, length_s=0.0),
        lambda: scale.head(TALKS, -1),
        lambda: scale.sample(TALKS, 1.5),
        lambda: scale.assigned(TALKS, {"a": 0.0}),
        lambda: scale.assigned(TALKS, {"a": -1.0, "b": 2.0}),
        lambda: scale.assigned(TALKS, {}),
        lambda: scale.longer(TALKS, float("nan")),
    ],
)
def test_impossible_knobs_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(WorkloadError):
        call()
