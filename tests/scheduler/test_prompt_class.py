"""The one price of all prompts together (decision 0019; design sections 1.2 and 2.8)."""

from __future__ import annotations

import math

import pytest

from helios.scheduler import PolicyConfig, RequestHandle, RequestSpec
from helios.scheduler.prompt_class import class_flow
from helios.scheduler.requests import Request
from tests.support.catalogs import gpu_like
from tests.support.decisions import decoding, scores_of
from tests.support.world import World, measured_world

POLICY = PolicyConfig()
BALANCED = PolicyConfig.balanced()


def prompt(number: int) -> Request:
    spec = RequestSpec(prompt_tokens=600, max_output_tokens=8)
    return Request(RequestHandle(number, 0), spec, number, 0)


def test_service_counts_as_machine_time() -> None:
    """Five tokens of a tail and 200 of a chunk move the price alike where both take 10 ms (2.8)."""
    tail, chunk = prompt(0), prompt(1)
    rates = {tail: 0.5, chunk: 20.0}
    moved = [class_flow(rates, served, 16.0, 100.0) for served in ({tail: 5.0}, {chunk: 200.0})]
    assert moved[0] == pytest.approx(moved[1])
    # q' = q*exp(-s/tau) + d/s*(1 - exp(-s/tau)) with s = 10 ms of d = 16 ms.
    keep = math.exp(-0.1)
    assert moved[0].apply(3.0) == pytest.approx(3.0 * keep + 1.6 * (1.0 - keep))


def test_a_share_of_the_machine_is_the_fixed_point() -> None:
    """Prompts that receive a quarter of the machine stand at four (2.8)."""
    one, two = prompt(0), prompt(1)
    price = 1.0
    for _ in range(400):
        price = class_flow({one: 10.0, two: 2.0}, {one: 20.0, two: 6.0}, 20.0, 100.0).apply(price)
    assert price == pytest.approx(4.0, rel=1e-6)


def test_unserved_and_unmeasured_prompts_only_wait() -> None:
    """Nothing received: the price grows by d/tau; a prompt without a rate counts nothing (2.8)."""
    flow = class_flow({prompt(0): 4.0, prompt(1): None}, {}, 25.0, 100.0)
    assert flow.apply(1.0) == pytest.approx(1.25)


def class_part(world: World, decoders: int) -> float:
    """The class price that the next initialisation of 64-token prompts is worth, in shares."""
    service = scores_of(world)["initialize-b1"].service_value
    own = POLICY.arrival_shares * 4.0 / 64.0
    fairness = (service - 64 - POLICY.output_token_value) / 65 / POLICY.token_fairness - own
    return fairness / (BALANCED.prefill_balance * decoders) * 64.0 / 4.0


def test_a_class_that_begins_starts_at_the_arrival_shares() -> None:
    """Whatever an earlier class stood at (2.8)."""
    policy = PolicyConfig(prefill_balance=BALANCED.prefill_balance)
    world = measured_world(rows=8, prefills=(64,), policy=policy)
    decoding(world, "a", "b")
    for name in ("p", "q"):
        world.admit(name, 64, 100)
        assert class_part(world, len(world.streams) - 1) == pytest.approx(POLICY.arrival_shares)
        while not world.streams[name].tokens:
            world.step()
        world.step()


def test_a_departure_leaves_the_price_of_those_who_stay() -> None:
    """With prices of their own alone the last of four prompts would stand at four times its worth.

    Four prompts wait while two streams run; three are withdrawn. What a chunk of the fourth is
    worth as part of the class is the same before and after.
    """
    policy = PolicyConfig(prefill_balance=BALANCED.prefill_balance)
    world = measured_world(rows=8, prefills=(64,), policy=policy)
    decoding(world, "a", "b")
    for name in "pqrs":
        world.admit(name, 640, 100)
    for _ in range(9):
        world.step()
    state = world.scheduler._state
    before = state.class_price
    assert before is not None
    assert before != POLICY.arrival_shares
    for name in "pqr":
        world.cancel(name)
    assert state.class_price == before


def test_the_bare_policy_has_no_class_price() -> None:
    """Zero balance is the design's table to the letter (1.2)."""
    world = measured_world(rows=8, prefills=(64,), policy=PolicyConfig())
    decoding(world, "a", "b")
    world.admit("p", 640, 100)
    for _ in range(6):
        world.step()
    assert world.scheduler._state.class_price is None


def test_short_prompts_that_never_cease_do_not_starve_a_long_one() -> None:
    """A price grows without bound while its request is not served (section 2).

    Short rests go first in a class, so newcomers of 64 tokens, one as soon as another has begun to
    generate, could hold a prompt of 16,384 tokens back for ever.
    """
    model = gpu_like(rows=16)
    world = World(model, rows=16, policy=BALANCED, seeded=list(model.duration_ns))
    for index in range(4):
        world.admit(f"s{index}", 64, 50_000)
    for _ in range(20):
        world.step()
    world.admit("long", 16_384, 8)
    arrival_ns, number = world.now_ns, 0
    shorts = [f"short{number}"]
    world.admit(shorts[-1], 64, 2)
    while not world.streams["long"].tokens:
        assert world.now_ns - arrival_ns < 10_000_000_000
        world.step()
        if world.streams[shorts[-1]].tokens:
            number += 1
            shorts.append(f"short{number}")
            world.admit(shorts[-1], 64, 2)
    assert number > 10


def test_what_a_cancelled_request_received_counts_for_nobody() -> None:
    """Its frame serves nobody who is still there: the class has waited (2.8)."""
    policy = PolicyConfig(prefill_balance=BALANCED.prefill_balance)
    world = measured_world(rows=8, prefills=(64,), policy=policy)
    decoding(world, "a", "b")
    world.admit("p", 640, 100)
    world.admit("q", 640, 100)
    while world.plan() is None or not world.plan().steps[0].prompt_tokens:
        world.step()
    world.submit()
    state = world.scheduler._state
    before, (frame,) = state.class_price, state.window.frames
    assert before is not None
    (served,) = [n for n in "pq" if world.streams[n].handle == frame.handles[0]]
    world.cancel(served)
    world.finish_frame()
    assert state.class_price > before
