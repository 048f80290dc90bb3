"""Service, backlog, VTC's gap and bound, Jain's index, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling_sim.metrics.fairness import (
    ServiceTerms,
    common_backlog,
    jain_index,
    service_gap_bound,
    service_gap_over_time,
    service_while_all_backlogged,
    tenant_services,
    worst_service_gap,
)
from tests.sim.logs import MS, request, run_log

PLAIN = ServiceTerms()
LOG = run_log(
    # Both tenants have a request in the queue from 0 to 600 ms.
    request("a1", tenant="a", dispatched=0, prompt=10, chunks=((100, 10),), deliveries=(100, 300)),
    request("a2", tenant="a", dispatched=600, prompt=30, chunks=((700, 30),)),
    request("b1", tenant="b", dispatched=200, prompt=20, chunks=((400, 20),), deliveries=(400,)),
    request("b2", tenant="b", dispatched=900, prompt=50),
    ended=1000,
)


def test_service_is_prompt_plus_twice_the_output() -> None:
    a, b = tenant_services(LOG, PLAIN)
    assert (a.tenant, b.tenant) == ("a", "b")
    moments = np.array([0, 100, 299, 300, 1000]) * MS
    assert a.at(moments).tolist() == [0, 12, 12, 14, 44]
    assert b.at(moments).tolist() == [0, 0, 0, 0, 22]


def test_a_tenant_is_backlogged_while_a_request_waits() -> None:
    a, b = tenant_services(LOG, PLAIN)
    assert a.backlog == ((0, 600 * MS),)
    assert b.backlog == ((0, 900 * MS),)


def test_waits_that_no_dispatch_ends_last_to_their_end() -> None:
    log = run_log(
        request("left", at=0, finished=5, reason="cancelled"),
        request("open", at=10, reason="unfinished"),
        ended=30,
    )
    (only,) = tenant_services(log, PLAIN)
    assert only.backlog == ((0, 5 * MS), (10 * MS, 30 * MS))


def test_the_worst_gap_of_any_part_of_the_common_backlog() -> None:
    """Inside 0..600 ms the difference goes 0, 12, 14, -8: at most 22 apart."""
    gap = worst_service_gap(tenant_services(LOG, PLAIN))
    assert gap is not None
    assert gap == (("a", "b"), 22.0, (0, 600 * MS))


def test_tenant_weights_divide_the_service() -> None:
    """With weight 2 for b the difference goes 0, 12, 14, 3."""
    terms = ServiceTerms(tenant_weights={"b": 2.0})
    gap = worst_service_gap(tenant_services(LOG, terms))
    assert gap is not None
    assert gap.gap == 14.0


def test_no_gap_without_common_backlog() -> None:
    log = run_log(
        request("a", tenant="a", dispatched=10), request("b", tenant="b", at=10, dispatched=20)
    )
    assert worst_service_gap(tenant_services(log, PLAIN)) is None


def test_intersections_of_backlogs() -> None:
    one, other = [(0, 10), (20, 30)], [(5, 22), (25, 26), (29, 40)]
    assert list(common_backlog(one, other)) == [(5, 10), (20, 22), (25, 26), (29, 30)]
    assert list(common_backlog(one, [])) == []


def test_the_bound_of_the_paper() -> None:
    """2 * max(1 * 50, 2 * 40) = 160; prompts decide once they are longer."""
    assert service_gap_bound(LOG, PLAIN, 40) == 160
    assert service_gap_bound(LOG, PLAIN, 4) == 100
    assert service_gap_bound(LOG, ServiceTerms(tenant_weights={"a": 0.5}), 4) == 200
    with pytest.raises(ValueError, match="0 tokens"):
        service_gap_bound(LOG, PLAIN, 0)


def test_gaps_over_time_are_of_tenants_backlogged_all_along() -> None:
    """Spans of 300 ms: a got 14 and b 0, then a 0 and b 22; after 600 ms only b waits."""
    services = tenant_services(LOG, PLAIN)
    got = service_gap_over_time(services, 1000 * MS, 300 * MS)
    assert got == ((300 * MS, 14.0, 2), (600 * MS, 22.0, 2))
    with pytest.raises(ValueError, match="span"):
        service_gap_over_time(services, 1000, 0)


def test_jain_index() -> None:
    assert jain_index([3, 3, 3]) == 1
    assert jain_index([1, 0, 0, 0]) == 0.25
    assert jain_index([1, 2]) == pytest.approx(0.9)
    assert jain_index([]) is None
    assert jain_index([0, 0]) is None


def test_only_service_during_everyones_backlog_is_compared() -> None:
    assert service_while_all_backlogged(tenant_services(LOG, PLAIN)) == [14.0, 22.0]
    assert service_while_all_backlogged([]) == []


def test_weights_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        ServiceTerms(output_weight=0)
