"""Reference rates of decoders that propose (docs/design/scheduling-utility.md 2.4)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphKind,
    Phase,
    ProposalSource,
    RequestHandle,
    RequestSpec,
    SpeculationConfig,
)
from helios.scheduler.acceptance import COPY, LEARNED, MEAN, AcceptanceTable
from helios.scheduler.cost import CostTable
from helios.scheduler.reference import decode_token_interval_ms
from helios.scheduler.requests import Request
from helios.scheduler.shapes import Shapes
from helios.scheduler.standing import Standing
from tests.support.catalogs import descriptor
from tests.support.world import measured_world

NAMES = (
    "initialize-b1",
    "prefill-c64",
    "terminal-b1",
    "speculative-b1-d0-w1",
    "speculative-b4-d0-w1",
    "speculative-b4-d3-w4",
    "speculative-b4-d3-w4-p8",
)
CATALOG = Catalog.of([descriptor(name) for name in NAMES])
SHAPES = Shapes(CATALOG, SpeculationConfig(mode=DecodeMode.ADAPTIVE))
SURVIVALS = ((0.5, 0.25, 0.125), (1.0, 0.5, 0.5), (0.0, 0.0, 0.0))


def plain(
    durations: list[float], means: Sequence[tuple[float, ...]], left: list[int]
) -> float | None:
    """The smallest T*K/(Y*min(B, K)) by looking at every program."""
    count = len(means)
    found = []
    for graph, ms in zip(CATALOG.graphs, durations, strict=True):
        if not graph.name.startswith("speculative") or ms <= 0:
            continue
        lanes = min(graph.batch_capacity, count)
        length = min(graph.token_capacity, max(1, graph.rows // lanes))
        tokens = [
            1 + sum(s for d, s in enumerate(own[: length - 1], start=1) if d < limit)
            for own, limit in zip(means, left, strict=True)
        ]
        found.append(ms * count / (sum(tokens) / count * lanes))
    return min(found, default=None)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_round_counts_the_tokens_that_it_is_expected_to_commit(count: int) -> None:
    """max Y*min(B, K)/(T*K) over measured programs, against a loop over all of them (2.4)."""
    costs = itertools.product((0.0, 4.0), (0.0, 8.0), (0.0, 8.0, 32.0), (0.0, 16.0))
    for ms in costs:
        durations = [1.0, 1.0, 1.0, *ms]
        by_name = dict(zip(NAMES, durations, strict=True))
        ordered = [by_name[graph.name] for graph in CATALOG.graphs]
        for means in itertools.product(SURVIVALS, repeat=min(count, 2)):
            everyone = [*itertools.islice(itertools.cycle(means), count)]
            left = [1, 2, 9, 9][-count:]
            table = AcceptanceTable(count, 3)
            decoders = []
            for row, own in enumerate(everyone):
                cells = table.take(row)
                cells[:, MEAN] = own
                table.put(row, cells)
                spec = RequestSpec(prompt_tokens=1, max_output_tokens=left[row])
                request = Request(RequestHandle(row, 0), spec, row, 0)
                request.row = row
                decoders.append(request)
            expected = plain(ordered, everyone, left)
            assert decode_token_interval_ms(SHAPES, ordered, decoders, count, table) == expected


COPYING = (*NAMES[:5], "speculative-b4-d3-w4", "speculative-b4-d3-w4-copy")


def test_a_round_for_copies_counts_the_copies_that_were_accepted() -> None:
    """Y is of what a program proposes, whoever has read the drafted survivals (2.4, 9.11).

    Two streams: rounds of either source cost 8 ms, rounds of one row 100 ms.
    """
    catalog = Catalog.of([descriptor(name) for name in COPYING])
    shapes = Shapes(catalog, SpeculationConfig(mode=DecodeMode.ADAPTIVE))
    durations = [8.0 if graph.proposal_depth else 100.0 for graph in catalog.graphs]
    assert {graph.source for graph in catalog.graphs} == set(ProposalSource)
    for drafted, copied in itertools.permutations(SURVIVALS, 2):
        table, decoders = AcceptanceTable(2, 3), []
        for row in range(2):
            cells = table.take(row)
            cells[LEARNED, MEAN], cells[COPY, MEAN] = drafted, copied
            table.put(row, cells)
            spec = RequestSpec(prompt_tokens=1, max_output_tokens=9)
            decoders.append(Request(RequestHandle(row, 0), spec, row, 0))
            decoders[-1].row = row
        expected = 8.0 / (1.0 + max(sum(drafted), sum(copied)))
        for learned in (None, table.survivals(np.arange(2), LEARNED)):
            found = decode_token_interval_ms(shapes, durations, decoders, 2, table, learned=learned)
            assert found == expected, (drafted, copied)


@pytest.mark.parametrize(("deeper", "proposes"), [((), False), (("speculative-b4-d1-w2",), True)])
def test_one_proposal_is_enough_for_acceptance_to_price_rounds(
    deeper: tuple[str, ...], proposes: bool
) -> None:
    """Estimates are read where some program takes proposals, be it a single one (2.4, 9.2)."""
    catalog = Catalog.of([descriptor(name) for name in (*NAMES[:5], *deeper)])
    shapes = Shapes(catalog, SpeculationConfig(mode=DecodeMode.ADAPTIVE))
    assert shapes.geometry.proposes is proposes


def resident(arrival: int, phase: Phase, cached: int) -> Request:
    """Return a request that has consumed a prompt of 100 tokens up to `cached` of them."""
    spec = RequestSpec(prompt_tokens=100, max_output_tokens=9)
    request = Request(RequestHandle(arrival, 0), spec, arrival, 0)
    request.row, request.phase, request.prompt_done = arrival, phase, cached
    return request


def test_a_snapshot_is_as_long_as_what_retires_or_else_as_the_prompts() -> None:
    """The mean is over the rows that a graph of the kind would serve (13.3)."""
    catalog = Catalog.of(
        [
            *(descriptor(name) for name in NAMES if name != "terminal-b1"),
            descriptor("terminal-b1", context_intervals=(50,)),
        ]
    )
    shapes = Shapes(catalog, SpeculationConfig(mode=DecodeMode.ADAPTIVE))
    prompts = [resident(0, Phase.PREFILL, 10), resident(1, Phase.PREFILL, 40)]
    leaving = resident(2, Phase.TERMINAL, 100)

    def means(residents: list[Request]) -> dict[GraphKind, float]:
        found = Standing(shapes, CostTable(catalog, ttl_ns=1), residents)._mean_cached_tokens()
        return dict(zip(GraphKind, found, strict=True))

    long = leaving.position_after(0)
    assert long > 40
    alone = means(prompts)
    assert (alone[GraphKind.TERMINAL], alone[GraphKind.SNAPSHOT]) == (0.0, 25.0)
    assert (alone[GraphKind.PREFILL], alone[GraphKind.SPECULATIVE]) == (25.0, 0.0)
    beside = means([*prompts, leaving])
    assert (beside[GraphKind.TERMINAL], beside[GraphKind.SNAPSHOT]) == (long, long)
    assert beside[GraphKind.PREFILL] == 25.0


def test_prompts_divide_the_rate_of_the_machine_unless_they_are_a_class() -> None:
    """The reference of a prompt is that of the machine by all of them (decisions, section 1)."""
    world = measured_world(rows=4, prefills=(64,))
    for count in (1, 2, 3):
        world.admit(f"p{count}", 64, 4)
        standing = world.scheduler._state.standing()
        for is_class, divided_by in ((False, count), (True, 1)):
            shares = standing.shares(prompts_are_a_class=is_class)
            # 64 tokens take 4 ms.
            assert [share.token_rate for share in shares] == [16.0 / divided_by] * count


def test_members_of_a_tenant_divide_their_coefficients_by_its_streams() -> None:
    """Those of delivery and age; without a tenant a stream is its own (decisions, section 10)."""
    world = measured_world(rows=8, prefills=(64,))
    for name, tenant in (("a", "x"), ("b", "x"), ("c", ""), ("d", ""), ("e", "y")):
        world.admit(name, 64, 900, tenant=tenant)
    while any(not stream.tokens for stream in world.streams.values()):
        world.step()
    standing = world.scheduler._state.standing()
    shares = standing.stream_shares()
    assert shares is not None
    names = [world.by_handle[request.handle].name for request in standing.streams]
    assert dict(zip(names, shares, strict=True)) == {"a": 0.5, "b": 0.5, "c": 1, "d": 1, "e": 1}
