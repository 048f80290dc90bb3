"""Exploration credit (docs/design/scheduling-utility.md section 11)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helios.scheduler.ledger import CAP_NS, LEARNING_SHARE, TIMING_SHARE, Funds, Ledger, Share
from helios.scheduler.plan import SelectionReason
from tests.scheduler.oracles import exploration

MS = 1_000_000
SHARES = (TIMING_SHARE, LEARNING_SHARE)
PROBES = (SelectionReason.TIMING_REFRESH, SelectionReason.ACCEPTANCE_LEARNING)

durations = st.one_of(
    st.integers(0, 10),
    st.integers(0, 2_000 * MS),
    st.sampled_from([499 * CAP_NS, 499 * CAP_NS - 1, 99 * CAP_NS, 99 * CAP_NS - 1]),
    st.integers(0, 1 << 90),
)
history_steps = st.lists(
    st.tuples(st.sampled_from(["ordinary", "ordinary", "episode", "idle"]), durations), max_size=60
)


def fraction(share: Share) -> Fraction:
    return Fraction(share.numerator, share.denominator)


@pytest.mark.parametrize(
    ("share", "part"), [(TIMING_SHARE, Fraction(2, 1000)), (LEARNING_SHARE, Fraction(1, 100))]
)
def test_shares_are_parts_of_the_sum(share: Share, part: Fraction) -> None:
    """0.002/0.998 and 0.01/0.99: probes are 0.2 % and 1 % of ordinary and probe time (11.1)."""
    assert fraction(share) == part / (1 - part)


@pytest.mark.parametrize(("share", "needed_ms"), [(TIMING_SHARE, 2_495), (LEARNING_SHARE, 495)])
def test_the_first_episode_takes_exactly_its_funding_time(share: Share, needed_ms: int) -> None:
    """A refresh needs 2,495 ms of credited ordinary execution, to the nanosecond (11.1)."""
    ledger = Ledger(share, CAP_NS)
    ledger.earn(needed_ms * MS - 1)
    assert not ledger.is_full
    ledger.earn(1)
    assert ledger.is_full
    assert ledger.credit_ms == 5.0


@given(st.sampled_from(SHARES), history_steps)
def test_both_bounds_hold_on_every_history(share: Share, steps: list[tuple[str, int]]) -> None:
    """P <= share*O + D after every completion, whatever the durations and idle times (11.3)."""
    ledger = Ledger(share, CAP_NS)
    history: list[exploration.Event] = []
    for what, duration_ns in steps:
        if what == "episode":
            if not ledger.is_full:
                continue
            ledger.open()
            ledger.close(duration_ns)
        elif what == "ordinary":
            ledger.earn(duration_ns)
        else:
            ledger.discard()
        history.append((what, duration_ns))
        credit = exploration.credit_ns(history, fraction(share))
        assert ledger.is_full == (credit == CAP_NS)
        assert ledger.credit_ms == float(credit / MS)
        assert ledger.is_within_bound()
        assert exploration.is_within_bound(history, fraction(share))


@given(st.sampled_from(SHARES), st.lists(st.integers(1, 400 * MS), min_size=1, max_size=30))
def test_full_credit_depends_on_the_sum_alone(share: Share, parts: list[int]) -> None:
    """However ordinary time is cut into frames, credit fills at the same total (11.2)."""
    whole, cut = Ledger(share, CAP_NS), Ledger(share, CAP_NS)
    whole.earn(sum(parts))
    for part in parts:
        cut.earn(part)
    assert cut.credit_ms == whole.credit_ms
    assert cut.is_full == whole.is_full


def test_floats_would_open_at_another_moment() -> None:
    """Why the credit is an integer: in float ms, equal sums fill at different frames (11.2).

    2,495 frames of 1 ms are exactly the funding time; added as floats they leave the credit
    below the cap, so that the first refresh would come a frame late, and finer cuts drift further.
    """
    credit = 0.0
    for _ in range(2_495):
        credit += 1.0 * (0.002 / 0.998)
    assert credit != 5.0
    assert 2_495.0 * (0.002 / 0.998) == 5.0


def test_floats_would_break_the_bound() -> None:
    """Where floats break P <= share*O + D: at a debt too large to notice its own last bits (11.2).

    The bound is slack by the 5 ms that open an episode, so rounding must lose more than that: from
    2**76 ns on. The float account opens again while the exact one is still deep in debt.
    """
    debt_ns, repaid_ns = (1 << 90) + (1 << 36), 499 * ((1 << 90) + (1 << 35))
    full_ns = 499 * CAP_NS
    in_floats = 5e6 - float(debt_ns) + float(repaid_ns) / 499.0
    in_floats = min(in_floats + full_ns / 499.0, 5e6)
    assert in_floats == 5e6

    share = fraction(TIMING_SHARE)
    history: list[exploration.Event] = [("ordinary", full_ns), ("episode", debt_ns)]
    history += [("ordinary", repaid_ns), ("ordinary", full_ns)]
    assert exploration.credit_ns(history, share) < 0
    assert exploration.is_within_bound(history, share)
    assert not exploration.is_within_bound([*history, ("episode", 1)], share)


def test_idle_discards_positive_credit_and_preserves_debt() -> None:
    """Idle clears what was saved up and forgives nothing (11.4)."""
    ledger = Ledger(TIMING_SHARE, CAP_NS)
    ledger.earn(1_000 * MS)
    ledger.discard()
    assert ledger.credit_ms == 0.0
    ledger.earn(2_495 * MS)
    ledger.open()
    ledger.close(12 * MS)
    assert ledger.credit_ms == -7.0
    ledger.discard()
    assert ledger.credit_ms == -7.0


def test_an_episode_opens_on_full_credit_only_and_never_twice() -> None:
    """Another episode waits for full credit after the one before has closed (11.3)."""
    ledger = Ledger(LEARNING_SHARE, CAP_NS)
    with pytest.raises(AssertionError):
        ledger.open()
    ledger.earn(600 * MS)
    ledger.open()
    assert not ledger.is_full
    ledger.earn(10_000 * MS)
    with pytest.raises(AssertionError):
        ledger.open()
    ledger.close(8 * MS)
    assert ledger.credit_ms == -3.0
    ledger.earn(99 * 8 * MS - 1)
    assert not ledger.is_full
    ledger.earn(1)
    assert ledger.is_full


def test_an_episode_of_no_duration_leaves_the_credit() -> None:
    """What did not take time costs nothing; the bound counts actual durations (11.3)."""
    ledger = Ledger(LEARNING_SHARE, CAP_NS)
    ledger.earn(600 * MS)
    ledger.open()
    ledger.close(0)
    assert ledger.is_full
    assert ledger.spent_ns == 0


@pytest.mark.parametrize("reason", list(SelectionReason))
def test_only_valid_ordinary_work_earns(reason: SelectionReason) -> None:
    """Discovery and probes earn nothing, nor does an ordinary frame without an interval (11.2)."""
    funds = Funds()
    if funds.ledger_of(reason) is None:
        funds.open(reason)
        funds.settle(reason, 99 * MS, 99 * MS)
    earned = 1.0 if reason is SelectionReason.ORDINARY else 0.0
    assert funds.learning.credit_ms == earned
    assert (funds.timing.credit_ms > 0.0) is (earned > 0.0)
    funds.settle(SelectionReason.ORDINARY, 0, 500 * MS)
    assert funds.learning.credit_ms == earned


@pytest.mark.parametrize("reason", PROBES)
def test_one_episode_at_a_time_over_both_ledgers(reason: SelectionReason) -> None:
    """While a probe of either kind is open neither ledger opens another (11.3)."""
    funds = Funds()
    funds.settle(SelectionReason.ORDINARY, 3_000 * MS, 3_000 * MS)
    assert all(map(funds.can_open, PROBES))
    funds.open(reason)
    assert not any(map(funds.can_open, PROBES))
    for other in PROBES:
        with pytest.raises(AssertionError):
            funds.open(other)
    funds.close(reason, 0)
    assert all(map(funds.can_open, PROBES))


@pytest.mark.parametrize("reason", PROBES)
def test_an_execution_is_charged_to_one_ledger(reason: SelectionReason) -> None:
    """Timing and acceptance ledgers never charge the same execution (11.3)."""
    funds = Funds()
    funds.settle(SelectionReason.ORDINARY, 3_000 * MS, 3_000 * MS)
    funds.open(reason)
    funds.settle(reason, 0, 7 * MS)
    spent = {
        SelectionReason.TIMING_REFRESH: funds.timing.spent_ns,
        SelectionReason.ACCEPTANCE_LEARNING: funds.learning.spent_ns,
    }
    assert spent.pop(reason) == 7 * MS
    assert list(spent.values()) == [0]
    assert funds.timing.ordinary_ns == funds.learning.ordinary_ns == 3_000 * MS


frames = st.tuples(
    st.sampled_from([*SelectionReason, SelectionReason.ORDINARY]),
    st.sampled_from([0, 1, 3 * MS, 40 * MS, 600 * MS, 3_000 * MS]),
    st.sampled_from([0, 2 * MS, 900 * MS, 1 << 62]),
    st.sampled_from(["complete", "complete", "complete", "fail", "idle"]),
)


@given(st.lists(frames, max_size=40))
@example([(SelectionReason.ORDINARY, 3_000 * MS, 0, "complete")])
def test_funds_hold_both_bounds_under_faults(
    steps: list[tuple[SelectionReason, int, int, str]],
) -> None:
    """Invalid timings, failures, stalls and idle times in any order keep both bounds (11.3)."""
    funds = Funds()
    histories: dict[str, list[exploration.Event]] = {"timing": [], "learning": []}
    for reason, device_ns, wall_ns, fate in steps:
        ledger = funds.ledger_of(reason)
        if fate == "idle":
            funds.discard()
            for history in histories.values():
                history.append(("idle", 0))
            continue
        if ledger is not None and not funds.can_open(reason):
            continue
        funds.open(reason)
        charged_ns = max(device_ns, wall_ns)
        if fate == "fail":
            funds.close(reason, wall_ns)
            charged_ns = wall_ns
        else:
            funds.settle(reason, device_ns, charged_ns)
        if reason is SelectionReason.ORDINARY and fate == "complete" and device_ns:
            for history in histories.values():
                history.append(("ordinary", charged_ns))
        elif reason is SelectionReason.TIMING_REFRESH:
            histories["timing"].append(("episode", charged_ns))
        elif reason is SelectionReason.ACCEPTANCE_LEARNING:
            histories["learning"].append(("episode", charged_ns))
        for name, account in (("timing", funds.timing), ("learning", funds.learning)):
            share = fraction(account.share)
            assert account.credit_ms == float(exploration.credit_ns(histories[name], share) / MS)
            assert account.is_within_bound()
            assert exploration.is_within_bound(histories[name], share)


@pytest.mark.parametrize("share", [TIMING_SHARE, LEARNING_SHARE])
def test_the_bound_is_exact_to_the_nanosecond(share: Share) -> None:
    """The account itself says when P passes share*O + D; no legal history ever makes it."""
    ledger = Ledger(share, CAP_NS)
    ledger.ordinary_ns = 1_000 * share.denominator
    ledger.episode_ns = 7
    ledger.spent_ns = 1_000 * share.numerator + 7
    assert ledger.is_within_bound()
    ledger.spent_ns += 1
    assert not ledger.is_within_bound()
