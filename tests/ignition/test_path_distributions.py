"""3.6 on every path: whatever proposed, dealt or masked, tokens have the target's distribution.

Chi-square over a million draws of native rounds. test_acceptance_distribution.py has the sampling
settings, and the eager programs; which path needs a million of its own is decided in
docs/decisions/0038-a-million-draws-a-path.md.
"""

from __future__ import annotations

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from tests.ignition import pairs
from tests.ignition.driver import mixed_graph, round_graph
from tests.ignition.many_draws import (
    PENDING,
    ROWS,
    check_draws,
    many_rows_driver,
    native_draws,
)
from tests.ignition.test_dealt import dealt_graph
from tests.ignition.test_learned_rounds import head, learned_graph
from tests.ignition.test_masks import masks_of
from tests.ignition.test_mixed import chunk_lane
from tests.ignition.test_ragged import ragged_graph
from tests.ignition.tiny import VOCABULARY

pytestmark = pytest.mark.slow
SAMPLING = SamplingParams(temperature=1.5, top_p=0.9)
CHUNK = chunk_lane(ROWS - 1, list(range(20, 30)), 0, 6)
"""Six tokens of a longer prompt, in the last row of a mixed frame."""


def test_a_head_s_proposals() -> None:
    graph = learned_graph(ROWS, 2)
    draws = native_draws(many_rows_driver([graph], head=head()), graph, SAMPLING, [2] * ROWS)
    check_draws(draws, PENDING, SAMPLING)


def test_rows_that_the_program_deals() -> None:
    graph = dealt_graph(ROWS, 2, ROWS + 24)
    draws = native_draws(many_rows_driver([graph], head=head()), graph, SAMPLING, [2] * ROWS)
    assert draws.given.sum() == ROWS + 24
    check_draws(draws, PENDING, SAMPLING)


def test_a_draft_model_s_proposals() -> None:
    graph = pairs.learned_graph(ROWS, 2)
    driver = many_rows_driver([graph], pair="one-layer")
    check_draws(native_draws(driver, graph, SAMPLING, [2] * ROWS), PENDING, SAMPLING)


def test_rows_that_the_host_deals() -> None:
    graph, lengths = ragged_graph(ROWS, 2, ROWS + 24), [2] * 24 + [1] * (ROWS - 24)
    draws = native_draws(many_rows_driver([graph]), graph, SAMPLING, lengths)
    check_draws(draws, PENDING, SAMPLING)


@pytest.mark.parametrize("source", ["copy", "learned"])
def test_rounds_beside_a_prompt(source) -> None:
    graph = mixed_graph(ROWS, 2, 64) if source == "copy" else learned_graph(ROWS, 2, prompt=64)
    driver = many_rows_driver([graph], head=None if source == "copy" else head())
    draws = native_draws(driver, graph, SAMPLING, [2] * (ROWS - 1), chunk=CHUNK)
    check_draws(draws, PENDING[:-1], SAMPLING)


def test_rounds_under_a_grammar_s_masks() -> None:
    graph, generator = round_graph(ROWS, 2), np.random.default_rng(3)
    allowed = [generator.random(VOCABULARY) < share for share in (0.3, 0.5)]
    masks = masks_of(*(np.flatnonzero(each).tolist() for each in allowed))
    draws = native_draws(many_rows_driver([graph]), graph, SAMPLING, [2] * ROWS, masks=masks)
    assert all(allowed[0][token] for token in draws.proposals)
    check_draws(draws, PENDING, SAMPLING, allowed)
