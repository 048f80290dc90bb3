"""Random histories over every kind and feature: decisions section 11, items 1 and 4 to 8."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphKind,
    PolicyConfig,
    SelectionReason,
    SpeculationConfig,
    paging,
    seating,
)
from helios.scheduler.requests import Request
from helios.scheduler.state import State
from tests.support.catalogs import STATES, ModelledCatalog, Recipe, gpu_like, modelled, recipe
from tests.support.histories import Habitat, History, busy_bound_ms

ROOT = pathlib.Path(__file__).parents[2]

ORDINARY = modelled(
    {
        "initialize-b1": 0.25,
        "initialize-b4": 0.3,
        "prefill-c64": 4.0,
        "prefill-c512": 14.0,
        "scored-prefill-c64": 5.0,
        "decode-b1": 3.0,
        "decode-b2": 3.2,
        "decode-b4": 3.6,
        "terminal-b1": 0.25,
        "terminal-b4": 0.3,
    }
)
INTERVALS = ModelledCatalog(
    Catalog.of(
        dataclasses.replace(graph, context_intervals=(32, 128))
        if graph.kind in (GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.DECODE)
        else graph
        for graph in ORDINARY.catalog.graphs
    ),
    ORDINARY.scaled(8).duration_ns,
)
"""A slower machine with estimates by cached context: later chunks have costs of their own. Credit
for a refresh takes 2.5 s of ordinary work."""
ROUNDS = recipe(
    Recipe(rows=4, prefills=(64,), widths=(1, 2, 4), ragged=((3, 2),), copy_depths=(3,))
)
DEVICE = recipe(
    Recipe(rows=4, prefills=(64,), widths=(1, 4), ragged=((3, 2), (3, 3)), device=True),
    reports_survival=True,
)
MIXED = recipe(Recipe(rows=4, prefills=(64,), widths=(1, 4), mixed=((1, 64), (1, 256), (4, 64))))
MIXED_ORDINARY = recipe(
    Recipe(rows=4, prefills=(64,), ordinary=True, widths=(), mixed_ordinary=(64, 256))
)
EVERYTHING = recipe(
    Recipe(
        rows=4,
        prefills=(64, 256),
        widths=(1, 2, 4),
        ragged=((3, 2),),
        device=True,
        copy_depths=(3,),
        mixed=((1, 64), (4, 64)),
        vision=(64,),
        states=True,
    ),
    reports_survival=True,
)
"""Every kind of the speculative mode in one catalog."""
ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)
HABITATS = {
    "ordinary": Habitat(model=ORDINARY, scored=True),
    "balanced": Habitat(model=ORDINARY, policy=PolicyConfig.balanced(), seeded=True, pages=20),
    "throughput": Habitat(model=ORDINARY, policy=PolicyConfig.throughput(), measured=True),
    "tenants": Habitat(model=ORDINARY, tenants=("", "a", "b"), measured=True, arrival=0.3),
    "images": Habitat(
        model=STATES,
        images=True,
        more={"feature_rows": 64, "snapshot_rows": 2},
        seeded=True,
        pages=60,
        page_size=16,
    ),
    "checkpoints": Habitat(
        model=STATES,
        endpoints=True,
        more={"snapshot_rows": 4},
        measured=True,
        page_size=16,
        pages=80,
        longest_output=12,
        arrival=0.3,
    ),
    "images-and-checkpoints": Habitat(
        model=STATES,
        images=True,
        endpoints=True,
        more={"feature_rows": 64, "snapshot_rows": 3},
        measured=True,
        pages=60,
        page_size=16,
    ),
    "pages": Habitat(
        model=ORDINARY, endpoints=True, more={"page_prefixes": True}, measured=True, page_size=16
    ),
    "growth": Habitat(
        model=ORDINARY,
        endpoints=True,
        more={"page_prefixes": True, "page_growth": True},
        measured=True,
        pages=16,
        page_size=16,
        longest_prompt=150,
        longest_output=80,
        arrival=0.4,
    ),
    "growth-rows": Habitat(
        model=STATES,
        more={"page_growth": True, "snapshot_rows": 2},
        measured=True,
        pages=16,
        page_size=16,
        longest_prompt=150,
        longest_output=80,
        arrival=0.4,
    ),
    "rounds": Habitat(model=ROUNDS, speculation=ADAPTIVE, copies=True, measured=True),
    "device": Habitat(model=DEVICE, speculation=ADAPTIVE, seeded=True),
    "fixed": Habitat(
        model=ROUNDS, speculation=SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=4)
    ),
    "mixed": Habitat(model=MIXED, speculation=ADAPTIVE, arrival=0.3, tenants=("", "a")),
    "mixed-ordinary": Habitat(model=MIXED_ORDINARY, measured=True, arrival=0.3),
    "many-rows": Habitat(
        model=gpu_like(rows=16),
        rows=16,
        pages=150,
        policy=PolicyConfig.throughput(),
        longest_prompt=700,
        longest_output=60,
    ),
    "many-rows-balanced": Habitat(
        model=gpu_like(rows=16, prefills=(64, 512)),
        rows=16,
        pages=120,
        policy=PolicyConfig.balanced(),
        longest_prompt=700,
        longest_output=60,
    ),
    "prompt-intervals": Habitat(
        model=INTERVALS,
        policy=PolicyConfig(estimate_ttl_ns=1_000_000_000),
        scored=True,
        seeded=True,
        longest_prompt=500,
        arrival=0.5,
    ),
    "everything": Habitat(
        model=EVERYTHING,
        speculation=ADAPTIVE,
        tenants=("", "a", "b"),
        images=True,
        endpoints=True,
        copies=True,
        more={
            "feature_rows": 64,
            "snapshot_rows": 3,
            "draft_extent_tokens": 3,
            "page_growth": True,
        },
        measured=True,
        pages=18,
        page_size=16,
        longest_prompt=150,
        longest_output=80,
        arrival=0.4,
    ),
}
SHOULD_RUN = {
    "ordinary": ("INITIALIZE", "PREFILL", "SCORED_PREFILL", "DECODE", "TERMINAL"),
    "images": ("VISION", "SNAPSHOT", "RESTORE"),
    "checkpoints": ("SNAPSHOT", "RESTORE"),
    "images-and-checkpoints": ("VISION", "SNAPSHOT", "RESTORE"),
    "rounds": ("SPECULATIVE",),
    "device": ("SPECULATIVE",),
    "fixed": ("SPECULATIVE",),
    "mixed": ("SPECULATIVE", "MIXED"),
    "mixed-ordinary": ("DECODE", "MIXED"),
    "everything": ("SPECULATIVE", "MIXED", "VISION", "SNAPSHOT", "RESTORE"),
}
"""Kinds that a short history must have executed, so that no habitat is quietly ordinary."""


def history(name: str, seed: int, calls: int) -> History:
    """Run one history to its end and return it."""
    habitat = HABITATS[name]
    ran = History(habitat, seed, bound_ms=busy_bound_ms(habitat))
    ran.run(calls)
    return ran


@pytest.mark.parametrize("name", HABITATS)
def test_a_short_history(name: str) -> None:
    """Prices, bounds, ownership, refusals and service hold after each of its calls (11.1, 4-7)."""
    ran = history(name, 1, 1_500)
    assert ran.admitted > 10
    assert ran.bad_calls > 0
    missing = [kind for kind in SHOULD_RUN.get(name, ()) if kind not in ran.audit.kinds]
    assert not missing, f"{name} never ran {missing}"
    if name == "prompt-intervals":
        assert ran.audit.reasons[SelectionReason.TIMING_REFRESH] > 0
        costs = ran.world.scheduler._state.costs
        observed = {costs.graph_of(entry) for entry in entries_beyond_the_graphs(ran)}
        kinds = {ran.world.model.catalog.graphs[graph].kind for graph in observed}
        assert {GraphKind.PREFILL, GraphKind.DECODE} <= kinds
    if name.startswith("growth") or name == "everything":
        assert ran.world.scheduler.usage().preemptions > 0


def entries_beyond_the_graphs(ran: History) -> list[int]:
    """Cost entries of intervals behind each graph's first that were measured."""
    costs, graphs = ran.world.scheduler._state.costs, len(ran.world.model.catalog.graphs)
    entries = range(graphs, len(costs.estimates_ns))
    return [entry for entry in entries if costs.observed_ns(entry) is not None]


def digest_of(name: str) -> str:
    """A hash over every decision of a history, scores by their exact bits."""
    return history(name, 5, 200).audit.digest.hexdigest()


@pytest.mark.slow
def test_hash_seeds_do_not_matter_to_any_history() -> None:
    """The same decisions in two processes with different hash seeds (11.8)."""
    program = (
        "from tests.scheduler.test_histories import HABITATS, digest_of\n"
        "for name in HABITATS: print(digest_of(name))"
    )
    outputs = []
    for hash_seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout.split())
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == len(HABITATS), "histories do not depend on the habitat"


PIECES = int(os.environ.get("FLARE_HISTORY_PIECES", "38"))
"""A hundred pieces are a million calls (`make histories`); a run of the slow tests does two of each
habitat."""
CALLS_OF_A_PIECE = 10_000


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_million_calls(piece: int) -> None:
    """A million calls in a hundred pieces, each with its own seed and habitat (11.1, 4-7)."""
    names = list(HABITATS)
    ran = history(names[piece % len(names)], 1_000 + piece, CALLS_OF_A_PIECE)
    assert ran.audit.calls >= CALLS_OF_A_PIECE


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [8, 23])
def test_who_is_sent_back_is_not_seated_again_at_once(seed: int) -> None:
    """Seating ends: these newcomers used to be sent back and seated again for ever (11.4)."""
    assert history("everything", seed, 300).audit.calls >= 300


def test_a_retired_row_copies_nothing_that_nobody_keeps() -> None:
    """A SNAPSHOT that retires used to name the private row of the windows that were over.

    The host had stopped the stream with lanes in flight, so the copy was of a later state.
    """
    assert history("images", 1_003, 4_000).audit.kinds["SNAPSHOT"] > 10


@pytest.mark.parametrize(
    ("name", "seed", "calls"), [("everything", 8, 300), ("everything", 23, 300), ("growth", 1, 900)]
)
def test_who_fits_sends_nobody_back(
    name: str, seed: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seat and the budget ask for the same pages: who is seated preempts nobody (6.3, 6.8)."""
    seat, newcomers = seating._take_seat, 0

    def seated(state: State, request: Request, place: seating.Seat) -> None:
        nonlocal newcomers
        seat(state, request, place)
        running = who_runs(state)
        paging.redraw(state)
        assert who_runs(state) == running
        newcomers += 1

    monkeypatch.setattr(seating, "_take_seat", seated)
    ran = history(name, seed, calls)
    assert newcomers > ran.admitted // 2
    assert ran.world.scheduler.usage().preemptions > 0


def who_runs(state: State) -> list[int]:
    """Return the residents whom no preemption has chosen."""
    return [one.arrival for one in state.table.resident if not one.is_leaving and one.row >= 0]


@pytest.mark.slow
def test_one_long_life() -> None:
    """Fences past 16 bits and generations of a slot past 8: one scheduler serves for long (11.5).

    Short requests follow each other closely, so that slots are issued again and again.
    """
    habitat = dataclasses.replace(
        HABITATS["ordinary"], longest_prompt=16, longest_output=3, arrival=0.6
    )
    ran = History(habitat, 11, bound_ms=busy_bound_ms(habitat))
    ran.world._next_fence = 50_000
    ran.run(200_000)
    assert ran.world._next_fence > 1 << 16
    assert ran.admitted > 36 * 256, "no slot of the 36 was issued more than 256 times"
