"""Any field of what a scheduler is made of, replaced by any odd value: refused by name, or legal.

Refused means the typed error of that part, which says where and what would be right, and no
scheduler; legal means that the scheduler serves a request with it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    InvalidCatalogError,
    InvalidPolicyError,
    InvalidRequestError,
    PolicyConfig,
    ProposalSource,
    RequestSpec,
    ResourceConfig,
    RowAllocation,
    Scheduler,
    SchedulerError,
    SpeculationConfig,
)
from helios.scheduler.config import DecodeMode
from tests.support.catalogs import TINY, Recipe, recipe
from tests.support.odd import ANYTHING, NUMBERS, ODD, THINGS, tried
from tests.support.snapshot import freeze
from tests.support.world import World

MODEL = recipe(
    Recipe(
        rows=4,
        prefills=(64,),
        widths=(1, 2, 4),
        ragged=((3, 2),),
        copy_depths=(3,),
        mixed=((1, 64), (4, 64)),
        vision=(64,),
        states=True,
        device=True,
    ),
    reports_survival=True,
)
GRAPHS = [*MODEL.catalog.graphs, *TINY.catalog.graphs]
"""A graph of every kind but scored prefill, which is one of prefill with another name."""
ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
SIZES = ResourceConfig(
    row_count=4, page_count=64, page_size_tokens=16, context_length_tokens=256, snapshot_rows=2
)
PRESETS = (PolicyConfig(), PolicyConfig.balanced(), PolicyConfig.throughput())
ENUMS = [*GraphKind, *RowAllocation, *ProposalSource, *DecodeMode]
BOUNDS = st.lists(st.one_of(ODD, st.integers(-1, 40)), max_size=3)
VALUES = st.one_of(
    ANYTHING, st.sampled_from(ENUMS), st.integers(-1, 70), BOUNDS.map(tuple), st.floats()
)


def attempt(error: type[SchedulerError], call: Callable[[], Any]) -> tuple[str | None, Any]:
    """Return what a typed error says, if there is one, and what was made, if there is none."""
    try:
        return None, call()
    except error as said:
        return str(said), None


def refusal(error: type[SchedulerError], call: Callable[[], Any]) -> str | None:
    """Return what a typed error says; None where nothing is wrong."""
    return attempt(error, call)[0]


def fields_of(record: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record))


def serves(scheduler: Scheduler) -> None:
    """Admit a request and plan for it; where it can never fit, both numbers are named."""
    said = refusal(
        InvalidRequestError,
        lambda: scheduler.admit(RequestSpec(prompt_tokens=9, max_output_tokens=3)),
    )
    if said is None:
        scheduler.plan()
        return
    assert "pages" in said or "context" in said


# ---- graphs and catalogs ------------------------------------------------------------------


def test_graphs_of_every_kind_are_tried() -> None:
    """The catalogs of this page leave out none but the twin of prefill."""
    assert {graph.kind for graph in GRAPHS} == set(GraphKind) - {GraphKind.SCORED_PREFILL}


@tried(st.sampled_from(GRAPHS), st.sampled_from(fields_of(GraphDescriptor)), VALUES)
def test_any_field_of_a_graph(graph: GraphDescriptor, name: str, odd: Any) -> None:
    """By itself a field is called by its name; beside the others, the graph is, and the rule."""
    said, other = attempt(InvalidCatalogError, lambda: dataclasses.replace(graph, **{name: odd}))
    if said is not None:
        if said.startswith("graph."):
            assert said.startswith(f"graph.{name}")
            assert " must be " in said
            return
        # A graph of a legal kind is called by what it would have been.
        kind, rule = said.split("-", 1)[0], said.split(": ", 1)[1]
        assert kind
        assert len(rule.split()) > 3
        assert type(odd) is type(getattr(graph, name))
        return
    assert type(getattr(other, name)) is type(getattr(graph, name))
    if name == "context_intervals":
        assert [*map(type, odd)] == [int] * len(odd)
    rest = [each for each in MODEL.catalog.graphs if each.key != other.key]
    said, catalog = attempt(InvalidCatalogError, lambda: Catalog.of([*rest, other]))
    if said is None:
        serves(Scheduler(catalog=catalog, resources=SIZES, speculation=ADAPTIVE))
        return
    assert "the catalog has no" in said or "token_capacity is above" in said


@tried(VALUES, st.integers(0, 30))
def test_any_graph_of_a_catalog(odd: Any, place: int) -> None:
    """Something else in the place of one graph, of all, and of what bounds mixed widths."""
    graphs: list[Any] = list(MODEL.catalog.graphs)
    index = place % len(graphs)
    calls: list[tuple[str, Callable[[], Catalog]]] = [
        ("graphs", lambda: Catalog.of(odd)),
        (f"graphs[{index}]", lambda: Catalog.of([*graphs[:index], odd, *graphs[index + 1 :]])),
        ("graphs", lambda: Catalog.of([odd])),
    ]
    for name, call in calls:
        said = refusal(InvalidCatalogError, call)
        assert said is not None
        assert said.startswith(name) or said == "the catalog has no initialize graph"
    said = refusal(InvalidCatalogError, lambda: Catalog.of(graphs, completion_tokens=odd))
    if said is None:
        assert type(odd) is int
        assert odd >= 4
    elif type(odd) is int and odd > 0 and odd <= 2**62:
        assert f"token_capacity is above the {odd} tokens" in said
    else:
        assert said.startswith("completion_tokens must be an integer")


@tried(VALUES)
def test_any_catalog_that_was_not_made_by_its_maker(odd: Any) -> None:
    """A scheduler looks again: what is no tuple of graphs in their order is none."""
    graphs = MODEL.catalog.graphs
    forged: list[Any] = [odd, Catalog(odd), Catalog((*graphs, odd)), Catalog(graphs[::-1])]
    forged += [Catalog(list(graphs)), Catalog(np.array(graphs, dtype=object))]  # type: ignore[arg-type]
    for catalog in forged:
        make = functools.partial(Scheduler, catalog=catalog, resources=SIZES, speculation=ADAPTIVE)
        said = refusal(InvalidCatalogError, make)
        assert said is not None
        assert said.startswith(("catalog must be", "graphs", "the catalog has no"))


# ---- resources, policies, modes -----------------------------------------------------------


@tried(st.sampled_from(fields_of(ResourceConfig)), VALUES)
def test_any_field_of_the_resources(name: str, odd: Any) -> None:
    """Plain integers in range, and bools."""

    def make() -> Scheduler:
        sizes = dataclasses.replace(SIZES, **{name: odd})
        return Scheduler(catalog=MODEL.catalog, resources=sizes, speculation=ADAPTIVE)

    said, scheduler = attempt(InvalidPolicyError, make)
    if said is not None:
        assert said.startswith(f"resources.{name} must be ")
        return
    assert type(odd) is type(getattr(SIZES, name))
    serves(scheduler)


@tried(st.sampled_from(PRESETS), st.sampled_from(fields_of(PolicyConfig)), VALUES)
def test_any_field_of_a_policy(preset: PolicyConfig, name: str, odd: Any) -> None:
    """Finite numbers in range, over each of the presets, given at once or before the first one."""

    def make() -> Scheduler:
        policy = dataclasses.replace(preset, **{name: odd})
        return Scheduler(
            catalog=MODEL.catalog, resources=SIZES, policy=policy, speculation=ADAPTIVE
        )

    said, scheduler = attempt(InvalidPolicyError, make)
    if said is not None:
        assert said.startswith(f"policy.{name} must be ")
        return
    assert isinstance(odd, int | float)
    assert type(odd) is not bool
    assert type(odd) is int or name != "estimate_ttl_ns"
    policy = scheduler.policy
    scheduler.configure_policy(preset)
    scheduler.configure_policy(policy)
    serves(scheduler)


@tried(st.sampled_from(fields_of(SpeculationConfig)), st.sampled_from([*DecodeMode]), VALUES)
def test_any_field_of_the_mode(name: str, mode: DecodeMode, odd: Any) -> None:
    """A mode and the width of the fixed one, for which the catalog needs a program."""
    good = SpeculationConfig(mode=mode, fixed_width=4 if mode is DecodeMode.FIXED else 0)

    def make() -> Scheduler:
        speculation = dataclasses.replace(good, **{name: odd})
        return Scheduler(catalog=MODEL.catalog, resources=SIZES, speculation=speculation)

    said, scheduler = attempt(SchedulerError, make)
    if said is None:
        assert type(odd) is type(getattr(good, name))
        serves(scheduler)
        return
    no_program = "the catalog has no graph for decoders in mode"
    wrong_pair = "speculation.fixed_width is"
    assert said.startswith((f"speculation.{name} must be ", wrong_pair, no_program))


@tried(ANYTHING)
def test_any_part_of_a_scheduler(odd: Any) -> None:
    """Something else in the place of a whole configuration, when it is made or before it runs."""
    for name in ("resources", "policy", "speculation"):
        parts: dict[str, Any] = {"resources": SIZES, "policy": PRESETS[0], "speculation": ADAPTIVE}
        parts[name] = odd
        make = functools.partial(Scheduler, catalog=MODEL.catalog, **parts)
        if odd is None and name != "resources":
            # None stands for the default: of the mode, one that this catalog has no program for.
            said = refusal(InvalidCatalogError, make)
            assert (said is None) == (name == "policy")
            continue
        said = refusal(InvalidPolicyError, make)
        assert said is not None
        assert said.startswith(f"{name} must be ")
    scheduler = Scheduler(catalog=MODEL.catalog, resources=SIZES, speculation=ADAPTIVE)
    before = freeze(scheduler)
    said = refusal(InvalidPolicyError, lambda: scheduler.configure_policy(odd))
    assert said is not None
    assert said.startswith("policy must be ")
    assert freeze(scheduler) == before


# ---- tenants and cost seeds ---------------------------------------------------------------


@tried(st.one_of(ANYTHING, st.text(max_size=9)), st.one_of(st.floats(), ODD))
def test_any_tenant_of_any_weight(tenant: Any, weight: Any) -> None:
    """Any text is a tenant, and nothing else; requests of two tenants are served."""
    make = functools.partial(RequestSpec, prompt_tokens=9, max_output_tokens=3)
    said, spec = attempt(InvalidRequestError, lambda: make(tenant=tenant, weight=weight))
    if said is not None:
        assert said.startswith(("tenant must be a string", "weight must be "))
        return
    assert isinstance(tenant, str)
    assert weight > 0
    scheduler = Scheduler(catalog=TINY.catalog, resources=SIZES)
    scheduler.admit(spec)
    scheduler.admit(make(tenant="another"))
    assert scheduler.plan() is not None


NAMES = [*(graph.name for graph in TINY.catalog.graphs), "decode-b1@7", "decode-b9"]
HASHABLE = [value for value in (*NUMBERS, *THINGS) if type(value).__hash__ is not None]
KEYS = st.one_of(st.sampled_from(NAMES), st.sampled_from(HASHABLE))


@tried(KEYS, VALUES, many=500)
def test_any_seed_of_a_cost(key: Any, odd: Any) -> None:
    """Names of the catalog and plain positive integers of ns, all of them or none."""
    for seeds in (odd, {key: odd}, {"decode-b1": 5, key: odd}, {key: 5}):
        scheduler = Scheduler(catalog=TINY.catalog, resources=SIZES)
        before = freeze(scheduler)
        seed = functools.partial(scheduler.seed_costs, seeds)
        said = refusal(InvalidCatalogError, seed)
        if said is not None:
            assert said.startswith(("seeds must be", "cost seed for", "cost seed of"))
            assert freeze(scheduler) == before
            continue
        assert all(name in NAMES and type(ns) is int and ns > 0 for name, ns in seeds.items())
        assert (freeze(scheduler) != before) == bool(seeds)


@pytest.mark.parametrize(
    "name", ["decode-b9", 10**5000, None, b"decode-b1"], ids=["text", "long", "none", "bytes"]
)
def test_a_seed_of_no_program_says_so(name: Any) -> None:
    """Also where the name cannot be printed."""
    with pytest.raises(InvalidCatalogError, match=r"cost seed for .*, which is not in the catalog"):
        World(TINY).scheduler.seed_costs({name: 5})
