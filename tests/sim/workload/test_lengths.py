"""Length rules: means, tails, texts; the client's limit; prompts and answers in a context."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduling_sim.workload.content import generator
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.lengths import (
    MAX_TOKENS,
    Empirical,
    OutOfContext,
    fit_context,
    length_rule,
    out_of_context,
    output_limit,
)

COUNT = 200_000


def drawn(text: str, seed: int = 0) -> np.ndarray:
    return length_rule(text).draw(generator(seed, "test"), COUNT)


def test_means_are_those_of_the_distributions() -> None:
    assert drawn("37").tolist() == [37] * COUNT
    assert drawn("uniform:10:30").mean() == pytest.approx(20.0, rel=0.01)
    assert set(drawn("uniform:10:12").tolist()) == {10, 11, 12}
    # exp(sigma^2 / 2) above the median; standard error 0.3 %.
    assert drawn("lognormal:500:1.0").mean() == pytest.approx(500 * math.exp(0.5), rel=0.02)
    assert np.median(drawn("lognormal:500:1.0")) == pytest.approx(500, rel=0.01)
    # shape / (shape - 1) times the minimum; shape 3 has a finite variance.
    assert drawn("pareto:100:3").mean() == pytest.approx(150.0, rel=0.01)


def test_a_pareto_tail_is_heavy() -> None:
    """P(length > x) = (minimum / x)^shape, far out as well."""
    lengths = drawn("pareto:64:1.6")
    for threshold in (128, 640, 6400):
        expected = (64 / threshold) ** 1.6
        error = 5 * math.sqrt(expected / COUNT)
        assert np.mean(lengths > threshold) == pytest.approx(expected, abs=error + 0.01 * expected)
    assert lengths.min() == 64


def test_every_length_is_at_least_one_and_believable() -> None:
    assert drawn("lognormal:1:3").min() == 1
    assert drawn("pareto:100000:0.2").max() == MAX_TOKENS


def test_observed_lengths_are_drawn_as_often_as_they_were_seen() -> None:
    lengths = Empirical((5, 5, 5, 9)).draw(generator(0, "test"), COUNT)
    assert set(lengths.tolist()) == {5, 9}
    assert np.mean(lengths == 5) == pytest.approx(0.75, abs=0.005)


def test_one_seed_gives_one_sample() -> None:
    assert drawn("lognormal:500:1.0").tolist() == drawn("lognormal:500:1.0").tolist()
    assert drawn("lognormal:500:1.0").tolist() != drawn("lognormal:500:1.0", seed=1).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fixed",
        "fixed:0",
        "fixed:-3",
        "fixed:x",
        "fixed:nan",
        "uniform:10",
        "uniform:30:10",
        "lognormal:0:1",
        "lognormal:10:9",
        "lognormal:10:inf",
        "pareto:10:0",
        "weibull:1:2",
        "fixed:10000001",
    ],
)
def test_impossible_rules_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        length_rule(text)


def test_nothing_observed_is_no_rule() -> None:
    with pytest.raises(WorkloadError, match="at least one"):
        Empirical(())
    with pytest.raises(WorkloadError, match="observed length is 0"):
        Empirical((3, 0))


def test_clients_do_not_know_how_long_answers_are() -> None:
    assert output_limit("exact").of(100) == 100
    assert output_limit("factor:1.5").of(101) == 152
    assert output_limit("fixed:256").of(100) == 256
    assert output_limit("fixed:256").of(300) == 300
    assert output_limit("fixed:256").of(100, room_tokens=120) == 120
    assert output_limit("fixed:256").of(100, room_tokens=50) == 100


@pytest.mark.parametrize(
    "text", ["", "factor", "factor:0.5", "fixed:", "exact:2", "fixed:nan", "x:1"]
)
def test_impossible_limits_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        output_limit(text)


def test_a_context_cuts_prompts_before_answers() -> None:
    assert fit_context(50, 40, context_tokens=100) == (50, 40)
    assert fit_context(80, 40, context_tokens=100) == (60, 40)
    assert fit_context(80, 400, context_tokens=100) == (1, 99)
    assert fit_context(1, 1, context_tokens=2) == (1, 1)
    with pytest.raises(WorkloadError):
        fit_context(1, 1, context_tokens=1)


def test_rules_for_long_requests_have_names() -> None:
    assert out_of_context("cut") is OutOfContext.CUT
    with pytest.raises(WorkloadError, match="keep, skip, cut"):
        out_of_context("drop")
