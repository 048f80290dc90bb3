"""Composed steps: what each kind of program is charged for, on the shipped tables."""

from __future__ import annotations

import pytest

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource, RowAllocation
from scheduling_sim.costs.composed import (
    ComposedCosts,
    ComposedOptions,
    physical_rows,
    sampled_rows,
)
from scheduling_sim.costs.model import LaneWork


def decode(batch: int) -> GraphDescriptor:
    return GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=batch)


def prefill(tokens: int, kind: GraphKind = GraphKind.PREFILL) -> GraphDescriptor:
    return GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=tokens)


def mixed(batch: int, prompt: int) -> GraphDescriptor:
    return GraphDescriptor(kind=GraphKind.MIXED, batch_capacity=batch, prefill_capacity=prompt)


def speculative(batch: int, depth: int, source: ProposalSource, packed: int = 0) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=depth + 1,
        proposal_depth=depth,
        packed_capacity=packed,
        speculation_enabled=True,
        allocation=RowAllocation.HOST if depth else RowAllocation.NONE,
        source=source if depth else ProposalSource.NONE,
    )


def lanes(count: int, cached: int = 1000, rows: int = 1) -> list[LaneWork]:
    return [LaneWork(rows, cached, is_prompt=False)] * count


def prompt(tokens: int, cached: int = 0, *, samples: bool = True) -> LaneWork:
    return LaneWork(tokens, cached, is_prompt=True, samples=samples)


def parts_ns(costs: ComposedCosts, rows: int, sampled: int, attention_us: float) -> int:
    """What a step of these rows must take."""
    layers = costs.table.facts.layers
    return round(1000 * (costs.dense_us(rows) + costs.head_us(sampled) + layers * attention_us))


def test_decode_pays_the_captured_rows_and_the_lanes_attention(llama: ComposedCosts) -> None:
    grid = llama.table.attention
    full, alone = llama.step_ns(decode(16), lanes(16)), llama.step_ns(decode(16), lanes(1))
    assert full == parts_ns(llama, 16, 16, grid.decode_us(16, 1001, 1001))
    assert alone == parts_ns(llama, 16, 16, grid.decode_us(1, 1001, 1001))
    assert alone < full


def test_decode_time_is_that_of_reading_the_weights(llama: ComposedCosts) -> None:
    """16 GB over the 1.6 TB/s of an RTX PRO 6000 are 10 ms; one lane cannot be faster."""
    alone = llama.step_ns(decode(1), lanes(1, cached=16))
    assert 10.0e6 < alone < 12.0e6


def test_prefill_pays_capacity_and_the_real_chunk(llama: ComposedCosts) -> None:
    grid = llama.table.attention
    short = llama.step_ns(prefill(512), [prompt(100, 700)])
    assert short == parts_ns(llama, 512, 1, grid.chunk_us(100, 700))
    scored = llama.step_ns(prefill(512, GraphKind.SCORED_PREFILL), [prompt(100, 700)])
    assert scored - short == pytest.approx(1000 * (llama.head_us(512) - llama.head_us(1)), abs=2)


def test_mixed_packs_the_prompt_beside_all_rows_but_one(llama: ComposedCosts) -> None:
    graph = mixed(8, 512)
    assert physical_rows(graph) == 519
    assert sampled_rows(graph) == 8
    time = llama.step_ns(graph, [prompt(300, 100), *lanes(5)])
    attention = llama.table.attention.mixed_us(300, 100, 5, 1001, 1001)
    assert time == parts_ns(llama, 519, 8, attention)


def test_a_round_pays_rows_draft_and_one_walk_of_the_cache(llama: ComposedCosts) -> None:
    plain = speculative(8, 0, ProposalSource.NONE)
    learned = speculative(8, 3, ProposalSource.LEARNED)
    copied = speculative(8, 3, ProposalSource.COPY)
    ragged = speculative(8, 3, ProposalSource.LEARNED, packed=16)
    times = [llama.step_ns(graph, lanes(8)) for graph in (plain, copied, ragged, learned)]
    assert times[0] < times[1] < times[2] <= times[3]
    grid = llama.table.attention
    wide = grid.mixed_us(16, 1004, 7, 1004, 1004)
    dense = llama.dense_us(32) + llama.head_us(32) + llama.layer_us(32)
    draft = 2 * llama.layer_us(8) + 3 * llama.head_us(8)
    expected = round(1000 * (dense + draft + (32 + 3) * wide))
    assert llama.step_ns(learned, lanes(8, rows=4)) == expected
    # The width alone is free in attention: 2 rows read the same keys as 4 (one position fewer).
    two, four = (llama.step_ns(learned, lanes(8, rows=rows)) for rows in (2, 4))
    assert two == pytest.approx(four, rel=1e-3)


def test_lanes_beyond_a_tile_cost_as_prompts(llama: ComposedCosts) -> None:
    graph = speculative(1, 20, ProposalSource.COPY)
    time = llama.step_ns(graph, lanes(1, rows=21))
    attention = 33 * llama.table.attention.chunk_us(21, 1000)
    dense = llama.dense_us(21) + llama.head_us(21) + llama.layer_us(21)
    assert time == round(1000 * (dense + attention))


def test_prompts_run_the_draft_only_where_asked(llama: ComposedCosts) -> None:
    with_draft = ComposedCosts(llama.table, ComposedOptions(draft_prompts=True, draft_layers=2))
    plain = llama.step_ns(prefill(256), [prompt(256)])
    more = with_draft.step_ns(prefill(256), [prompt(256)])
    layer = llama.layer_us(256) + llama.table.attention.chunk_us(256, 0)
    assert more - plain == pytest.approx(2000 * layer, abs=2)


def test_state_and_image_programs_have_fixed_times(llama: ComposedCosts) -> None:
    bind = GraphDescriptor(kind=GraphKind.INITIALIZE, batch_capacity=4)
    image = GraphDescriptor(kind=GraphKind.VISION, batch_capacity=1, token_capacity=256)
    assert llama.step_ns(bind, lanes(3)) == 20_000
    assert llama.step_ns(image, [prompt(256)]) == 20_000 + 256 * 2_000
    with pytest.raises(ValueError, match="5 lanes, it holds 4"):
        llama.step_ns(bind, lanes(5))


def test_free_steps_have_the_lanes_own_shape(llama: ComposedCosts) -> None:
    step = [prompt(600), prompt(300, 50, samples=False), *lanes(7)]
    attention = llama.table.attention.chunks_us([(600, 0), (300, 50)], 7, 1001, 1001)
    assert llama.step_ns(None, step) == parts_ns(llama, 907, 8, attention)


def test_small_free_steps_are_padded_to_captured_sizes(llama: ComposedCosts) -> None:
    grid = llama.table.attention
    padded = parts_ns(llama, 16, 9, grid.decode_us(9, 1001, 1001))
    assert llama.step_ns(None, lanes(9)) == padded
    bare = ComposedCosts(llama.table, ComposedOptions(pad_rows=()))
    assert bare.step_ns(None, lanes(9)) == parts_ns(llama, 9, 9, grid.decode_us(9, 1001, 1001))


def test_short_chunks_beside_a_long_one_ride_as_lanes(llama: ComposedCosts) -> None:
    joint = llama.step_ns(None, [prompt(600), prompt(9, 991), *lanes(7, 999)])
    attention = llama.table.attention.mixed_us(600, 0, 8, 1000, 1000)
    assert joint == parts_ns(llama, 616, 9, attention)


def test_more_context_more_lanes_and_more_tokens_never_cost_less(llama: ComposedCosts) -> None:
    contexts = (16, 100, 1000, 5000, 20_000, 65_000, 130_000)
    times = [llama.step_ns(decode(32), lanes(20, cached)) for cached in contexts]
    assert times == sorted(times)
    times = [llama.step_ns(None, [prompt(t, 2000)]) for t in (64, 128, 300, 900, 2048, 9000)]
    assert times == sorted(times)
    times = [llama.step_ns(None, [prompt(512, c), *lanes(16, 800)]) for c in contexts]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("graph", "work", "message"),
    [
        (decode(4), [], "without lanes"),
        (None, [], "without lanes"),
        (decode(4), lanes(5), "5 lanes with 0 prompts"),
        (decode(4), lanes(1, rows=2), "widest 2"),
        (decode(4), [prompt(3)], "1 prompts of up to 3"),
        (prefill(64), [prompt(65)], "a prompt of 64"),
        (prefill(64), lanes(1), "widest 0"),
        (mixed(4, 64), [prompt(64), prompt(1)], "2 prompts"),
        (speculative(8, 3, ProposalSource.LEARNED, packed=16), lanes(8, rows=3), "rows 24"),
        (decode(4), [LaneWork(0, 5, is_prompt=False)], "0 new and 5 cached"),
        (decode(4), [LaneWork(1, -1, is_prompt=False)], "1 new and -1 cached"),
    ],
)
def test_lanes_that_a_graph_cannot_hold_are_refused(
    llama: ComposedCosts, graph: GraphDescriptor | None, work: list[LaneWork], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llama.step_ns(graph, work)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pad_rows": (4, 2)}, "pad_rows must ascend"),
        ({"pad_rows": (0, 2)}, "pad_rows must ascend"),
        ({"state_ns": -1}, "state_ns must not be negative"),
    ],
)
def test_options_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ComposedOptions(**fields)  # type: ignore[arg-type]
