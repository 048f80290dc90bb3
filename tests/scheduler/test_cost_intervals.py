"""Cost entries per context interval (docs/design/scheduling-utility.md section 13)."""

from __future__ import annotations

import dataclasses
import random

import pytest

from helios.scheduler import Catalog, GraphDescriptor, GraphKind, InvalidCatalogError
from helios.scheduler.cost import CostTable, entry_names
from tests.support.catalogs import NS_PER_MS, ModelledCatalog, descriptor
from tests.support.world import World

TTL_NS = 1_000
NAMES = ("initialize-b1", "prefill-c64", "decode-b1", "decode-b4", "terminal-b1")
SPLIT = {"decode-b4": (1024, 8192), "prefill-c64": (4096,)}


def catalog_of(split: dict[str, tuple[int, ...]]) -> Catalog:
    return Catalog.of(
        dataclasses.replace(descriptor(name), context_intervals=split.get(name, ()))
        for name in NAMES
    )


def table(split: dict[str, tuple[int, ...]] | None = None) -> CostTable:
    return CostTable(catalog_of(SPLIT if split is None else split), ttl_ns=TTL_NS)


def graph_index(name: str) -> int:
    return [graph.name for graph in catalog_of(SPLIT).graphs].index(name)


def mean_everywhere(tokens: float) -> list[float]:
    return [tokens] * len(GraphKind)


def test_without_intervals_the_cost_index_is_the_graph_index() -> None:
    """The default key has no context length, and nothing is computed for it (13.1)."""
    costs = table({})
    assert not costs.has_intervals
    assert [costs.entry_of(index, 1e9) for index in range(5)] == list(range(5))
    indices, durations = costs.entries_at(mean_everywhere(77.0))
    assert indices == list(range(5))
    assert durations is costs.durations_ms
    assert len(costs.estimates_ns) == 5


@pytest.mark.parametrize(
    ("mean", "interval"),
    [(0, 0), (1, 0), (1024, 0), (1024.25, 1), (8192, 1), (8192.5, 2), (1e9, 2)],
)
def test_an_interval_includes_its_upper_bound_and_the_last_is_open(
    mean: float, interval: int
) -> None:
    """Ascending upper bounds of the mean cached length (13.1)."""
    costs = table()
    index = graph_index("decode-b4")
    entries = [costs.entry_of(index, bound) for bound in (0, 1025, 8193)]
    assert len({*entries}) == 3
    assert entries[0] == index
    assert costs.entry_of(index, mean) == entries[interval]


def test_every_entry_belongs_to_one_interval_of_one_graph() -> None:
    """No two graphs or intervals share an estimate (13.1)."""
    costs = table()
    found = [
        costs.entry_of(index, mean)
        for index, graph in enumerate(catalog_of(SPLIT).graphs)
        for mean in (0, *(bound + 1 for bound in graph.context_intervals))
    ]
    assert sorted(found) == list(range(5 + 3))


def test_an_entry_is_found_like_a_search_through_its_intervals() -> None:
    """Against a linear search over random bounds."""
    roll = random.Random(3)
    for _ in range(300):
        bounds = tuple(sorted(roll.sample(range(1, 40), roll.randint(1, 5))))
        costs = table({"decode-b4": bounds})
        index = graph_index("decode-b4")
        every = [index, *range(5, 5 + len(bounds))]
        for mean in range(42):
            place = sum(mean > bound for bound in bounds)
            assert costs.entry_of(index, mean) == every[place]


def test_a_sample_teaches_the_entry_that_it_belongs_to() -> None:
    """Neither the other intervals nor other graphs learn, and freshness is per entry (13.2)."""
    costs = table()
    index = graph_index("decode-b4")
    short, long = costs.entry_of(index, 10), costs.entry_of(index, 100_000)
    costs.observe(long, 700, 5)
    assert costs.is_fresh(long, 5)
    assert not costs.is_fresh(short, 5)
    indices, durations = costs.entries_at(mean_everywhere(100_000))
    assert indices[index] == long
    assert durations[index] == 700 / 1e6
    assert costs.entries_at(mean_everywhere(10))[1] == [0.0] * 5
    assert costs.ages_at(7).age_ns(long) == 2
    assert costs.ages_at(7).age_ns(short) is None


def test_each_kind_is_looked_up_at_its_own_mean() -> None:
    """The mean is that of the rows that a graph would serve (13.3)."""
    costs = table()
    for kind in GraphKind:
        means = [0.0] * len(GraphKind)
        means[kind] = 1e6
        indices, _ = costs.entries_at(means)
        moved = [i for i in range(5) if indices[i] != i]
        graphs = catalog_of(SPLIT).graphs
        assert moved == [i for i in range(5) if graphs[i].kind is kind and graphs[i].name in SPLIT]


def test_names_of_entries() -> None:
    """A graph's own name, or `name@upper-bound`, the last one open (13.4)."""
    graphs = {graph.name: graph for graph in catalog_of(SPLIT).graphs}
    assert entry_names(graphs["decode-b1"]) == ("decode-b1",)
    assert entry_names(graphs["decode-b4"]) == ("decode-b4@1024", "decode-b4@8192", "decode-b4@inf")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_seeds_are_stale_whatever_they_name(is_reversed: bool) -> None:
    """A name seeds all intervals; an interval's own seed says more, whatever their order (13.4)."""
    seeds = {"decode-b4": 500, "decode-b4@8192": 900, "prefill-c64@inf": 50, "decode-b1": 7}
    costs = table()
    costs.seed(dict(reversed(seeds.items())) if is_reversed else seeds)
    index = graph_index("decode-b4")
    assert [costs.estimates_ns[costs.entry_of(index, m)] for m in (1, 2000, 9000)] == [
        500,
        900,
        500,
    ]
    prefill = graph_index("prefill-c64")
    assert [costs.estimates_ns[costs.entry_of(prefill, m)] for m in (1, 5000)] == [0, 50]
    assert costs.estimates_ns[graph_index("decode-b1")] == 7
    assert not any(costs.is_fresh(entry, 0) for entry in range(8))


@pytest.mark.parametrize(
    "bad", [{"decode-b4@1000": 5}, {"decode-b1@inf": 5}, {"decode-b4@": 5}, {"decode-b4@inf": 0}]
)
def test_a_seed_of_no_entry_is_refused_before_any_change(bad: dict[str, int]) -> None:
    """Validation comes first, and names the seed (13.4)."""
    costs = table()
    with pytest.raises(InvalidCatalogError, match=next(iter(bad))):
        costs.seed({"terminal-b1": 9, **bad})
    assert not any(costs.estimates_ns)


@pytest.mark.parametrize("bounds", [(5, 5), (6, 5), (0,), (-1,), (1.5,), (True,), [5], "5", None])
def test_impossible_intervals_are_refused(bounds: object) -> None:
    """Ascending positive integers, or nothing (13.1)."""
    with pytest.raises(InvalidCatalogError, match="context_intervals"):
        GraphDescriptor(
            kind=GraphKind.DECODE,
            batch_capacity=1,
            context_intervals=bounds,  # type: ignore[arg-type]
        )


# ---- end to end ---------------------------------------------------------------------------

NAMES_MS = {"initialize-b1": 0.25, "prefill-c512": 14.0, "decode-b2": 3.0, "terminal-b1": 0.25}


def drifting(bounds: tuple[int, ...]) -> list[tuple[str, float, float]]:
    """Run prompts of 1k and 100k tokens in turn on a machine whose prefill slows with context.

    A chunk takes 14 ms and 0.54 us more per cached token, a decode 3 ms and 0.1 us more. Returns
    program, estimated and true duration in ms of every frame with an estimate.
    """
    catalog = Catalog.of(
        dataclasses.replace(
            descriptor(name),
            context_intervals=bounds if name.startswith(("prefill", "decode")) else (),
        )
        for name in NAMES_MS
    )
    model = ModelledCatalog(catalog, {n: round(ms * NS_PER_MS) for n, ms in NAMES_MS.items()})
    world = World(model, rows=2, pages=256, page_size=1024)
    seen = []

    def advance() -> None:
        plan = world.plan()
        if plan is None:
            world.finish_frame()
            return
        slope = {"prefill-c512": 0.00054, "decode-b2": 0.0001}.get(plan.graph.name, 0.0)
        mean = sum(step.position for step in plan.steps) / len(plan.steps)
        true_ms = NAMES_MS[plan.graph.name] + slope * mean
        world.model = model.with_duration(plan.graph.name, true_ms)
        if plan.estimated_duration_ns:
            seen.append((plan.graph.name, plan.estimated_duration_ns / NS_PER_MS, true_ms))
        world.commit(plan)

    world.admit("long", 100_000, 40)
    for index in range(8):
        world.admit(f"short{index}", 1024, 8)
    while any(not stream.tokens for stream in world.streams.values()):
        advance()
    return seen


def mean_error(seen: list[tuple[str, float, float]], name: str) -> float:
    """The mean relative error of a program's estimates."""
    errors = [abs(estimate - true) / true for program, estimate, true in seen if program == name]
    return sum(errors) / len(errors)


def test_intervals_follow_contexts_that_the_median_mixes_up() -> None:
    """Prompts of 1k beside one that drifts to 100k: estimates by interval are closer (13.1).

    Every sample teaches the entry that priced its frame (13.2), and a prompt is priced at its own
    cached length (13.3).
    """
    plain = drifting(())
    split = drifting((2048, 8192, 16384, 32768, 65536))
    for name in ("prefill-c512",):
        assert mean_error(split, name) < 0.6 * mean_error(plain, name)
    assert mean_error(split, "prefill-c512") < 0.1


@pytest.mark.parametrize(("decoder", "prompt"), [(64, 3000), (3000, 64)])
def test_a_mixed_graph_is_looked_up_at_the_larger_of_its_two_means(
    decoder: int, prompt: int
) -> None:
    """A long prompt beside a short stream, and the other way round, are both slow (13.3)."""
    names = ("initialize-b1", "prefill-c64", "decode-b1", "mixed-b2-w1-c64", "terminal-b1")
    catalog = Catalog.of(
        dataclasses.replace(
            descriptor(name), context_intervals=(2000,) if name.startswith("mixed") else ()
        )
        for name in names
    )
    model = ModelledCatalog(catalog, dict.fromkeys(names, NS_PER_MS))
    world = World(model, rows=2, pages=256, page_size=64)
    world.admit("decoder", decoder, 4_000)
    while not world.streams["decoder"].tokens:
        world.step()
    world.admit("prompt", prompt + 64, 4)
    index = [graph.name for graph in catalog.graphs].index("mixed-b2-w1-c64")
    seen = []
    while not world.streams["prompt"].tokens:
        seen.append(world.scheduler._state.standing().cost_indices[index])
        world.step()
    # The entry of the open interval lies behind all graphs, the first one has the graph's index.
    assert seen[0] == (index if prompt > decoder else len(names))
    assert seen[-1] == len(names)
    assert seen == sorted(seen)
