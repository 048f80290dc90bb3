"""Tenants, images, clients that leave, copied answers: shares and places are as asked."""

from __future__ import annotations

import collections
from collections.abc import Callable

import numpy as np
import pytest

from scheduling_sim.workload import arrivals
from scheduling_sim.workload.assembly import Shape, single_requests
from scheduling_sim.workload.content import token_ids
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.lengths import Fixed, Uniform
from scheduling_sim.workload.mixes import with_acceptance, with_cancellations, with_images
from scheduling_sim.workload.records import WorkloadRequest
from scheduling_sim.workload.tenants import TenantRate, backlogged, by_rate

SHAPE = Shape(prompt=Uniform(50, 200), output=Fixed(20), context_tokens=4000)


def plain(count: int = 2000, shape: Shape = SHAPE) -> list[WorkloadRequest]:
    return single_requests("r", arrivals.evenly(1.0, count=count), shape, seed=0)


def illustrated(requests: list[WorkloadRequest], share: float = 0.5) -> list[WorkloadRequest]:
    return with_images(
        requests,
        share=share,
        images=Uniform(1, 3),
        image_tokens=Uniform(256, 1024),
        seed=0,
        context_tokens=4000,
    )


def test_images_lie_apart_inside_the_text_and_the_context() -> None:
    requests = plain()
    changed = illustrated(requests)
    share = np.mean([bool(request.images) for request in changed])
    assert share == pytest.approx(0.5, abs=0.04)
    for before, after in zip(requests, changed, strict=True):
        end = 0
        for image in after.images:
            assert image.position > end
            end = image.position + image.tokens
        assert end < after.prompt_tokens or not after.images
        pictured = sum(image.tokens for image in after.images)
        assert after.prompt_tokens == before.prompt_tokens + pictured
        assert after.prompt_tokens + after.output.tokens <= 4000
    numbers = collections.Counter(len(request.images) for request in changed)
    assert sorted(numbers) == [0, 1, 2, 3]


def test_an_image_fills_the_positions_that_it_names() -> None:
    request = next(r for r in illustrated(plain(20), share=1.0) if len(r.images) > 1)
    start = 0
    places = {}
    for segment in request.prompt:
        places[segment.content] = (start, segment.tokens)
        start += segment.tokens
    for image in request.images:
        assert places[image.content] == (image.position, image.tokens)


def test_a_text_of_one_token_gets_no_image() -> None:
    shape = Shape(prompt=Fixed(1), output=Fixed(5))
    requests = plain(20, shape)
    assert illustrated(requests, share=1.0) == requests


def test_clients_leave_after_a_time() -> None:
    left = with_cancellations(plain(5000), share=0.3, after_s=4.0, seed=1)
    after_s = [r.cancel_after_ns / 1e9 for r in left if r.cancel_after_ns is not None]
    assert len(after_s) / 5000 == pytest.approx(0.3, abs=0.03)
    assert np.mean(after_s) == pytest.approx(4.0, rel=0.1)
    assert min(after_s) > 0.0


def test_a_share_of_the_requests_has_another_acceptance() -> None:
    mixed = with_acceptance(plain(5000), share=0.8, acceptance="copy-heavy", seed=0)
    counts = collections.Counter(request.acceptance for request in mixed)
    assert counts["copy-heavy"] / 5000 == pytest.approx(0.8, abs=0.03)
    assert counts["copy-heavy"] + counts[""] == 5000


def test_shares_do_not_depend_on_the_order_of_requests() -> None:
    requests = plain(300)
    forward = with_cancellations(requests, share=0.5, after_s=1.0, seed=0)
    backward = with_cancellations(requests[::-1], share=0.5, after_s=1.0, seed=0)
    assert forward == backward[::-1]


def test_tenants_keep_their_number_of_requests_outstanding() -> None:
    requests = backlogged((1, 5, 30), SHAPE, requests_per_tenant=61, seed=0)
    openers = collections.Counter(r.tenant for r in requests if r.follows is None)
    assert sorted(openers.values()) == [1, 5, 30]
    assert set(collections.Counter(r.tenant for r in requests).values()) == {61}
    assert {request.arrival_ns for request in requests} == {0}
    followed = [r.follows for r in requests if r.follows is not None]
    assert len(set(followed)) == len(followed)


def test_tenants_have_their_own_rates() -> None:
    loads = [
        TenantRate(name="small", rate_per_s=1.0, shape=SHAPE, weight=2.0),
        TenantRate(name="large", rate_per_s=9.0, shape=SHAPE, cv=2.0),
    ]
    requests = by_rate(loads, seed=0, duration_s=500.0)
    counts = collections.Counter(request.tenant for request in requests)
    assert counts["small"] == pytest.approx(500, rel=0.15)
    assert counts["large"] == pytest.approx(4500, rel=0.15)
    assert {request.weight for request in requests if request.tenant == "small"} == {2.0}
    alone = by_rate(loads[1:], seed=0, duration_s=500.0)
    assert alone == [request for request in requests if request.tenant == "large"]


def test_no_two_requests_have_the_same_tokens() -> None:
    first = [tuple(token_ids(request.prompt)[:8]) for request in plain(500)]
    assert len(set(first)) == 500


@pytest.mark.parametrize(
    "call",
    [
        lambda: with_cancellations([], share=1.1, after_s=1.0, seed=0),
        lambda: with_cancellations([], share=0.5, after_s=0.0, seed=0),
        lambda: with_acceptance([], share=-0.1, acceptance="", seed=0),
        lambda: illustrated([], share=float("nan")),
        lambda: backlogged((), SHAPE, requests_per_tenant=5, seed=0),
        lambda: backlogged((0, 2), SHAPE, requests_per_tenant=5, seed=0),
        lambda: backlogged((1, 30), SHAPE, requests_per_tenant=29, seed=0),
        lambda: by_rate(
            [TenantRate(name="a", rate_per_s=1.0, shape=SHAPE)] * 2, seed=0, duration_s=1.0
        ),
    ],
)
def test_impossible_mixes_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(WorkloadError):
        call()
