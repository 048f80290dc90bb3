"""Rows and pages: lowest first, reserved whole, given back once (decision 0002)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.scheduler import InvalidRequestError, RequestSpec, ResourceConfig
from helios.scheduler.resources import ResourcePool

CONFIG = ResourceConfig(row_count=4, page_count=20, page_size_tokens=16, context_length_tokens=512)


@given(st.lists(st.one_of(st.integers(1, 8), st.none()), max_size=60))
def test_pool_against_a_plain_model(actions: list[int | None]) -> None:
    """Every reservation gets the lowest free row and pages; everything comes back."""
    pool = ResourcePool(CONFIG)
    rows, pages = set(range(4)), set(range(20))
    held: list[tuple[int, tuple[int, ...]]] = []
    for action in actions:
        if action is None:
            if held:
                row, owned = held.pop(len(held) // 2)
                pool.release(row, owned)
                rows.add(row)
                pages |= set(owned)
            continue
        fits = bool(rows) and len(pages) >= action
        assert pool.can_reserve(action) == fits
        if fits:
            row, owned = pool.reserve(action)
            assert row == min(rows)
            assert owned == tuple(sorted(pages)[:action])
            rows.discard(row)
            pages -= set(owned)
            held.append((row, owned))
        assert pool.rows_free == len(rows)
        assert pool.pages_free == len(pages)


@pytest.mark.parametrize(
    ("prompt", "output", "message"),
    [(500, 13, "513.*512"), (321, 0, "21 pages.*20"), (319, 2, "21 pages.*20")],
)
def test_what_could_never_run_is_refused_with_both_numbers(
    prompt: int, output: int, message: str
) -> None:
    """The refusal names what is needed and what exists (runtime 1.3)."""
    spec = RequestSpec(prompt_tokens=prompt, max_output_tokens=output, scored=True)
    with pytest.raises(InvalidRequestError, match=message):
        ResourcePool(CONFIG).check_possible(spec)


def test_a_whole_request_is_counted() -> None:
    """Pages cover prompt and every output token, to the last full page."""
    pool = ResourcePool(CONFIG)
    assert pool.pages_of(RequestSpec(prompt_tokens=1, max_output_tokens=15)) == 1
    assert pool.pages_of(RequestSpec(prompt_tokens=1, max_output_tokens=16)) == 2
    pool.check_possible(RequestSpec(prompt_tokens=310, max_output_tokens=10))


def test_giving_back_what_nobody_owns_is_our_bug() -> None:
    """A double release stops the process instead of handing a page to two requests."""
    pool = ResourcePool(CONFIG)
    with pytest.raises(AssertionError):
        pool.release(0, ())
    row, pages = pool.reserve(2)
    with pytest.raises(AssertionError):
        pool.release(row, (*pages, 7))
