"""What a catalog may hold (clauses G4, S1 to S5, A8, D2, D3 and M1 to M5, M12)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from helios.scheduler import (
    Catalog,
    GraphKind,
    InvalidCatalogError,
    ResourceConfig,
    Scheduler,
)
from tests.support.catalogs import descriptor

BASE = ("initialize-b1", "prefill-c64", "decode-b1", "terminal-b1")


def catalog_of(*names: str, **fields: Any) -> Catalog:
    """A complete catalog with these programs besides."""
    return Catalog.of([descriptor(name) for name in (*BASE, *names)], **fields)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("speculative-b4-d3-w4", {"batch_capacity": 8}),
        ("speculative-b4-d3-w4", {"proposal_depth": 7}),
        ("speculative-b4-d7-w4", {"token_capacity": 2}),
        ("speculative-b4-d3-w4", {"packed_capacity": 9}),
        ("mixed-b4-d3-w4-c64", {"prefill_capacity": 128}),
        ("mixed-b4-d3-w4-c64", {"batch_capacity": 8}),
    ],
)
def test_every_extent_is_part_of_the_identity(name: str, fields: dict[str, int]) -> None:
    """B, D, W, P and the prompt capacity each make another program with its own cost entry."""
    one = descriptor(name)
    other = dataclasses.replace(one, **fields)
    assert one.key != other.key
    assert one.name != other.name
    catalog = Catalog.of([*catalog_of().graphs, one, other])
    assert len(catalog.graphs) == len(BASE) + 2


def test_a_rectangular_program_has_b_times_w_rows() -> None:
    """P = B*W when nothing else is said, and saying so is the same program."""
    plain = descriptor("speculative-b4-d3-w4")
    spelled = dataclasses.replace(plain, packed_capacity=16)
    assert plain.rows == spelled.rows == 16
    assert plain.key == spelled.key
    with pytest.raises(InvalidCatalogError, match="twice"):
        Catalog.of([*catalog_of().graphs, plain, spelled])


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("rows", [4, 6, 8])
def test_width_and_rows_do_not_imply_the_depth(width: int, rows: int) -> None:
    """The same W and P with any D of at least W - 1 is a program of its own."""
    keys = {
        descriptor(f"speculative-b4-d{depth}-w{width}-p{rows}").key for depth in range(width - 1, 8)
    }
    assert len(keys) == 8 - (width - 1)


def test_width_one_has_no_proposals() -> None:
    """D = 0 exactly at W = 1; its rounds keep the draft context all the same."""
    assert descriptor("speculative-b4-d0-w1").speculation_enabled
    for name in ("speculative-b4-d1-w1", "speculative-b4-d0-w2"):
        with pytest.raises(InvalidCatalogError, match="D = 0 and W = 1"):
            descriptor(name)


def test_a_round_is_one_program() -> None:
    """No kind of program is a proposal or a verification alone."""
    names = {kind.name for kind in GraphKind}
    assert "SPECULATIVE" in names
    assert not {name for name in names if "PROPOS" in name or "DRAFT" in name or "VERIF" in name}


def test_confidence_covers_every_produced_proposal() -> None:
    """confidence_width is D or nothing; what the device allocates by, it must report."""
    assert descriptor("speculative-b4-d3-w4", confidence_width=3).confidence_width == 3
    for width in (1, 2, 4):
        with pytest.raises(InvalidCatalogError, match="confidence_width must be 0 or D"):
            descriptor("speculative-b4-d3-w4", confidence_width=width)
    with pytest.raises(InvalidCatalogError, match="needs confidence_width"):
        descriptor("speculative-b4-d3-w4-device", confidence_width=0)


@pytest.mark.parametrize("batch", [1, 3, 5, 6, 7, 12, 48, 63])
def test_mixed_rows_are_a_power_of_two(batch: int) -> None:
    """2, 4, 8, 16, 32 or 64 rows."""
    with pytest.raises(InvalidCatalogError, match="power of two"):
        descriptor(f"mixed-b{batch}-w1-c64")


def test_mixed_takes_every_legal_row_count_and_width() -> None:
    """Powers of two from 2 to 64, widths from 1 to 8 where nothing else is declared."""
    names = [f"mixed-b{batch}-d7-w8-c64" for batch in (2, 4, 8, 16, 32, 64)]
    names += [f"mixed-b2-d{width - 1}-w{width}-c64" for width in range(1, 8)]
    assert len(catalog_of(*names).graphs) == len(BASE) + len(names)


def test_mixed_width_stays_within_what_a_completion_holds() -> None:
    """Eight tokens per lane unless the core declares its own capacity; separate rounds are free."""
    with pytest.raises(InvalidCatalogError, match=r"mixed-b2-d8-w9-c64: .* above the 8 tokens"):
        catalog_of("mixed-b2-d8-w9-c64")
    catalog_of("mixed-b2-d8-w9-c64", completion_tokens=9)
    catalog_of("speculative-b2-d8-w9")
    with pytest.raises(InvalidCatalogError, match="above the 1 tokens"):
        catalog_of("mixed-b2-d1-w2-c64", completion_tokens=1)
    with pytest.raises(InvalidCatalogError, match="completion_tokens must be"):
        catalog_of(completion_tokens=0)


@pytest.mark.parametrize("prompt", [0, 1, 63, 65, 96, 127])
def test_mixed_prompts_are_aligned(prompt: int) -> None:
    """A positive multiple of 64."""
    with pytest.raises(InvalidCatalogError, match="multiple of 64"):
        descriptor(f"mixed-b4-w1-c{prompt}")


def test_a_mixed_prompt_is_at_least_the_decode_width() -> None:
    """So that rows that all decode fit the packed extent."""
    with pytest.raises(InvalidCatalogError, match="below token_capacity"):
        descriptor("mixed-b2-d64-w65-c64")


@pytest.mark.parametrize(
    "name", ["decode-b4", "prefill-c64", "speculative-b4-d3-w4", "vision-c64", "snapshot-b4"]
)
def test_other_families_have_no_mixed_prompt(name: str) -> None:
    """Only mixed graphs declare a prompt capacity beside their rows."""
    with pytest.raises(InvalidCatalogError, match="mixed prompt"):
        descriptor(name, prefill_capacity=64)


def test_cost_entries_of_mixed_graphs() -> None:
    """Kind, rows, width and prompt capacity separate costs; so does keeping the draft state."""
    names = ("mixed-b4-w1-c64", "mixed-b4-d0-w1-c64", "mixed-b4-d3-w4-c64", "mixed-b4-w1-c128")
    scheduler = Scheduler(
        catalog=catalog_of(*names),
        resources=ResourceConfig(
            row_count=4, page_count=8, page_size_tokens=64, context_length_tokens=256
        ),
    )
    scheduler.seed_costs({name: 1_000_000 + index for index, name in enumerate(names)})
    costs = scheduler._state.costs
    indices = {g.name: i for i, g in enumerate(scheduler.catalog.graphs)}
    assert [costs.estimates_ns[indices[name]] for name in names] == [
        1_000_000,
        1_000_001,
        1_000_002,
        1_000_003,
    ]


def test_a_descriptor_never_brings_a_deeper_name_to_a_smaller_producer() -> None:
    """Nothing turns a program of three proposals into one of seven: neither name nor cost (D3)."""
    shallow, deep = descriptor("speculative-b4-d3-w4"), descriptor("speculative-b4-d7-w4")
    for field, value in (("name", deep.name), ("key", deep.key), ("proposal_depth", 7)):
        with pytest.raises((AttributeError, TypeError)):
            setattr(shallow, field, value)
    with pytest.raises(TypeError):
        dataclasses.replace(shallow, name=deep.name)
    with pytest.raises(InvalidCatalogError, match=r"W is at most D \+ 1"):
        dataclasses.replace(shallow, token_capacity=5)
    catalog = catalog_of(shallow.name, deep.name)
    resources = ResourceConfig(
        row_count=4, page_count=8, page_size_tokens=16, context_length_tokens=64
    )
    scheduler = Scheduler(catalog=catalog, resources=resources)
    costs = scheduler._state.costs
    place = {graph.name: index for index, graph in enumerate(catalog.graphs)}
    costs.observe(place[shallow.name], 1_000_000, 5)
    assert costs.observed_ns(place[shallow.name]) == 5
    assert costs.observed_ns(place[deep.name]) is None, "the deep program's time is its own"
