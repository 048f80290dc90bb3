"""Row allocation: the causal frontier against its one-row-at-a-time twin, and against bias."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from helios.scheduler.allocation import (
    device_lengths,
    frontier_order,
    host_lengths,
    lengths_of_cohorts,
)
from tests.scheduler.oracles.speculation import best_total, frontier_lengths

LEVELS = (1.0, 0.5, 0.25, 0.0)


def ints(values: object) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def lengths(
    values: list[list[float]], ceilings: list[int], slots: list[int], packed: int
) -> list[int]:
    return device_lengths(np.array(values), ints(ceilings), ints(slots), packed).tolist()


def falling(depth: int) -> list[list[float]]:
    return [list(row) for row in itertools.combinations_with_replacement(LEVELS, depth)]


def test_every_input_of_a_small_world() -> None:
    """Two lanes, two depths, four levels: every ceiling, capacity and slot order (8.2, 8.3)."""
    for values in itertools.product(falling(2), repeat=2):
        for ceilings in itertools.product((1, 2, 3), repeat=2):
            for packed in range(2, 7):
                for slots in ([0, 1], [1, 0]):
                    expected = frontier_lengths(values, ceilings, slots, packed)
                    assert lengths(list(values), list(ceilings), slots, packed) == expected


def random_case(rng: random.Random) -> tuple[list[list[float]], list[int], list[int], int]:
    lanes, depth = rng.randint(1, 6), rng.randint(1, 7)
    values = [
        sorted((rng.randint(0, 8) / 8 for _ in range(depth)), reverse=True) for _ in range(lanes)
    ]
    ceilings = [rng.randint(1, depth + 1) for _ in range(lanes)]
    slots = rng.sample(range(64), lanes)
    return values, ceilings, slots, rng.randint(lanes, lanes * (depth + 1) + 1)


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_worlds_equal_the_twin(count: int) -> None:
    """Dyadic values, so ties are many and exact (8.2, 8.3)."""
    rng = random.Random(count)
    for _ in range(count):
        case = random_case(rng)
        assert lengths(*case) == frontier_lengths(*case), case


def test_the_greedy_frontier_has_the_largest_total_of_all_lengths() -> None:
    """Because prefixes fall with depth, one row at a time loses nothing (8.3)."""
    rng = random.Random(5)
    for _ in range(300):
        lanes = rng.randint(1, 3)
        values = [
            sorted((rng.randint(0, 8) / 8 for _ in range(3)), reverse=True) for _ in range(lanes)
        ]
        ceilings = [rng.randint(1, 4) for _ in range(lanes)]
        packed = rng.randint(lanes, 4 * lanes)
        chosen = lengths(values, ceilings, list(range(lanes)), packed)
        total = sum(sum(row[: n - 1]) for row, n in zip(values, chosen, strict=True))
        assert total == best_total(values, ceilings, packed)
        assert sum(chosen) <= packed


def test_ties_go_to_the_shorter_prefix_and_then_to_the_smaller_slot() -> None:
    """Equal probabilities are decided by depth, then slot, never by lane order (8.2)."""
    flat = [[0.5, 0.5], [0.5, 0.5]]
    assert lengths(flat, [3, 3], [9, 4], 3) == [1, 2]
    assert lengths(flat, [3, 3], [9, 4], 4) == [2, 2]
    assert lengths(flat, [3, 3], [9, 4], 5) == [2, 3]


def test_every_lane_keeps_its_pending_row() -> None:
    """A lane of hopeless proposals still advances by its pending token (8.1)."""
    assert lengths([[0.0], [1.0]], [2, 2], [0, 1], 2) == [1, 1]
    with pytest.raises(AssertionError, match="pending row"):
        lengths([[0.0], [1.0]], [2, 2], [0, 1], 1)


def test_ceilings_may_sum_above_the_capacity_and_bound_each_lane() -> None:
    """Ceilings are per lane, the capacity is joint (8.1)."""
    assert lengths([[0.9, 0.8], [0.7, 0.6]], [3, 3], [0, 1], 4) == [3, 1]
    assert lengths([[0.9, 0.8], [0.7, 0.6]], [2, 3], [0, 1], 4) == [2, 2]
    assert lengths([[0.9, 0.8], [0.7, 0.6]], [2, 2], [0, 1], 9) == [2, 2]


def test_a_ceiling_beyond_the_depth_gives_no_more_than_the_proposals() -> None:
    """A lane cannot verify what was never proposed (8.1)."""
    assert lengths([[0.9]], [5], [0], 9) == [2]


def test_host_rows_go_to_the_largest_priced_marginal() -> None:
    """survival**alpha times the token's value, in the same order (8.4)."""
    survivals, ceilings, slots = np.array([[0.5, 0.25], [0.25, 0.125]]), ints([3, 3]), ints([0, 1])
    equal = host_lengths(survivals, np.array([64.0, 64.0]), ceilings, slots, 4)
    assert equal.tolist() == [2, 2], "depth one of lane 1 ties with depth two of lane 0 and wins"
    dear = host_lengths(survivals, np.array([64.0, 256.0]), ceilings, slots, 4)
    assert dear.tolist() == frontier_lengths([[32.0, 16.0], [64.0, 32.0]], [3, 3], [0, 1], 4)
    flat = host_lengths(survivals, np.array([64.0, 100.0]), ceilings, slots, 4, alpha=0.125)
    marginals = (survivals**0.125 * np.array([[64.0], [100.0]])).tolist()
    assert flat.tolist() == frontier_lengths(marginals, [3, 3], [0, 1], 4) == [1, 3]
    steep = host_lengths(survivals, np.array([64.0, 192.0]), ceilings, slots, 3, alpha=2.0)
    assert steep.tolist() == [2, 1], "16 of lane 0 against 12 of lane 1"


def check_host(
    survivals: list[list[float]],
    token_values: list[float],
    ceilings: list[int],
    slots: list[int],
    packed: int,
    alpha: float,
) -> None:
    """Compare the host's rows with the frontier of the marginals, each priced by definition."""
    found = host_lengths(
        np.array(survivals),
        np.array(token_values),
        ints(ceilings),
        ints(slots),
        packed,
        alpha=alpha,
    )
    priced = zip(survivals, token_values, strict=True)
    marginals = [[survival**alpha * value for survival in row] for row, value in priced]
    assert found.tolist() == frontier_lengths(marginals, ceilings, slots, packed)


def test_every_small_host_allocation() -> None:
    """Two lanes, two depths, two token values and exponents: every ceiling and capacity (8.4)."""
    for survivals in itertools.product(falling(2), repeat=2):
        for token_values in itertools.product((64.0, 128.0), repeat=2):
            for ceilings in itertools.product((2, 3), repeat=2):
                for packed, alpha in itertools.product(range(2, 7), (1.0, 2.0)):
                    rows = list(survivals)
                    check_host(rows, list(token_values), list(ceilings), [1, 0], packed, alpha)


def test_ten_thousand_random_host_allocations() -> None:
    """Dyadic survivals and values, so that ties are many and exact (8.4)."""
    rng = random.Random(84)
    for _ in range(10_000):
        survivals, ceilings, slots, packed = random_case(rng)
        token_values = [rng.choice([0.0, 1.0, 2.0, 64.0]) for _ in slots]
        check_host(survivals, token_values, ceilings, slots, packed, rng.choice([1.0, 1.0, 2.0]))


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_cohorts_at_once_equal_each_alone(count: int) -> None:
    """One order serves every cohort of the same lanes (8.5)."""
    rng = random.Random(count + 7)
    for _ in range(count):
        values, ceilings, slots, _ = random_case(rng)
        order = frontier_order(np.array(values), ints(ceilings), ints(slots))
        masks = [[rng.random() < 0.6 for _ in slots] for _ in range(4)]
        sizes = [sum(mask) for mask in masks]
        packed = [size + rng.randint(0, 6) for size in sizes]
        got = lengths_of_cohorts(order, np.array(masks), ints(packed)).tolist()
        for mask, capacity, row in zip(masks, packed, got, strict=True):
            lanes = [lane for lane, member in enumerate(mask) if member]
            alone = frontier_lengths(
                [values[lane] for lane in lanes],
                [ceilings[lane] for lane in lanes],
                [slots[lane] for lane in lanes],
                capacity,
            )
            assert [row[lane] for lane in lanes] == alone
            assert sum(row) == sum(alone)


def test_a_smaller_capacity_takes_a_prefix_of_the_same_order() -> None:
    """One order serves every capacity of the same cohort (8.5)."""
    rng = random.Random(11)
    for _ in range(100):
        values, ceilings, slots, _ = random_case(rng)
        order = frontier_order(np.array(values), ints(ceilings), ints(slots))
        for packed in range(len(slots), 20):
            admitted = order[: packed - len(slots)]
            got = (1 + np.bincount(admitted, minlength=len(slots))).tolist()
            assert got == frontier_lengths(values, ceilings, slots, packed)
            lengths = device_lengths(np.array(values), ints(ceilings), ints(slots), packed)
            assert lengths.tolist() == got


def test_admission_of_a_depth_never_depends_on_deeper_values_of_its_lane() -> None:
    """What is admitted up to depth d is decided by the values up to d alone (8.6)."""
    rng = random.Random(3)
    changed = 0
    for _ in range(2000):
        values, ceilings, slots, packed = random_case(rng)
        lane, kept = rng.randrange(len(slots)), rng.randint(0, len(values[0]) - 1)
        other = [list(row) for row in values]
        # Deeper values may even rise: a broken device must not gain foresight by that.
        other[lane][kept:] = [rng.randint(0, 8) / 8 for _ in other[lane][kept:]]
        before = lengths(values, ceilings, slots, packed)[lane]
        after = lengths(other, ceilings, slots, packed)[lane]
        if kept:
            assert min(before, kept + 1) == min(after, kept + 1)
        changed += before != after
    assert changed > 50, "the perturbation reaches the allocation at all"


# ---- losslessness, in exact arithmetic ----------------------------------------------------

TARGET = (Fraction(7, 10), Fraction(3, 10))
DRAFT = (Fraction(1, 2), Fraction(1, 2))


def verified(drawn: int) -> list[Fraction]:
    """Distribution of the first emitted token when the drawn proposal is verified."""
    kept = min(Fraction(1), TARGET[drawn] / DRAFT[drawn])
    residual = [max(Fraction(0), p - q) for p, q in zip(TARGET, DRAFT, strict=True)]
    emitted = [(1 - kept) * part / sum(residual) for part in residual]
    emitted[drawn] += kept
    return emitted


def output_distribution(confidence_of: dict[int, float], rival: float) -> list[Fraction]:
    """First token of lane 0 when it competes with a rival lane for one row beyond the pending ones.

    `confidence_of` maps lane 0's drawn proposal to the confidence that its allocator is shown.
    """
    total = [Fraction(0), Fraction(0)]
    for drawn, chance in enumerate(DRAFT):
        given = device_lengths(
            np.array([[confidence_of[drawn]], [rival]]), ints([2, 2]), ints([0, 1]), 3
        )
        emitted = verified(drawn) if given[0] == 2 else list(TARGET)
        total = [old + chance * new for old, new in zip(total, emitted, strict=True)]
    return total


def test_an_allocator_that_sees_the_drawn_token_biases_the_output() -> None:
    """The published counter-example: (0.7, 0.3) becomes (0.85, 0.15) (decisions, losslessness)."""
    peeking = {drawn: float(min(Fraction(1), TARGET[drawn] / DRAFT[drawn])) for drawn in (0, 1)}
    assert output_distribution(peeking, 0.75) == [Fraction(85, 100), Fraction(15, 100)]


@pytest.mark.parametrize("rival", [0.0, 0.25, 0.75, 0.8, 0.9, 1.0])
def test_a_causal_allocation_leaves_the_target_distribution_exact(rival: float) -> None:
    """Confidence from before the draw: the output is the target's, whoever wins the row (8.6)."""
    expected = float(sum(q * min(Fraction(1), p / q) for p, q in zip(TARGET, DRAFT, strict=True)))
    causal = dict.fromkeys((0, 1), expected)
    assert output_distribution(causal, rival) == list(TARGET)


TARGET2 = {0: (Fraction(1, 5), Fraction(4, 5)), 1: (Fraction(9, 10), Fraction(1, 10))}
"""Target of the second token after each first one; drafts are uniform."""


def pair_distribution(
    foresight: bool, rival: float, packed: int
) -> dict[tuple[int, int], Fraction]:
    """First two tokens of lane 0, two proposals deep, against a rival with one proposal.

    With `foresight` the value at depth two, which knows the first drawn token, is shown at depth
    one as well: an allocator that looks one depth ahead.
    """
    total = dict.fromkeys(itertools.product((0, 1), repeat=2), Fraction(0))
    for first, second in total:
        chance = DRAFT[first] * DRAFT[second]
        deeper = 0.95 if first == 0 else 0.05
        shown = [deeper, deeper] if foresight else [0.5, min(0.5, deeper)]
        given = device_lengths(np.array([shown, [rival, 0.0]]), ints([3, 2]), ints([0, 1]), packed)
        for pair, share in emitted_pairs(first, second, int(given[0])).items():
            total[pair] += chance * share
    return total


def emitted_pairs(first: int, second: int, length: int) -> dict[tuple[int, int], Fraction]:
    """Exact law of the first two output tokens, later rounds drawn from the target itself."""
    pairs = dict.fromkeys(itertools.product((0, 1), repeat=2), Fraction(0))
    heads = verified(first) if length > 1 else list(TARGET)
    kept = min(Fraction(1), TARGET[first] / DRAFT[first]) if length > 1 else Fraction(0)
    for head, share in enumerate(heads):
        accepted = kept if head == first else Fraction(0)
        for tail, follow in enumerate(TARGET2[head]):
            pairs[head, tail] += (share - accepted) * follow
        if accepted and length > 2:
            for tail, follow in enumerate(verified_second(first, second)):
                pairs[head, tail] += accepted * follow
        elif accepted:
            for tail, follow in enumerate(TARGET2[head]):
                pairs[head, tail] += accepted * follow
    return pairs


def verified_second(first: int, drawn: int) -> list[Fraction]:
    target = TARGET2[first]
    kept = min(Fraction(1), target[drawn] / DRAFT[drawn])
    residual = [max(Fraction(0), p - q) for p, q in zip(target, DRAFT, strict=True)]
    emitted = [(1 - kept) * part / sum(residual) for part in residual]
    emitted[drawn] += kept
    return emitted


@pytest.mark.parametrize("packed", [2, 3, 4, 5])
@pytest.mark.parametrize("rival", [0.01, 0.3, 0.5, 0.6, 0.97])
def test_causal_depth_two_confidence_is_exact_and_foresight_is_not(
    rival: float, packed: int
) -> None:
    """Depth two may know the first token, depth one may not (8.6)."""
    exact = {
        (first, second): TARGET[first] * TARGET2[first][second]
        for first, second in itertools.product((0, 1), repeat=2)
    }
    assert pair_distribution(False, rival, packed) == exact
    # With one row to win, foresight wins it exactly when the first draw was the likely one.
    is_biased = packed == 3 and 0.05 < rival < 0.95
    assert (pair_distribution(True, rival, packed) != exact) == is_biased
