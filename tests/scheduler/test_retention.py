"""Which cuts are kept, and what the extras may cost (runtime section 5)."""

from __future__ import annotations

import itertools
import random

import pytest

from helios.scheduler import Endpoint
from helios.scheduler.checkpoints import Role
from helios.scheduler.retention import PrefillWork, choose_cuts
from tests.scheduler.oracles import checkpoints as twin

SHAPES = ((64, 4.0), (512, 16.0), (4096, 96.0))


def cuts_of(
    endpoints: list[Endpoint],
    prompt: int,
    *,
    resumed: int = 0,
    known: tuple[bytes, ...] = (),
    shapes: tuple[tuple[int, float], ...] = SHAPES,
    copy_ms: float = 0.25,
    fraction: float = 0.05,
    is_free: bool = False,
) -> dict[int, Role]:
    """Return the chosen endpoints with their roles."""
    cuts = choose_cuts(
        endpoints,
        prompt_tokens=prompt,
        resumed_tokens=resumed,
        is_known=lambda key: key in known,
        work=PrefillWork(shapes),
        copy_ms=copy_ms,
        fraction=fraction,
        is_free=is_free,
    )
    assert [cut.tokens for cut in cuts] == sorted(cut.tokens for cut in cuts)
    return {cut.tokens: cut.role for cut in cuts}


def message(tokens: int) -> Endpoint:
    return Endpoint(tokens, b"m%d" % tokens)


def end(tokens: int) -> Endpoint:
    return Endpoint(tokens, b"e%d" % tokens, ends_message=False)


def test_the_last_message_is_the_anchor_and_the_end_substitutes() -> None:
    """Best effort: it is chosen whatever the costs, also when none is known."""
    for shapes, copy_ms in ((SHAPES, 0.25), ((), 0.25), (SHAPES, 0.0), (((64, 0.0),), 0.0)):
        found = cuts_of(
            [message(10), message(20), end(30)], 30, shapes=shapes, copy_ms=copy_ms, fraction=0.0
        )
        assert found == {20: Role.ANCHOR}
        assert cuts_of([end(30)], 30, shapes=shapes, copy_ms=copy_ms) == {30: Role.ANCHOR}
    assert cuts_of([], 30) == {}


def test_what_is_resumed_or_kept_already_is_not_kept_again() -> None:
    """Eligible endpoints lie beyond the resumed prefix and are not known."""
    endpoints = [message(10), message(20), end(30)]
    assert cuts_of(endpoints, 30, resumed=20, fraction=0.0) == {30: Role.ANCHOR}
    assert cuts_of(endpoints, 30, known=(b"m20",), fraction=0.0) == {10: Role.ANCHOR}
    assert cuts_of(endpoints, 30, known=(b"m20", b"m10", b"e30")) == {}
    assert cuts_of([message(20)], 30, resumed=20) == {}


def test_extras_come_in_reverse_order_and_the_distinct_end_last() -> None:
    """Each more costs more; whoever comes first in that order gets the allowance."""
    endpoints = [message(512), message(1024), message(1536), end(2048)]
    whole = 4 * 16.0
    # Cuts at multiples of 512 split nothing, so each extra costs its copy of 0.5 ms.
    for count, expected in enumerate(
        [
            {1536: Role.ANCHOR},
            {1536: Role.ANCHOR, 1024: Role.EARLIER},
            {1536: Role.ANCHOR, 1024: Role.EARLIER, 512: Role.EARLIER},
            {
                1536: Role.ANCHOR,
                1024: Role.EARLIER,
                512: Role.EARLIER,
                2048: Role.PROMPT_END,
            },
        ]
    ):
        assert cuts_of(endpoints, 2048, copy_ms=0.5, fraction=count * 0.5 / whole) == expected
    assert cuts_of([message(2048)], 2048) == {2048: Role.ANCHOR}, "the end is not distinct"


def test_one_extra_too_dear_leaves_room_for_the_next() -> None:
    """A split costs more than a copy alone: the prompt's end may fit where a message does not."""
    endpoints = [message(100), message(512), end(1024)]
    found = cuts_of(endpoints, 1024, fraction=0.05)
    assert found == {512: Role.ANCHOR, 1024: Role.PROMPT_END}


@pytest.mark.parametrize("unknown", ["copy", "prefill"])
def test_unknown_costs_disable_extras_alone(unknown: str) -> None:
    """The anchor stays eligible."""
    endpoints = [message(512), message(1024), end(2048)]
    assert len(cuts_of(endpoints, 2048)) == 3
    found = cuts_of(
        endpoints,
        2048,
        copy_ms=0.0 if unknown == "copy" else 0.25,
        shapes=() if unknown == "prefill" else SHAPES,
        fraction=1.0,
    )
    assert found == {1024: Role.ANCHOR}


def test_the_allowance_counts_uncached_work_only() -> None:
    """A long resumed prefix pays for nothing."""
    endpoints = [message(4096), message(4160), message(4224)]
    assert len(cuts_of(endpoints, 4288, copy_ms=1.0)) == 3
    assert cuts_of(endpoints, 4288, resumed=4095, copy_ms=1.0) == {4224: Role.ANCHOR}


def random_case(seed: int) -> None:
    rng = random.Random(seed)
    shapes = tuple((2 ** rng.randrange(0, 6), rng.randrange(1, 64) / 8) for _ in range(3))
    prompt = rng.randrange(2, 60)
    resumed = rng.randrange(0, prompt)
    tokens = sorted(rng.sample(range(1, prompt + 1), rng.randrange(0, min(6, prompt))))
    endpoints = [
        Endpoint(count, b"%d" % count, ends_message=count != prompt or rng.random() < 0.5)
        for count in tokens
    ]
    known = tuple(e.key for e in endpoints if rng.random() < 0.2)
    copy_ms, fraction = rng.randrange(0, 9) / 8, rng.randrange(0, 9) / 8
    plain_cuts(endpoints, prompt, resumed, known, shapes, copy_ms, min(1.0, fraction))


def plain_cuts(endpoints, prompt, resumed, known, shapes, copy_ms, fraction) -> dict[int, Role]:
    """Return what is kept, which is what the plain rule says."""
    case = {
        "resumed": resumed,
        "known": known,
        "shapes": shapes,
        "copy_ms": copy_ms,
        "fraction": fraction,
    }
    found = cuts_of(endpoints, prompt, **case)
    assert found == plainly(endpoints, prompt, **case), (endpoints, prompt, case)
    return found


def plainly(endpoints, prompt, resumed, known, shapes, copy_ms, fraction) -> dict[int, Role]:
    """The rule, word by word."""
    eligible = [e for e in endpoints if e.tokens > resumed and e.key not in known]
    messages = [e for e in eligible if e.ends_message]
    ends = [e for e in eligible if e.tokens == prompt]
    first = messages[-1:] or ends
    if not first:
        return {}
    chosen = {first[0].tokens: Role.ANCHOR}
    extras = [*messages[:-1][::-1], *(e for e in ends if e is not first[0])]
    allowance = fraction * twin.cheapest_prefill_ms(prompt - resumed, shapes) if shapes else 0.0
    spent = 0.0
    for extra in extras if copy_ms > 0 and shapes else ():
        cost = twin.extra_cost_ms(extra.tokens, list(chosen), resumed, prompt, shapes, copy_ms)
        if spent + cost <= allowance:
            spent += cost
            chosen[extra.tokens] = Role.EARLIER if extra.ends_message else Role.PROMPT_END
    return dict(sorted(chosen.items()))


def small_endpoints(prompt: int) -> list[tuple[list[Endpoint], tuple[bytes, ...]]]:
    """Every set of endpoints of a prompt, each new or kept already; the last one of either sort."""
    inner = [(None, None), (True, False), (True, True)]
    last = [*inner, (False, False), (False, True)]
    found = []
    for states in itertools.product(*[inner] * (prompt - 1), last):
        endpoints, known = [], []
        for tokens, (ends_message, is_known) in enumerate(states, start=1):
            if ends_message is not None:
                endpoints.append(Endpoint(tokens, b"%d" % tokens, ends_message=ends_message))
                known += [b"%d" % tokens] if is_known else []
        found.append((endpoints, tuple(known)))
    return found


def test_choice_equals_the_plain_rule_on_every_small_prompt() -> None:
    """All prompts of up to five tokens, resumed anywhere: every set of endpoints and kept states,
    two catalogs and none, a copy that is unknown, cheap or dear, and three fractions (5.2, 5.3)."""
    catalogs = ((), ((1, 0.5), (4, 1.5)), ((2, 1.0),))
    costs = list(itertools.product(catalogs, (0.0, 0.25, 0.5), (0.0, 0.25, 1.0)))
    kept = dict.fromkeys(range(6), 0)
    for prompt in range(1, 6):
        for endpoints, known in small_endpoints(prompt):
            for resumed in range(prompt):
                for shapes, copy_ms, fraction in costs:
                    found = plain_cuts(endpoints, prompt, resumed, known, shapes, copy_ms, fraction)
                    kept[len(found)] += 1
    assert min(kept.values()) > 0, kept


def test_pages_that_are_the_whole_state_are_kept_for_nothing() -> None:
    """Neither split nor copy: every eligible endpoint is kept, whatever is measured (5.3)."""
    for endpoints, known in small_endpoints(4):
        for shapes, copy_ms in (((), 0.0), (SHAPES, 0.25)):
            found = cuts_of(
                endpoints,
                4,
                known=known,
                shapes=shapes,
                copy_ms=copy_ms,
                fraction=0.0,
                is_free=True,
            )
            assert list(found) == [e.tokens for e in endpoints if e.key not in known]
            assert list(found.values()).count(Role.ANCHOR) == min(1, len(found))


def test_choice_equals_the_plain_rule() -> None:
    """Costs are multiples of 1/8, so that sums are exact and ties are compared exactly."""
    for seed in range(2_000):
        random_case(seed)


@pytest.mark.slow
def test_choice_equals_the_plain_rule_on_ten_thousand() -> None:
    """The same, further."""
    for seed in range(2_000, 12_000):
        random_case(seed)


def test_work_equals_the_best_pair_of_capacities() -> None:
    """Every number of tokens up to 200 with every set of one to three shapes."""
    shapes = [(1, 0.5), (8, 1.0), (32, 3.0), (128, 8.0)]
    for count in (1, 2, 3):
        for chosen in itertools.combinations(shapes, count):
            work = PrefillWork(chosen)
            for tokens in range(200):
                assert work.of(tokens) == twin.cheapest_prefill_ms(tokens, chosen)
    assert not PrefillWork([(8, 0.0)]).is_known
