"""Acceptance models: frequencies are the profile's, forecasts are as calibrated as was set."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from helios.scheduler import ProposalSource
from scheduling_sim.acceptance import ProfiledAcceptance, acceptance, acceptance_names
from scheduling_sim.acceptance_model import AcceptanceModel, RoundDraw
from scheduling_sim.acceptance_profiles import MTP, PROFILES, STRONG, Profile
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.records import Segment, WorkloadRequest

LEARNED, COPY = ProposalSource.LEARNED, ProposalSource.COPY


def request(index: int = 0, *, tokens: int = 400, acceptance: str = "") -> WorkloadRequest:
    return WorkloadRequest(
        request_id=f"r{index}",
        arrival_ns=0,
        prompt=(Segment(1, 10),),
        output=Segment(2, tokens),
        max_output_tokens=tokens,
        acceptance=acceptance,
    )


def rounds(
    model: AcceptanceModel,
    depth: int,
    *,
    source: ProposalSource = LEARNED,
    requests: int = 1500,
    first: int = 0,
    tokens: int = 400,
) -> list[RoundDraw]:
    """Return the rounds that a device would run: each starts where the one before it ended."""
    found = []
    for index in range(requests):
        asked, at = request(index, tokens=tokens), first
        while at < tokens:
            found.append(model.draw(asked, at, depth, source))
            at += found[-1].accepted + 1
    return found


def at_one_position(
    model: AcceptanceModel, depth: int, *, at: int = 5, source: ProposalSource = LEARNED
) -> list[RoundDraw]:
    """Return one round of each of 8,000 requests, so that every request counts once."""
    return [model.draw(request(i, tokens=8), at, depth, source) for i in range(8_000)]


def survivals(drawn: list[RoundDraw], depth: int) -> np.ndarray:
    accepted = np.asarray([round_.accepted for round_ in drawn])
    return np.asarray([np.mean(accepted >= d) for d in range(1, depth + 1)])


@pytest.mark.parametrize(("name", "vector"), [("strong-draft", STRONG), ("mtp", MTP)])
def test_prefixes_survive_as_often_as_published(name: str, vector: tuple[float, ...]) -> None:
    """Over requests, the spread between them included; four standard errors of at most 0.56 %."""
    drawn = at_one_position(acceptance(name, seed=1), len(vector))
    assert survivals(drawn, len(vector)) == pytest.approx(vector, abs=0.022)


def test_the_published_ends_of_the_mtp_head() -> None:
    assert MTP[0] > 0.70
    assert MTP[6] < 0.10


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("source", [LEARNED, COPY])
def test_planes_are_falling_probabilities(name: str, source: ProposalSource) -> None:
    for drawn in rounds(acceptance(name), 6, source=source, requests=20):
        assert 0 <= drawn.accepted <= 6
        for plane in (drawn.confidence, drawn.survival):
            assert len(plane) == 6
            steps = [1.0, *plane, 0.0]
            assert steps == sorted(steps, reverse=True)
        assert drawn.accepted == 0 or drawn.survival[drawn.accepted - 1] > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("source", [LEARNED, COPY])
def test_survival_is_the_chance_of_acceptance(source: ProposalSource) -> None:
    """Of the rounds with about one survival at a depth, that share is accepted to this depth."""
    drawn = at_one_position(acceptance("copy-heavy", copy_run=6.0), 4, source=source)
    for depth in (1, 2, 4):
        survival = np.asarray([round_.survival[depth - 1] for round_ in drawn])
        taken = np.asarray([round_.accepted >= depth for round_ in drawn])
        for low, high in ((0.0, 0.001), (0.001, 0.4), (0.4, 0.7), (0.7, 0.999), (0.999, 1.1)):
            inside = (survival >= low) & (survival < high)
            if inside.sum() > 300:
                assert taken[inside].mean() == pytest.approx(survival[inside].mean(), abs=0.05)
        assert taken.mean() == pytest.approx(survival.mean(), abs=0.022)


@pytest.mark.slow
def test_calibrated_confidence_is_the_chance_of_acceptance() -> None:
    drawn = at_one_position(acceptance("strong-draft"), 4)
    for depth in (1, 3):
        confidence = np.asarray([round_.confidence[depth - 1] for round_ in drawn])
        taken = np.asarray([round_.accepted >= depth for round_ in drawn])
        edges = np.quantile(confidence, np.linspace(0.0, 1.0, 6))
        for low, high in itertools.pairwise(edges):
            inside = (confidence >= low) & (confidence <= high)
            assert taken[inside].mean() == pytest.approx(confidence[inside].mean(), abs=0.05)
        assert confidence.std() > 0.1


@pytest.mark.slow
def test_survival_is_the_sharper_forecast() -> None:
    drawn = at_one_position(acceptance("strong-draft"), 3)
    taken = np.asarray([round_.accepted >= 2 for round_ in drawn])
    errors = [
        np.mean((np.asarray([plane(round_)[1] for round_ in drawn]) - taken) ** 2)
        for plane in (lambda r: r.survival, lambda r: r.confidence)
    ]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.slow
def test_a_calibration_error_is_as_set() -> None:
    """Log-odds of confidence are offset + slope * those of the calibrated one, plus the noise."""

    def odds(**options: float) -> np.ndarray:
        model = acceptance("strong-draft", **options)
        first = np.asarray([round_.confidence[0] for round_ in at_one_position(model, 1)])
        return np.log(first / (1.0 - first))

    calibrated, wrong = odds(), odds(slope=1.5, offset=0.7)
    assert wrong == pytest.approx(0.7 + 1.5 * calibrated, abs=1e-6)
    errors = odds(slope=1.0, offset=-0.3, noise=0.5) - calibrated
    assert errors.mean() == pytest.approx(-0.3, abs=0.02)
    assert errors.std() == pytest.approx(0.5, abs=0.02)


def test_wrong_confidence_does_not_change_what_is_accepted() -> None:
    honest, bold = acceptance("strong-draft"), acceptance("overconfident")
    pairs = zip(rounds(honest, 5, requests=50), rounds(bold, 5, requests=50), strict=True)
    higher = [b.confidence[0] > a.confidence[0] for a, b in pairs if a.accepted == b.accepted]
    assert len(higher) == len(rounds(honest, 5, requests=50))
    assert np.mean(higher) > 0.8


@pytest.mark.slow
def test_requests_differ_and_keep_their_quality() -> None:
    """The first half of a request's answer tells of the second half, unless all are alike."""

    def agreement(spread: float) -> float:
        model = acceptance("strong-draft", spread=spread)
        halves = [
            [
                np.mean([model.draw(request(i), at, 1, LEARNED).accepted for at in positions])
                for i in range(300)
            ]
            for positions in (range(200), range(200, 400))
        ]
        return float(np.corrcoef(halves)[0, 1])

    assert agreement(6.0) > 0.9
    assert abs(agreement(math.inf)) < 0.2


def test_the_spread_is_that_of_a_beta() -> None:
    """Variance m (1 - m) / (spread + 1) of a request's first acceptance."""
    profile = Profile(survival=(0.6,), spread=9.0, token_spread=0.0, certainty=0.0)
    model = ProfiledAcceptance(profile, seed=0)
    chances = [model.draw(request(i, tokens=1), 0, 1, LEARNED).survival[0] for i in range(5000)]
    assert np.mean(chances) == pytest.approx(0.6, abs=0.01)
    assert np.var(chances) == pytest.approx(0.6 * 0.4 / 10.0, rel=0.08)


@pytest.mark.slow
def test_acceptance_drifts_over_an_answer() -> None:
    model = acceptance("drifting")
    early = rounds(model, 1, requests=400, tokens=100)
    late = rounds(model, 1, requests=400, first=2000, tokens=2100)
    assert survivals(early, 1)[0] == pytest.approx(STRONG[0], abs=0.03)
    # ln(0.71 / 0.29) = 0.90 less 3 is 11 % for a middling request.
    assert 0.08 < survivals(late, 1)[0] < 0.25


def test_copied_proposals_are_right_to_the_end_of_their_piece() -> None:
    model = acceptance("copy-heavy", copy_spread=math.inf)
    one = request(tokens=2000)
    reach = [model.draw(one, at, 40, COPY).accepted for at in range(2000)]
    for here, after in itertools.pairwise(reach):
        assert here in (0, 40) or after == here - 1
    drawn = at_one_position(model, 8, source=COPY)
    expected = [0.7 * (1.0 - 1.0 / 40.0) ** depth for depth in range(8)]
    assert survivals(drawn, 8) == pytest.approx(expected, abs=0.022)
    assert drawn[0].confidence == pytest.approx(expected)
    assert set(drawn[0].survival) <= {0.0, 1.0}


def test_copies_of_everything_and_of_nothing() -> None:
    for source in (LEARNED, COPY):
        assert {r.accepted for r in rounds(acceptance("all"), 7, source=source, requests=5)} == {7}
        never = rounds(acceptance("nothing"), 7, source=source, requests=2)
        assert {round_.accepted for round_ in never} == {0}
        assert {tuple(round_.survival) for round_ in never} == {(0.0,) * 7}


def test_luck_belongs_to_the_position() -> None:
    """A wider round accepts what a narrower one does, as far as that one goes."""
    model = acceptance("strong-draft")
    for at in range(300):
        deep = model.draw(request(), at, 8, LEARNED)
        narrow = model.draw(request(), at, 3, LEARNED)
        assert narrow.accepted == min(3, deep.accepted)
        assert narrow.survival == deep.survival[:3]


def test_a_draw_depends_on_its_arguments_alone() -> None:
    forward = [acceptance("mtp", seed=4).draw(request(3), at, 5, LEARNED) for at in range(50)]
    model = acceptance("mtp", seed=4)
    for index in range(1100):
        model.draw(request(index, tokens=3), 0, 2, LEARNED)
    backward = [model.draw(request(3), at, 5, LEARNED) for at in reversed(range(50))]
    assert backward[::-1] == forward
    other = [acceptance("mtp", seed=5).draw(request(3), at, 5, LEARNED) for at in range(50)]
    assert other != forward
    assert [model.draw(request(4), at, 5, LEARNED) for at in range(50)] != forward


def test_positions_behind_the_answer_can_be_proposed_for() -> None:
    model = acceptance("strong-draft")
    assert len(model.draw(request(tokens=1), 0, 200, LEARNED).survival) == 200
    assert len(model.draw(request(tokens=1), 500, 3, COPY).survival) == 3


def test_requests_may_name_their_profile() -> None:
    model = acceptance("nothing")
    assert model.draw(request(acceptance="all"), 0, 4, LEARNED).accepted == 4
    assert model.draw(request(), 0, 4, LEARNED).accepted == 0
    with pytest.raises(ValueError, match="no acceptance profile 'al'"):
        model.draw(request(acceptance="al"), 0, 4, LEARNED)


def test_options_replace_figures() -> None:
    model = acceptance("strong-draft", survival="0.5, 0.25", spread="inf")
    assert survivals(at_one_position(model, 3), 3) == pytest.approx((0.5, 0.25, 0.125), abs=0.022)
    assert set(acceptance_names()) == set(PROFILES)
    assert all(acceptance_names().values())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"depth": 3}, "no option 'depth'"),
        ({"survival": "0.5,0.6"}, "probabilities that fall"),
        ({"survival": "1.5"}, "probabilities that fall"),
        ({"survival": "nan"}, "probabilities that fall"),
        ({"survival": ""}, "survival is ''"),
        ({"spread": 0.0}, "spread is 0.0"),
        ({"spread": "wide"}, "spread is 'wide'"),
        ({"certainty": 1.5}, "certainty is 1.5"),
        ({"token_spread": -0.1}, "token_spread is -0.1"),
        ({"copy_run": 0.5}, "copy_run is 0.5"),
        ({"copy_share": 2}, "copy_share is 2"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"drift": math.inf}, "drift is inf"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_impossible_profiles_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(WorkloadError) as error:
        acceptance("strong-draft", **options)  # type: ignore[arg-type]
    assert why in str(error.value)


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(ValueError, match="strong-draft"):
        acceptance("strong-drafd")
