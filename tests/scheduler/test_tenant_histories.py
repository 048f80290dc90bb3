"""Tenants end to end: every decision against the enumeration, and who gets how much."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from helios.scheduler import GraphKind, Phase, PolicyConfig, SelectionReason
from tests.scheduler.oracles.shadow import Shadow
from tests.support.catalogs import modelled
from tests.support.checkers import Checker
from tests.support.usage import assert_everything_is_back, assert_usage_adds_up
from tests.support.workload import Mix, Workload
from tests.support.world import World, measured_world

MS = 1_000_000
SMALL = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c64": 4.0,
        "prefill-c512": 14.0,
        "decode-b1": 3.0,
        "decode-b2": 3.2,
        "decode-b4": 3.6,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
    }
)


def simulate(seed: int, steps: int, *, tenants: int) -> Shadow:
    policy = (PolicyConfig(), PolicyConfig.balanced(), PolicyConfig.throughput())[seed % 3]
    world = World(SMALL, rows=5, pages=50, page_size=64, waiting=64, policy=policy)
    Checker.watch(world)
    shadow = Shadow.watch(world)
    workload = Workload(world, seed, Mix(arrival=0.2, tenants=tenants))
    for step in range(steps):
        workload.step()
        if step % 50 == 0:
            assert_usage_adds_up(world)
    world.run_until_idle()
    assert_everything_is_back(world)
    return shadow


@pytest.mark.parametrize("seed", range(4))
def test_faulty_histories_with_tenants_are_decided_like_the_twin(seed: int) -> None:
    """Prices, shares, floors, reference rates and choices of up to three tenants (12.1 to 12.6)."""
    shadow = simulate(seed, 90, tenants=1 + seed % 3)
    assert shadow.checked > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_histories_with_tenants_are_decided_like_the_twin(seed: int) -> None:
    """The same at length (decisions, 11.3 and 11.5)."""
    simulate(seed, 500, tenants=1 + seed % 4)


# ---- who gets how much --------------------------------------------------------------------

CROWDS = {"one": 1, "five": 5, "thirty": 30}


def backlogged(batches: dict[str, float], policy: PolicyConfig, frames: int) -> list[list[int]]:
    """Let tenants of 1, 5 and 30 endless streams compete; return their tokens frame by frame."""
    state = {"initialize-b1": 0.25, "prefill-c64": 4.0, "terminal-b1": 0.25}
    model = modelled({**state, **batches})
    world = World(model, rows=36, pages=64, page_size=1 << 20, policy=policy, seeded=[*state])
    for tenant, count in CROWDS.items():
        for index in range(count):
            world.admit(f"{tenant}{index}", 64, 1 << 19, tenant=tenant)
    while any(len(stream.tokens) < 3 for stream in world.streams.values()):
        world.step()
    before = {name: len(stream.tokens) for name, stream in world.streams.items()}
    history = []
    for _ in range(frames):
        world.step()
        grown = dict.fromkeys(CROWDS, 0)
        for name, stream in world.streams.items():
            grown[stream.spec.tenant] += len(stream.tokens) - before[name]
        history.append([*grown.values()])
    members = [len(s.tokens) - before[n] for n, s in world.streams.items() if n.startswith("th")]
    assert max(members) - min(members) <= max(2, 0.3 * max(members)), "unfair within a tenant"
    return history


def service_gap(history: list[list[int]], left: int, right: int) -> int:
    """The largest difference of two tenants' service over any interval, in tokens."""
    difference = [row[left] - row[right] for row in history]
    return max(difference) - min(difference)


@pytest.mark.parametrize("preset", ["table", "balanced", "throughput"])
def test_tenants_share_the_machine_whatever_their_number_of_requests(preset: str) -> None:
    """One, five and thirty endless streams, one lane per frame: a third each (report 24).

    The service gap of every pair of tenants, over any interval, stays within one round of turns;
    under fairness between requests the shares would be 1/36, 5/36 and 30/36.
    """
    presets = {
        "table": PolicyConfig(),
        "balanced": PolicyConfig.balanced(),
        "throughput": PolicyConfig.throughput(),
    }
    history = backlogged({"decode-b1": 3.0}, presets[preset], 300)
    assert [count / 300 for count in history[-1]] == pytest.approx([1 / 3] * 3, rel=0.03)
    for left, right in itertools.combinations(range(3), 2):
        assert service_gap(history, left, right) <= 6


def test_what_one_tenant_cannot_use_goes_to_the_others_in_equal_parts() -> None:
    """Eight lanes per frame: a stream fills one of them at most, the rest is halved (12.2)."""
    history = backlogged({"decode-b1": 3.0, "decode-b8": 4.2}, PolicyConfig(), 250)
    one, five, thirty = (count / (8 * 250) for count in history[-1])
    assert one == pytest.approx(1 / 8, rel=0.02)
    assert five + thirty == pytest.approx(7 / 8, rel=0.02)
    assert thirty / five < 1.2


def test_weights_scale_the_coefficients_of_their_own_request() -> None:
    """A heavy member is ahead of a light one of its tenant, and nobody is excluded (12.2)."""
    state = {"initialize-b1": 0.25, "prefill-c64": 4.0, "terminal-b1": 0.25, "decode-b1": 3.0}
    world = World(modelled(state), rows=4, pages=64, page_size=1 << 20, seeded=[*state])
    for name, tenant, weight in (("a", "x", 4.0), ("b", "x", 1.0), ("c", "y", 1.0)):
        world.admit(name, 64, 1 << 19, tenant=tenant, weight=weight)
    world.run(400)
    tokens = {name: len(stream.tokens) for name, stream in world.streams.items()}
    assert tokens["a"] > 2 * tokens["c"] > 4 * tokens["b"] > 0


def first_output_ms(policy: PolicyConfig, tenants: tuple[str, str], prompt: int) -> float:
    """Let a prompt of one tenant meet fifteen streams of another, or of its own."""
    world = measured_world(rows=16, policy=policy)
    for index in range(15):
        world.admit(f"s{index}", 64, tenant=tenants[0])
    while any(len(stream.tokens) < 20 for stream in world.streams.values()):
        world.step()
    world.admit("new", prompt, 4000, tenant=tenants[1])
    while not world.streams["new"].visible_ns:
        world.step()
    return world.streams["new"].first_output_ms


@pytest.mark.parametrize("tenants", [("", ""), ("a", "a"), ("a", "b")])
@pytest.mark.parametrize(("prompt", "limit_ms"), [(64, 100.0), (4096, 300.0)])
def test_a_newcomer_is_not_made_to_wait_by_its_tenant(
    tenants: tuple[str, str], prompt: int, limit_ms: float
) -> None:
    """A tenant's only newcomer stands like one without a tenant (12.5).

    The long prompt takes 90 ms alone. Under the smooth preset it no longer runs in one piece beside
    fifteen streams (decision 0015); the table runs it at once in either case.
    """
    assert first_output_ms(PolicyConfig.balanced(), tenants, prompt) <= limit_ms
    assert first_output_ms(PolicyConfig(), tenants, prompt) <= 100.0


def test_sixteen_requests_of_the_only_tenant_start_like_any_others() -> None:
    """Nobody else competes, so nothing is divided (12.5)."""
    world = measured_world(rows=16)
    for index in range(16):
        world.admit(f"s{index}", 64, tenant="only")
    while any(not stream.visible_ns for stream in world.streams.values()):
        world.step()
    assert max(stream.first_output_ms for stream in world.streams.values()) <= 100.0


def test_twelve_newcomers_of_one_tenant_have_one_claim() -> None:
    """They do not push a running stream of another tenant aside (12.5)."""
    gaps = {}
    for tenant in ("", "crowd"):
        world = measured_world(rows=16, policy=PolicyConfig())
        world.admit("stream", 64, tenant="other" if tenant else "")
        while len(world.streams["stream"].tokens) < 30:
            world.step()
        for index in range(12):
            world.admit(f"n{index}", 4096, 8, tenant=tenant)
        while not all(world.streams[f"n{index}"].visible_ns for index in range(12)):
            world.step()
        gaps[tenant] = max(world.streams["stream"].gaps_ms)
    assert gaps["crowd"] <= gaps[""] / 2


# ---- nobody starves -----------------------------------------------------------------------


def test_a_member_that_the_shared_price_forgets_is_served_in_the_end() -> None:
    """A tenant's prompt gets a turn although its own streams are worth more (decisions, 11.7).

    The shared price stays at what sixteen streams make of it, so a second chunk is never worth a
    frame by that price alone. The floor reaches the streams' value rate R within
    `adaptation * prompts * R / f`, and every frame in between takes at most the longest one.
    """
    policy = PolicyConfig()
    world = measured_world(rows=17, prefills=(64,), policy=policy)
    for index in range(16):
        world.admit(f"s{index}", 64, 1 << 15, tenant="a")
    while any(len(stream.tokens) < 20 for stream in world.streams.values()):
        world.step()
    world.admit("prompt", 192, 1, tenant="a")
    sixteen = world.model.duration_ns["decode-b16"] / MS
    streams = 16 * policy.output_token_value / sixteen
    # At their fixed points token and delivery prices add one coefficient each for the tenant.
    rate = streams + policy.token_fairness + policy.delivery_fairness + policy.decode_age_price * 64
    bound_ms = policy.adaptation_ms * rate / policy.token_fairness + 2 * sixteen
    since_ns, worst_ms = world.now_ns, 0.0
    while world.scheduler.phase_of(world.streams["prompt"].handle) < Phase.DECODE:
        world.step()
        last = world.log[-1]
        if last.plan.graph.kind is GraphKind.PREFILL:
            worst_ms = max(worst_ms, (last.start_ns - since_ns) / MS)
            since_ns = last.finish_ns
    assert 200.0 < worst_ms <= bound_ms


# ---- labels and units ---------------------------------------------------------------------


def decisions_of(names: str, factor: int) -> list[tuple[object, ...]]:
    """Run a workload with tenants of these names on a machine `factor` times slower."""
    base = PolicyConfig.balanced()
    policy = dataclasses.replace(
        base,
        token_fairness=base.token_fairness / factor,
        delivery_fairness=base.delivery_fairness / factor,
        decode_age_price=base.decode_age_price / factor**2,
        terminal_age_price=base.terminal_age_price / factor**2,
        adaptation_ms=base.adaptation_ms * factor,
        estimate_ttl_ns=base.estimate_ttl_ns * factor,
    )
    world = World(SMALL.scaled(factor), rows=5, pages=50, page_size=64, policy=policy)
    # Without pauses nothing gets stale: the cap of a probe's credit is no preference to scale.
    mix = Mix(arrival=0.25, tenants=3, pause=0.0, time_unit_ms=float(factor))
    workload = Workload(world, 21, mix)
    admit = world.admit

    def renamed(*args: object, **fields: object) -> object:
        tenant = fields.get("tenant")
        fields["tenant"] = names["abc".index(str(tenant))] if tenant else ""
        return admit(*args, **fields)  # type: ignore[arg-type]

    world.admit = renamed  # type: ignore[method-assign, assignment]
    for _ in range(150):
        workload.step()
    return [
        (
            flight.name,
            flight.lanes,
            flight.start_ns // factor,
            flight.plan.selection_value_rate()
            * (factor if flight.plan.reason is SelectionReason.ORDINARY else 1),
        )
        for flight in world.log
    ]


def test_scaling_time_and_renaming_tenants_change_nothing() -> None:
    """Units and labels are no part of a decision, to the last bit (decisions, 11.1)."""
    plain = decisions_of("abc", 1)
    assert decisions_of("abc", 16) == plain
    assert decisions_of("zya", 1) == plain
