"""Odd values for any field, and tests that try many of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.scheduler import Fence, Phase, RequestHandle, SelectionReason

NUMBERS: list[Any] = [0, 1, 2, 7, -1, 2**31, 2**62, 2**63, 2**64, 10**5000, -(10**5000)]
NUMBERS += [0.0, -0.0, 1.0, 2.5, float("nan"), float("inf"), -float("inf"), True, False]
NUMBERS += [np.int64(1), np.int32(0), np.float64(1.0), np.float32(0.5), np.bool_(False), 1j]
NUMBERS += [Phase.WAITING, Phase.INITIALIZING, Phase.PREFILL]
THINGS: list[Any] = [None, "", "1", b"", b"\x07", (), [], {}, (0,), (1, 2), [7], {7: 7}, range(2)]
THINGS += [object(), Fence, SelectionReason.ORDINARY, "ordinary", RequestHandle(0, 0)]
THINGS += [np.array([7]), np.array([0, 0]), np.zeros(0), np.ones((2, 4, 3), dtype=np.float32)]
ODD = st.sampled_from([*NUMBERS, *THINGS])
ANYTHING = st.one_of(ODD, st.lists(ODD, max_size=3).map(tuple), st.lists(ODD, max_size=3))
FEW, MANY = 100, 2_000
"""Examples of a fast run, and of a slow one whose examples take about a millisecond."""


def tried(
    *strategies: st.SearchStrategy[Any], many: int = MANY
) -> Callable[[Callable[..., None]], Any]:
    """Make a test of a check that takes one value of each strategy: fast of few, slow of many."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("examples", [FEW, pytest.param(many, marks=pytest.mark.slow)])
        def test(examples: int) -> None:
            settings(max_examples=examples)(given(*strategies)(check))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
