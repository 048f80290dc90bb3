"""The catalog planner: shapes, padding, the memory limit, the pages that are left."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.scheduler import GraphKind, RowAllocation
from scheduling_sim.costs.models import GIB, LLAMA_8B
from scheduling_sim.costs.padding import best_capacities, even_load, load_of, padding
from scheduling_sim.costs.planner import (
    MIB,
    CatalogOptions,
    CatalogPlan,
    MemoryOptions,
    balanced_prompt,
    fewest_padding,
    mixed_shapes,
    plan_catalog,
    request_buckets,
)

MEMORY = MemoryOptions(memory_bytes=96 * GIB)


def plan(memory: MemoryOptions = MEMORY, **fields: object) -> CatalogPlan:
    return plan_catalog(LLAMA_8B, CatalogOptions(**fields), memory)  # type: ignore[arg-type]


def shapes(chosen: CatalogPlan, kind: GraphKind) -> list[tuple[int, int, int, int]]:
    return [
        (g.batch_capacity, g.proposal_depth, g.rows, g.prefill_capacity)
        for g in chosen.catalog.graphs
        if g.kind is kind
    ]


def test_padding_of_the_bucket_rules() -> None:
    """Of 1..64 evenly, 2080 useful rows, powers of two execute 2731 and steps of eight 2283."""
    load = even_load(64)
    powers, steps = request_buckets(64, "powers"), request_buckets(64, "steps")
    assert powers == (1, 2, 4, 8, 16, 32, 64)
    assert steps == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert padding(powers, load) == pytest.approx(2731 / 2080)
    assert padding(steps, load) == pytest.approx(2283 / 2080)


def test_sizes_above_the_largest_run_in_whole_ones_first() -> None:
    # 2500 = 2048 + 452 in 512: 2560 rows.
    assert padding((64, 512, 2048), {2500: 1.0}) == pytest.approx(2560 / 2500)
    assert padding((64, 512), {1024: 3.0}) == 1.0
    assert padding((64,), {}) == 1.0
    with pytest.raises(ValueError, match="at least one capacity"):
        padding((), {1: 1.0})


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(1, 9), st.integers(1, 5), min_size=1), st.integers(1, 4))
def test_chosen_capacities_are_the_best_of_all(counts: dict[int, int], count: int) -> None:
    load = {size: float(weight) for size, weight in counts.items()}
    largest = max(load)
    chosen = best_capacities(load, count)
    assert len(chosen) <= count
    assert chosen[-1] == largest
    others = list(range(1, largest))
    every = (
        (*smaller, largest)
        for taken in range(count)
        for smaller in itertools.combinations(others, taken)
    )
    assert padding(chosen, load) == pytest.approx(min(padding(each, load) for each in every))


def test_more_buckets_pad_less_and_the_last_is_the_slots() -> None:
    by_count = [fewest_padding(64, count) for count in (1, 2, 4, 8, 16)]
    assert by_count[0] == (64,)
    assert all(buckets[-1] == 64 for buckets in by_count)
    paddings = [padding(buckets, even_load(64)) for buckets in by_count]
    assert paddings == sorted(paddings, reverse=True)
    # Seven chosen sizes beat the seven powers of two.
    seven = padding(fewest_padding(64, 7), even_load(64))
    assert seven < padding(request_buckets(64, "powers"), even_load(64)) - 0.1


def test_a_load_counts_its_sizes() -> None:
    assert load_of([3, 1, 3]) == {1: 1.0, 3: 2.0}
    with pytest.raises(ValueError, match="count must be at least 1"):
        best_capacities({1: 1.0}, 0)
    with pytest.raises(ValueError, match="neither a load nor a candidate"):
        best_capacities({}, 1)


def test_mixed_shapes_are_those_of_the_source_document() -> None:
    """Concurrency 4 with ten prompt capacities up to 4096 and six rows: 20 narrow and 2 wide."""
    prompts = tuple(8 << power for power in range(10))
    wide = mixed_shapes((1, 2, 4), prompts, (1, 2, 3, 4, 5, 6), 6)
    assert len(wide) == 22
    assert len(mixed_shapes((1, 2, 4), prompts, (), 6)) == 20
    # The distance of 128 to 8 and to 4096 is 16 and 32, that of 256 is 32 and 16: the smaller wins.
    assert balanced_prompt(prompts) == 128
    assert [shape for shape in wide if shape[2] > 1] == [(2, 128, 2), (2, 128, 3)]


def test_ordinary_catalogs_hold_one_program_per_capacity() -> None:
    chosen = plan(slots=6, prefills=(64, 512), states=True)
    assert [b for b, *_ in shapes(chosen, GraphKind.DECODE)] == [1, 2, 4, 6]
    assert len(shapes(chosen, GraphKind.PREFILL)) == 2
    for kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL, GraphKind.SNAPSHOT, GraphKind.RESTORE):
        assert len(shapes(chosen, kind)) == 4
    assert not shapes(chosen, GraphKind.MIXED)
    assert chosen.draft_extent_tokens == 0
    assert chosen.graph_bytes == len(chosen.catalog.graphs) * 16 * MIB


def test_speculative_catalogs_hold_rectangular_ragged_and_copied_rounds() -> None:
    chosen = plan(
        slots=4, mode="speculative-mixed", depths=(1, 3), row_envelope=8, ragged=(0.5,),
        device_allocation=True, copy=True, prefills=(64, 128),
    )  # fmt: skip
    graphs = [g for g in chosen.catalog.graphs if g.kind is GraphKind.SPECULATIVE]
    keys = {(g.batch_capacity, g.proposal_depth, g.rows, g.source.name) for g in graphs}
    assert {(1, 0, 1, "NONE"), (2, 3, 8, "LEARNED"), (2, 3, 8, "COPY")} <= keys
    assert (4, 3, 16, "LEARNED") not in keys  # beyond the envelope
    ragged = [g for g in graphs if g.rows < g.batch_capacity * g.token_capacity]
    assert {(g.batch_capacity, g.token_capacity, g.rows) for g in ragged} == {(2, 4, 4), (4, 4, 8)}
    assert all(g.allocation is RowAllocation.DEVICE and g.confidence_width == 3 for g in ragged)
    assert not shapes(chosen, GraphKind.DECODE)
    assert (2, 3, 8, 64) in shapes(chosen, GraphKind.MIXED)
    assert chosen.draft_extent_tokens == 3


def test_a_graph_limit_gives_up_mixed_graphs_before_buckets() -> None:
    options = CatalogOptions(slots=32, mode="mixed")
    whole = plan_catalog(LLAMA_8B, options, MEMORY)
    mixed = len(shapes(whole, GraphKind.MIXED))
    rest = len(whole.catalog.graphs) - mixed
    assert mixed == 5 * 6
    limited = MemoryOptions(memory_bytes=96 * GIB, graph_limit_bytes=(rest + 2) * 16 * MIB)
    chosen = plan_catalog(LLAMA_8B, options, limited)
    assert len(shapes(chosen, GraphKind.MIXED)) == 2
    assert len(chosen.left_out) == mixed - 2
    assert all(name.startswith("mixed") for name in chosen.left_out)
    assert chosen.padding.decode == whole.padding.decode
    few = MemoryOptions(memory_bytes=96 * GIB, graph_limit_bytes=8 * 16 * MIB)
    least = plan_catalog(LLAMA_8B, options, few)
    assert {b for b, *_ in shapes(least, GraphKind.DECODE)} >= {1, 32}
    assert least.padding.decode > whole.padding.decode
    assert least.page_count > chosen.page_count > whole.page_count
    none = MemoryOptions(memory_bytes=96 * GIB, graph_limit_bytes=16 * MIB)
    with pytest.raises(ValueError, match=r"holds 1 programs .* needs 7"):
        plan_catalog(LLAMA_8B, options, none)


def test_pages_are_what_weights_graphs_and_workspace_leave() -> None:
    chosen = plan(slots=1, prefills=(64,))
    usable = int(96 * GIB * 0.9) - LLAMA_8B.weight_bytes - 2048 * MIB - chosen.graph_bytes
    assert chosen.page_count == usable // (64 * 131_072)
    resources = chosen.resources(CatalogOptions(slots=1), MEMORY, LLAMA_8B)
    assert resources.page_count == chosen.page_count
    assert resources.context_length_tokens == 131_072
    with pytest.raises(ValueError, match=r"0 pages of 64 tokens are left"):
        plan(MemoryOptions(memory_bytes=16 * GIB))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slots": 0}, "slots must be 1 to 64"),
        ({"mode": "fast"}, "mode must be one of ordinary"),
        ({"buckets": "primes"}, "buckets must be one of powers"),
        ({"buckets": (1, 4), "slots": 8}, "buckets must ascend to slots = 8"),
        ({"prefills": ()}, "prefills must ascend"),
        ({"depths": (3, 1)}, "depths must ascend"),
        ({"ragged": (1.0,)}, "ragged shares must lie between"),
        ({"mode": "mixed", "prefills": (100,)}, "multiple of 64"),
    ],
)
def test_options_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**fields)  # type: ignore[arg-type]
