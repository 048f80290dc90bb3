"""What is kept while the same decoders are ready."""

from __future__ import annotations

import itertools

from helios.scheduler import RequestHandle, RequestSpec
from helios.scheduler.requests import UNLIMITED, Request
from helios.scheduler.roster import roster_of


def request(
    arrival: int, row: int = 0, weight: float = 1.0, limit: int = 0, learned: int = 0
) -> Request:
    spec = RequestSpec(
        prompt_tokens=8,
        max_output_tokens=8,
        weight=weight,
        width_limit=limit,
        learned_width_limit=learned,
    )
    found = Request(RequestHandle(arrival, 0), spec, arrival, 0)
    found.row = row
    return found


def test_every_small_roster() -> None:
    """All of up to three decoders of two weights, limits and learned limits, against a loop."""
    kinds = list(itertools.product((0.5, 2.0), (0, 3), (0, 1)))
    for count in range(4):
        for chosen in itertools.product(kinds, repeat=count):
            requests = [
                request(place, 9 - place, weight, limit, learned)
                for place, (weight, limit, learned) in enumerate(chosen)
            ]
            found = roster_of(requests)
            weights = [weight for weight, _, _ in chosen]
            learned = [learned or UNLIMITED for _, _, learned in chosen]
            assert found.rows.tolist() == [9 - place for place in range(count)]
            assert found.arrival.tolist() == list(range(count))
            assert found.weights.tolist() == weights
            assert found.heaviest == (2.0 if 2.0 in weights else 0.5 if weights else 0.0)
            assert found.is_even == (len({*weights}) < 2)
            assert found.is_capped == (3 in [limit for _, limit, _ in chosen])
            if all(limit == UNLIMITED for limit in learned):
                assert found.learned_limits is None
            else:
                assert found.learned_limits is not None
                assert found.learned_limits.tolist() == learned


def test_a_roster_is_kept_only_for_the_same_decoders_in_the_same_order() -> None:
    """Others, fewer, or another order make a new one (9.2)."""
    one, two = request(1), request(2)
    last = roster_of([one, two])
    assert last.is_rising
    assert roster_of([one, two], last) is last
    turned = roster_of([two, one], last)
    assert turned is not last
    assert not turned.is_rising
    assert roster_of([one], last).rows.tolist() == [0]
    assert roster_of([one, request(2)], last) is not last, "an equal request is another one"
