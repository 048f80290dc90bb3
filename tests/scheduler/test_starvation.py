"""Nobody starves, with bounds below the machine time of the runs: these tests can fail.

The bound grows with `adaptation_ms`. At the default it is longer than almost any run, so that a
scheduler which serves some request never would keep it; at 1 ms it is a small part of each run
here. Prompts of minutes are the load under which a scheduler without fairness does let others wait
for good.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from helios.scheduler import PolicyConfig
from tests.scheduler.test_determinism import measure_directly
from tests.scheduler.test_histories import ADAPTIVE, MIXED, ORDINARY, ROUNDS
from tests.scheduler.test_histories import HABITATS as HABITATS_OF_HISTORIES
from tests.scheduler.test_spec_fairness import World
from tests.support.histories import HEAVIEST, LIGHTEST, Audit, Habitat, History, busy_bound_ms

QUICK = PolicyConfig(adaptation_ms=1.0)
LATE = dataclasses.replace(QUICK, arrival_shares=0.01)
"""Newcomers begin with hardly a price: what heavy ones may begin with is most of the bound."""
COEFFICIENTS = ("token_fairness", "delivery_fairness", "decode_age_price", "terminal_age_price")
NO_FAIRNESS = dict.fromkeys(COEFFICIENTS, 0.0)
CROWDED = Habitat(
    model=ORDINARY,
    policy=QUICK,
    measured=True,
    pages=800,
    page_size=1024,
    longest_prompt=200_000,
    tenants=("", "a", "b"),
    arrival=0.3,
)
"""Four rows, a line that is never empty while calls last, and one prompt of five above a window."""
HABITATS = {
    "ordinary": CROWDED,
    "rounds": dataclasses.replace(
        CROWDED, model=ROUNDS, speculation=ADAPTIVE, longest_prompt=60_000, policy=LATE
    ),
    "mixed": dataclasses.replace(
        CROWDED, model=MIXED, speculation=ADAPTIVE, longest_prompt=60_000, policy=LATE
    ),
}
LOADS = [
    ("ordinary", 2),
    pytest.param("ordinary", 3, marks=pytest.mark.slow),
    pytest.param("rounds", 2, marks=pytest.mark.slow),
    pytest.param("mixed", 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "seed"), LOADS)
def test_nobody_waits_as_long_as_a_bound_that_the_run_passes(name: str, seed: int) -> None:
    """The machine works for several bounds, and no runnable request waits for one (11.7)."""
    habitat = HABITATS[name]
    bound_ms = busy_bound_ms(habitat)
    ran = History(habitat, seed, bound_ms=bound_ms)
    ran.run(10_000)
    assert ran.audit.busy_ms > 4 * bound_ms
    assert 0 < ran.audit.worst_ms <= bound_ms


@pytest.mark.parametrize(("name", "seed"), LOADS)
def test_without_fairness_the_same_load_starves_somebody(name: str, seed: int) -> None:
    """The bound tells: coefficients of zero let a request wait longer, on the same arrivals."""
    habitat = HABITATS[name]
    policy = dataclasses.replace(habitat.policy, **NO_FAIRNESS)
    unfair = dataclasses.replace(habitat, policy=policy)
    ran = History(unfair, seed, bound_ms=busy_bound_ms(habitat))
    with pytest.raises(AssertionError, match="a request waited"):
        ran.run(10_000)
    assert ran.world.scheduler.usage().waiting > 0


def test_heavy_newcomers_without_end_keep_a_light_stream_for_as_long_as_they_may() -> None:
    """Each begins with a price of several shares, so that they win for seconds and then no more."""
    crowd = HABITATS_OF_HISTORIES["throughput"]
    habitat = dataclasses.replace(
        crowd, policy=dataclasses.replace(crowd.policy, adaptation_ms=10.0)
    )
    world = World(habitat.model, rows=habitat.rows, policy=habitat.policy)
    measure_directly(world)
    audit = Audit(world, busy_bound_ms(habitat))
    world.observers.append(audit)
    world.admit("light", 20, 400, weight=LIGHTEST)
    admitted = itertools.count()
    while not world.streams["light"].tokens:
        world.step()
    begun = len(world.streams["light"].tokens)
    while len(world.streams["light"].tokens) < begun + 2:
        while world.scheduler.usage().waiting < 6:
            world.admit(f"heavy{next(admitted)}", 1, 1, weight=HEAVIEST)
        world.step()
    assert audit.worst_ms > 1_000.0, "nobody stood in its way"
