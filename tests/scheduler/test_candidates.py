"""Single-graph candidates after dominance (docs/design/scheduling-utility.md section 5)."""

from __future__ import annotations

import pytest

from helios.scheduler import GraphKind, PolicyConfig, RequestHandle, RequestSpec
from helios.scheduler.candidates import rate_of, single_candidates, waiting_of
from helios.scheduler.requests import Request
from helios.scheduler.utility import Shapes, View, units_of
from helios.scheduler.waiting import Waiting
from tests.scheduler.loop import small_catalog

CATALOG = small_catalog()
SHAPES = Shapes(CATALOG)


def view_of(decoders: int = 0, prompts: tuple[int, ...] = (), terminals: int = 0) -> View:
    view = View(SHAPES, [2.0] * len(CATALOG.graphs), PolicyConfig(), 0)
    total = decoders + len(prompts) + terminals
    lengths = [8] * decoders + list(prompts) + [8] * terminals
    requests = [
        Request(
            RequestHandle(i, 0),
            RequestSpec(prompt_tokens=length, max_output_tokens=8),
            i,
            0,
        )
        for i, length in enumerate(lengths)
    ]
    view.decoders = requests[:decoders]
    view.token_prices = view.delivery_prices = [1.0] * decoders
    view.ages_ms = [float(i) for i in range(decoders)]
    view.prefilling = requests[decoders : decoders + len(prompts)]
    view.prompt_prices = dict.fromkeys(view.prefilling, 1.0)
    view.terminals = requests[total - terminals :]
    view.terminal_ages_ms = [1.0] * terminals
    return view


def shapes_of(view: View) -> list[tuple[str, list[int]]]:
    units = units_of(view)
    found = single_candidates(view, units, waiting_of(view, units))
    return [
        (CATALOG.graphs[c.graph_index].name, [lane.arrival for lane in c.cohort]) for c in found
    ]


def test_every_bucket_below_the_demand_and_one_above_compete() -> None:
    """A batch of four serving three competes with a batch of two serving the best two (5.1)."""
    assert shapes_of(view_of(decoders=3)) == [
        ("decode-b1", [2]),
        ("decode-b2", [2, 1]),
        ("decode-b4", [2, 1, 0]),
    ]
    assert shapes_of(view_of(decoders=2))[-1] == ("decode-b2", [1, 0])


def test_no_kind_is_filtered_by_precedence() -> None:
    """Prefill, decode and retirement enter the same comparison (1.1, field report 1)."""
    kinds = {name.rsplit("-", 1)[0] for name, _ in shapes_of(view_of(1, (40,), 1))}
    assert kinds == {"decode", "prefill", "terminal"}


def test_a_prefill_is_compared_where_it_is_not_redundant() -> None:
    """The larger graph serves the prompt that the smaller one cannot finish (5.2, 5.3)."""
    assert shapes_of(view_of(prompts=(10, 40))) == [("prefill-c16", [1]), ("prefill-c64", [1])]
    assert shapes_of(view_of(prompts=(10, 16))) == [("prefill-c16", [1])]


@pytest.mark.parametrize("kind", [GraphKind.DECODE, GraphKind.TERMINAL])
def test_waiting_is_charged_for_everyone_not_only_the_served(kind: GraphKind) -> None:
    """T/2 times the coefficients of all decoders and terminal rows (1.4)."""
    view = view_of(decoders=3, terminals=2)
    units = units_of(view)
    waiting = waiting_of(view, units)
    assert waiting == Waiting(pytest.approx(3 * 0.1 + 2 * 1.0))
    assert rate_of(10.0, 4.0, waiting) == pytest.approx(2.5 - 2.0 * waiting.price)
    assert rate_of(10.0, 0.0, waiting) == 10.0
    found = [
        candidate
        for candidate in single_candidates(view, units, waiting)
        if CATALOG.graphs[candidate.graph_index].kind is kind
    ]
    for candidate in found:
        value = sum(-lane.negative_value + 2.0 * candidate.age_slope for lane in candidate.cohort)
        assert -candidate.negative_rate == pytest.approx(value / 2.0 - waiting.price)


@pytest.mark.parametrize("kind", [GraphKind.DECODE, GraphKind.TERMINAL])
def test_padding_is_the_rows_without_work(kind: GraphKind) -> None:
    """Three in a batch of four leave one row and full batches none, which ranks ties (5.5)."""
    view = view_of(decoders=3, terminals=3)
    units = units_of(view)
    found = [
        (candidate.served, candidate.padding)
        for candidate in single_candidates(view, units, waiting_of(view, units))
        if CATALOG.graphs[candidate.graph_index].kind is kind
    ]
    assert found == [(1, 0), (2, 0), (3, 1)]
