"""Nobody starves, with bounds below the machine time of the runs: these tests can fail.

The bound grows with `adaptation_ms`. At the default it is longer than any run, so that a scheduler
which serves some request never would keep it; at 1 ms it is a small part of each run here. Prompts
of minutes are the load under which a scheduler without fairness does let others wait for good.
"""

from __future__ import annotations

import dataclasses

import pytest

from helios.scheduler import PolicyConfig
from tests.scheduler.test_histories import ADAPTIVE, MIXED, ORDINARY, ROUNDS
from tests.support.histories import Habitat, History, busy_bound_ms

QUICK = PolicyConfig(adaptation_ms=1.0)
UNFAIR = dataclasses.replace(
    QUICK, token_fairness=0.0, delivery_fairness=0.0, decode_age_price=0.0, terminal_age_price=0.0
)
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
        CROWDED, model=ROUNDS, speculation=ADAPTIVE, longest_prompt=60_000
    ),
    "mixed": dataclasses.replace(CROWDED, model=MIXED, speculation=ADAPTIVE, longest_prompt=60_000),
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
    unfair = dataclasses.replace(HABITATS[name], policy=UNFAIR)
    ran = History(unfair, seed, bound_ms=busy_bound_ms(HABITATS[name]))
    with pytest.raises(AssertionError, match="a request waited"):
        ran.run(10_000)
    assert ran.world.scheduler.usage().waiting > 0
