"""Where requests start in an engine whose programs propose for themselves."""

from __future__ import annotations

import pytest

from helios.runtime.engine_process import starts_learned
from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    ResourceConfig,
    RowAllocation,
    Scheduler,
    SpeculationConfig,
)

RESOURCES = ResourceConfig(row_count=1, page_count=8, page_size_tokens=16, context_length_tokens=64)


def round_of(width: int, source: ProposalSource) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=1,
        token_capacity=width,
        proposal_depth=width - 1,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        source=source,
        speculation_enabled=True,
    )


class Recording(Scheduler):
    """A scheduler that tells what it was seeded with."""

    seeds: list[tuple[object, ...]]

    def seed_acceptance(self, source, survivals, *, weight, is_taught=False) -> None:
        super().seed_acceptance(source, survivals, weight=weight, is_taught=is_taught)
        self.seeds.append((source, tuple(survivals), weight, is_taught))


def scheduler_of(source: ProposalSource, mode: DecodeMode = DecodeMode.ADAPTIVE) -> Recording:
    plain = (GraphKind.INITIALIZE, GraphKind.DECODE, GraphKind.TERMINAL)
    graphs = [GraphDescriptor(kind=kind, batch_capacity=1) for kind in plain]
    graphs.append(GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=16))
    graphs += [round_of(1, ProposalSource.NONE), round_of(3, source)]
    scheduler = Recording(
        catalog=Catalog.of(graphs),
        resources=RESOURCES,
        speculation=SpeculationConfig(mode=mode),
    )
    scheduler.seeds = []
    return scheduler


@pytest.mark.parametrize(
    ("survivals", "known"),
    [((0.6, 0.4, 0.2, 0.1), (0.6, 0.4)), ((0.5,), (0.5,))],
)
def test_a_request_starts_at_the_report_of_the_head(survivals, known) -> None:
    scheduler = scheduler_of(ProposalSource.LEARNED)
    assert starts_learned(scheduler, survivals)
    assert scheduler.seeds == [(ProposalSource.LEARNED, known, 4.0, True)]


def test_without_a_report_the_prior_stays() -> None:
    scheduler = scheduler_of(ProposalSource.LEARNED)
    assert starts_learned(scheduler, ())
    assert scheduler.seeds == []


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        (ProposalSource.COPY, DecodeMode.ADAPTIVE),
        (ProposalSource.LEARNED, DecodeMode.ORDINARY),
    ],
)
def test_where_nothing_learned_runs_nothing_is_started(source, mode) -> None:
    scheduler = scheduler_of(source, mode)
    assert not starts_learned(scheduler, (0.6,))
    assert scheduler.seeds == []
