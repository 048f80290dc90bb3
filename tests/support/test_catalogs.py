"""The short names that tests build catalogs from say what the descriptors are."""

from __future__ import annotations

import pytest

from helios.scheduler import GraphKind, ProposalSource, RowAllocation
from tests.support.catalogs import Recipe, descriptor, recipe

NAMES = [
    "decode-b4",
    "prefill-c512",
    "scored-prefill-c64",
    "vision-c256",
    "restore-b4",
    "snapshot-b4",
    "speculative-b4-d0-w1",
    "speculative-b4-d3-w4",
    "speculative-b4-d3-w4-p8",
    "speculative-b4-d3-w4-p8-device",
    "speculative-b4-d3-w4-copy",
    "mixed-b4-w1-c64",
    "mixed-b4-d0-w1-c64",
    "mixed-b4-d3-w4-c64",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_builds_the_descriptor_that_bears_it(name: str) -> None:
    assert descriptor(name).name == name


def test_what_the_words_of_a_name_mean() -> None:
    ragged = descriptor("speculative-b4-d3-w4-p8-device")
    assert (ragged.kind, ragged.batch_capacity, ragged.proposal_depth) == (
        GraphKind.SPECULATIVE,
        4,
        3,
    )
    assert (ragged.token_capacity, ragged.packed_capacity) == (4, 8)
    assert ragged.allocation is RowAllocation.DEVICE
    assert ragged.confidence_width == 3
    assert descriptor("speculative-b4-d3-w4-copy").source is ProposalSource.COPY
    assert descriptor("speculative-b4-d0-w1").allocation is RowAllocation.NONE
    assert not descriptor("mixed-b4-w1-c64").speculation_enabled


def test_a_recipe_names_every_program_and_its_cost() -> None:
    model = recipe(
        Recipe(
            rows=4,
            ragged=((3, 2),),
            device=True,
            copy_depths=(3,),
            mixed=((1, 64), (4, 64)),
            vision=(256,),
            states=True,
        ),
        reports_survival=True,
    )
    assert sorted(g.name for g in model.catalog.graphs) == sorted(model.duration_ns)
    assert all(ns > 0 for ns in model.duration_ns.values())
    proposing = [g for g in model.catalog.graphs if g.proposal_depth]
    assert all(g.reports_survival for g in proposing)
    assert {g.packed_capacity for g in proposing if g.packed_capacity} == {2, 4, 8}
